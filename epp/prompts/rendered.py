"""What an engine's render service or `/tokenize` answers: token ids and, for media, their hashes and places."""

from dataclasses import dataclass

import msgspec
import numpy as np

from epp.prompts.prompt import Media, TokenIds


class _Placeholder(msgspec.Struct):
    offset: int


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str | None]] | None = None
    mm_placeholders: dict[str, list[_Placeholder]] | None = None


class _Answer(msgspec.Struct):
    token_ids: list[int] | None = None
    tokens: list[int] | None = None
    features: _Features | None = None


_ANSWER = msgspec.json.Decoder(_Answer | list[_Answer])


@dataclass(frozen=True, slots=True)
class RenderedTokens:
    """What the engine will compute."""

    tokens: TokenIds
    media: tuple[Media, ...] = ()


def read_rendered(answer: bytes) -> RenderedTokens:
    """Raises ValueError or msgspec.MsgspecError for an answer without token ids."""
    decoded = _ANSWER.decode(answer)
    first = decoded[0] if isinstance(decoded, list) and decoded else decoded
    ids = first.token_ids or first.tokens if isinstance(first, _Answer) else None
    if ids is None or not isinstance(first, _Answer):
        raise ValueError("answer without token ids")
    try:
        return RenderedTokens(np.array(ids, dtype=np.uint32), _media(first.features))
    except OverflowError:
        raise ValueError("token ids beyond 32 bits") from None


def _media(features: _Features | None) -> tuple[Media, ...]:
    """The media in the order of their places. Raises ValueError where one has no hash: it could be any."""
    if features is None or not features.mm_placeholders:
        return ()
    items = []
    for kind, places in features.mm_placeholders.items():
        hashes = (features.mm_hashes or {}).get(kind) or []
        for place, hash_ in zip(places, hashes, strict=True):
            if not hash_:
                raise ValueError("media without a hash")
            items.append(Media(id=hash_, offset=place.offset))
    return tuple(sorted(items, key=lambda item: item.offset))
