"""Token ids of chunks of text, least recently used out first."""

from collections import OrderedDict
from sys import getsizeof
from threading import Lock
from typing import TypeAlias

from epp.prompts.prompt import TokenIds

Key: TypeAlias = tuple[int, str]
"""Which tokenizer, and the chunk itself: equal keys mean equal tokens, by comparison and not by a hash."""

_ENTRY_BYTES = 400
"""What an entry takes besides its characters and tokens: dict slot, key tuple, string and array headers."""


class ChunkCache:
    """Bounded by `limit` bytes, counted as the text and tokens held plus a fixed share per entry; for any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._lock = Lock()
        self._entries: OrderedDict[Key, TokenIds] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> TokenIds | None:
        """The chunk's tokens, which count as just used."""
        with self._lock:
            tokens = self._entries.get(key)
            if tokens is not None:
                self._entries.move_to_end(key)
            return tokens

    def put(self, key: Key, tokens: TokenIds) -> None:
        """Remember a chunk; one larger than a quarter of the whole cache is not worth its place."""
        size = _size(key, tokens)
        if size * 4 > self.limit:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = tokens
            self.bytes += size
            while self.bytes > self.limit:
                old, old_tokens = self._entries.popitem(last=False)
                self.bytes -= _size(old, old_tokens)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0


def _size(key: Key, tokens: TokenIds) -> int:
    return getsizeof(key[1]) + tokens.nbytes + _ENTRY_BYTES
