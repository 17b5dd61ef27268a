"""The one rule for the namespace in which equal tokens mean equal KV blocks."""


def namespace(adapter: str = "", salt: str = "") -> str:
    """Join the LoRA adapter's name and the cache salt unambiguously; the base model without a salt is "".

    Media are not part of it: an item changes only the blocks from its own place on (`Prompt.media`).
    """
    return f"{len(adapter)}:{adapter}{salt}" if adapter or salt else ""


def parts(namespace: str) -> tuple[str, str]:
    """Adapter and salt of a namespace."""
    if not namespace:
        return "", ""
    length, _, rest = namespace.partition(":")
    return rest[: int(length)], rest[int(length) :]
