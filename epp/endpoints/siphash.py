"""SipHash-1-3 with both keys zero, the default hash of Rust's standard library (Aumasson and Bernstein, 2012)."""

_MASK = (1 << 64) - 1


def siphash13(data: bytes) -> int:
    """The 64-bit hash of `data`: one round per 8-byte word, three to finish."""
    state = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    whole = len(data) // 8 * 8
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, whole, 8)]
    for word in [*words, last]:
        v0, v1, v2, v3 = state
        v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
        state = (v0 ^ word, v1, v2, v3)
    v0, v1, v2, v3 = state
    v2 ^= 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _MASK
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = (v2 + v3) & _MASK
    v3 = _rotate(v3, 16) ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = _rotate(v3, 21) ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
