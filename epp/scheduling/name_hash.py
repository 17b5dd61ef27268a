"""What stands for a name that a client wrote, such as a session's or a request's: kept and told in its place."""

import xxhash


def name_hash(name: str) -> int:
    """64 bits, the same in every replica."""
    return xxhash.xxh3_64_intdigest(name.encode(errors="surrogatepass"))
