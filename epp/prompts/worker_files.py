"""The tokenizer files of a worker that serves them over HTTP, under a URL such as `http://workers:8080/llama`.

All files are fetched whole and within bounds before one is used. Later looks ask for headers only; where these are not
known, as behind a Service whose workers stored their files at different times, the contents decide.
"""

import asyncio
import hashlib
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp

from epp.prompts.model_source import TOKENIZER_FILES, ModelSourceError

_NAMES = (
    *(name for name in TOKENIZER_FILES if "*" not in name),
    *("additional_chat_templates/tool_use.jinja", "tokenizer.model", "tokenizer.model.v3", "tokenizer.model.v7"),
)
_ONE_OF = ("tokenizer.json", "tekken.json", "tokenizer.model", "tokenizer.model.v3", "tokenizer.model.v7")
_ABSENT = frozenset({404, 410})
_NO_HEADERS_ALONE = frozenset({405, 501})
_MOST_KNOWN = 1024
_PIECE_BYTES = 64 * 1024

_Result = TypeVar("_Result")
_Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """Bounds of one look at a worker's files."""

    most_bytes: int
    """Of all files together."""
    seconds: float


class WorkerFiles:
    """What is served under `url`. Methods block: for threads, or before there is an event loop to hold up."""

    def __init__(self, url: str, limits: DownloadLimits) -> None:
        self.url = url.rstrip("/")
        self._limits = limits
        self._files: Mapping[str, bytes] = {}
        self._digest = ""
        self._known: set[_Headers] = set()
        """Headers under which the worker is known to serve what `_digest` is of."""

    def stamp(self) -> str:
        """A digest of the files as they are served now. Raises ModelSourceError."""
        if self._known:
            headers = self._within_limits(self._ask_headers)
            if headers in self._known:
                return self._digest
        files, headers = self._within_limits(self._fetch)
        digest = hashlib.sha256(b"".join(_framed(name, files[name]) for name in sorted(files))).hexdigest()
        if digest != self._digest or len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        if digest != self._digest:
            self._digest, self._files = digest, files
        if headers is not None:
            self._known.add(headers)
        return digest

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """The files, on disk for as long as they are loaded, then forgotten. Raises ModelSourceError."""
        files = self._files or self._within_limits(self._fetch)[0]
        self._files = {}
        with tempfile.TemporaryDirectory(prefix="epp-tokenizer-") as made:
            for name, content in files.items():
                path = Path(made) / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
            yield Path(made)

    def _within_limits(self, ask: Callable[[aiohttp.ClientSession], Awaitable[_Result]]) -> _Result:
        async def session() -> _Result:
            timeout = aiohttp.ClientTimeout(total=None)
            async with asyncio.timeout(self._limits.seconds), aiohttp.ClientSession(timeout=timeout) as session:
                return await ask(session)

        try:
            with ThreadPoolExecutor(1, "tokenizer files") as thread:  # the caller's thread may have a loop already
                return thread.submit(lambda: asyncio.run(session())).result()
        except TimeoutError:
            raise ModelSourceError(f"{self.url}: not all files within {self._limits.seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ModelSourceError(f"{self.url}: {str(error) or type(error).__name__}") from None

    async def _ask_headers(self, session: aiohttp.ClientSession) -> _Headers | None:
        """The headers that change with the files; None where they tell nothing."""
        found: dict[str, str] = {}
        for name in _NAMES:
            async with session.head(f"{self.url}/{name}", allow_redirects=False) as answer:
                if answer.status in _NO_HEADERS_ALONE:
                    return None
                if self._has(name, answer):
                    found[name] = _validator(answer)
        return _all_told(found)

    async def _fetch(self, session: aiohttp.ClientSession) -> tuple[dict[str, bytes], _Headers | None]:
        files: dict[str, bytes] = {}
        found: dict[str, str] = {}
        left = self._limits.most_bytes
        for name in _NAMES:
            async with session.get(f"{self.url}/{name}", allow_redirects=False) as answer:
                if self._has(name, answer):
                    files[name] = await self._body(answer, left)
                    left -= len(files[name])
                    found[name] = _validator(answer)
        if not any(name in files for name in _ONE_OF):
            raise ModelSourceError(f"{self.url}: serves none of {', '.join(_ONE_OF)}")
        return files, _all_told(found)

    async def _body(self, answer: aiohttp.ClientResponse, left: int) -> bytes:
        body = bytearray()
        async for piece in answer.content.iter_chunked(_PIECE_BYTES):
            body += piece
            if len(body) > left:
                raise ModelSourceError(f"{self.url}: more than {self._limits.most_bytes} bytes of files")
        return bytes(body)

    def _has(self, name: str, answer: aiohttp.ClientResponse) -> bool:
        """Whether the file is there. Raises ModelSourceError for an answer that is no file."""
        if answer.status in _ABSENT:
            return False
        if answer.status != 200:
            raise ModelSourceError(f"{self.url}/{name}: answered with status {answer.status}")
        if answer.content_type == "text/html":
            raise ModelSourceError(f"{self.url}/{name}: answered with a web page")
        return True


def _framed(name: str, content: bytes) -> bytes:
    return f"{name} {len(content)} ".encode() + hashlib.sha256(content).digest()


def _validator(answer: aiohttp.ClientResponse) -> str:
    """What HTTP says of the version; empty: nothing."""
    headers = answer.headers
    version = headers.get("etag", "") or headers.get("last-modified", "")
    return f"{version} {headers.get('content-length', '')}" if version else ""


def _all_told(found: Mapping[str, str]) -> _Headers | None:
    return tuple(found.items()) if all(found.values()) else None
