"""What the bytes of a response show: the first token, the usage and the end. They are read, never changed."""

import json
import re

from epp.extproc.metadata import Headers
from epp.scheduling.outcome import Usage

_USAGE = b'"usage"'
_MAX_USAGE = 8192
"""Bytes after the key in which the usage object must end."""
_MAX_SILENT = 65536
"""Bytes of an event stream after which its first token is taken to have come, in whatever form."""

_TOKEN = re.compile(
    rb'"(?:content|text|reasoning|reasoning_content|delta|thinking|partial_json|arguments|refusal)"\s{0,4}:\s{0,4}"[^"]'
    rb'|"tool_calls"\s{0,4}:\s{0,4}\[\s{0,4}\{'
)
"""A field that carries generated text, not empty. Quotes inside JSON strings are escaped, so no text can look so."""
_TOKEN_SPAN = 64
"""More bytes than the pattern can match."""

_decode = json.JSONDecoder().raw_decode


class ResponseWatch:
    """Follows one response through chunks that may be cut anywhere.

    Bodies are looked into only when the status is 200 and the type is JSON or an event stream, not compressed.
    """

    def __init__(self) -> None:
        self.begun = False
        self.ended = False
        self.served = ""
        """The endpoint that the gateway says answered; empty: it does not say."""
        self.status: int | None = None
        self.streamed = False
        """Whether the answer is an event stream."""
        self.load_report = ""
        """What the engine says of its load in ORCA's headers."""
        self.first_token = False
        """Whether generated text has been seen (event stream) or the answer has begun to arrive (anything else)."""
        self.events = 0
        """Events of the stream so far: about as many as output tokens."""
        self._readable = False
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None
        self._completion_tokens: int | None = None
        self._tail = b""
        self._capture: bytearray | None = None
        self._silent = 0

    @property
    def usage(self) -> Usage | None:
        """What the engine reported so far."""
        prompt, cached, completion = self._prompt_tokens, self._cached_tokens, self._completion_tokens
        if prompt is None and cached is None and completion is None:
            return None
        return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)

    def headers(self, headers: Headers, *, served: str = "") -> None:
        """The response headers, and what the gateway says of who answered."""
        self.begun = True
        self.served = served
        status = headers.get(":status")
        self.status = int(status) if status.isascii() and status.isdigit() else None
        content_type = headers.get("content-type").lower()
        self.streamed = content_type.startswith("text/event-stream")
        self.load_report = headers.get("endpoint-load-metrics") or headers.get("endpoint-load-metrics-bin")
        plain = headers.get("content-encoding").lower() in ("", "identity")
        self._readable = self.status == 200 and plain and (self.streamed or "json" in content_type)

    def body(self, chunk: bytes) -> None:
        """The next bytes of the body."""
        if not chunk:
            return
        if not self._readable:
            self.first_token = True
            return
        if self.streamed:
            self.events += chunk.count(b"data:")
        if not self.first_token:
            self._look_for_token(chunk)
        self._look_for_usage(chunk)
        self._tail = chunk[-_TOKEN_SPAN:] if len(chunk) >= _TOKEN_SPAN else (self._tail + chunk)[-_TOKEN_SPAN:]

    def _look_for_token(self, chunk: bytes) -> None:
        self._silent += len(chunk)
        self.first_token = (
            not self.streamed or self._silent > _MAX_SILENT or _TOKEN.search(self._tail + chunk) is not None
        )

    def _look_for_usage(self, chunk: bytes) -> None:
        """Collect what follows each `"usage"` key until its object is whole."""
        if self._capture is not None:
            self._capture += chunk
        else:
            text = self._tail[1 - len(_USAGE) :] + chunk
            start = text.find(_USAGE)
            if start < 0:
                return
            self._capture = bytearray(text[start + len(_USAGE) :])
        self._read_captured()

    def _read_captured(self) -> None:
        """Read the object behind the key if it is whole, then look for the next key in what was captured with it."""
        while self._capture is not None:
            captured = self._capture
            text = captured[:_MAX_USAGE].decode("utf-8", "replace").lstrip(" \t\r\n:")
            if text.startswith("{"):
                try:
                    usage, _ = _decode(text)
                except (ValueError, RecursionError):
                    if len(captured) < _MAX_USAGE:
                        return
                else:
                    self._take(usage)
            elif not text and len(captured) < _MAX_USAGE:
                return
            following = captured.find(_USAGE)
            self._capture = captured[following + len(_USAGE) :] if following >= 0 else None

    def _take(self, usage: dict[str, object]) -> None:
        prompt = _count(usage, "prompt_tokens", "input_tokens")
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
        cached = _count(usage, "cache_read_input_tokens") if cached is None else cached
        completion = _count(usage, "completion_tokens", "output_tokens")
        self._prompt_tokens = self._prompt_tokens if prompt is None else prompt
        self._cached_tokens = self._cached_tokens if cached is None else cached
        self._completion_tokens = self._completion_tokens if completion is None else completion


def _count(usage: dict[str, object], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
