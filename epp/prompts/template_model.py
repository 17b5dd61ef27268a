"""A model with a chat template and a tokenizer: nearly all of them."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from epp.prompts.asked import ChatPrompt, Message
from epp.prompts.chat_template import RenderError
from epp.prompts.conversation import UnknownPartError
from epp.prompts.cuts import Cutter, safe_rules
from epp.prompts.encoding import CachedEncoding, Encoded, EncodingThreads
from epp.prompts.model import WithoutTokensError
from epp.prompts.model_files import ModelFiles
from epp.prompts.prompt import TokenSource
from epp.prompts.render_child import render
from epp.prompts.render_process import RenderProcess

_MOST_TURN_MARKS = 64
_MEDIA_MARK = f"\ue000{secrets.token_hex(8)}\ue000"
"""Stands for media in rendered text; nobody outside can write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """What is rendered on the event loop; anything larger goes to a process of its own."""

    inline_characters: int = 256 * 1024
    inline_messages: int = 400
    template_in_request: bool = False
    """Whether templates that come with requests are rendered, as with vLLM's `--trust-request-chat-template`."""


class TemplateModel:
    """Renders by template, then encodes."""

    source = TokenSource.TOKENIZER

    def __init__(
        self, files: ModelFiles, threads: EncodingThreads, limits: RenderLimits, process: RenderProcess, *, origin: str
    ) -> None:
        self.origin = origin
        """Where the files come from."""
        self._files = files
        self._limits = limits
        self._process = process
        self.encoding = CachedEncoding(files.encoder, Cutter(safe_rules(files.encoder, _turn_marks(files))), threads)

    @property
    def has_template(self) -> bool:
        """Whether chat requests get tokens."""
        return self._files.templates is not None

    @property
    def cache_rules(self) -> tuple[str, ...]:
        """Names of the rules by which texts are cut."""
        return tuple(rule.name for rule in self.encoding.cutter.rules)

    async def chat(self, prompt: ChatPrompt) -> Encoded:
        """Raises WithoutTokensError. A prompt with media is known up to the first of them, and late for "media"."""
        text = await self.render(prompt)
        before, mark, behind = text.partition(_MEDIA_MARK)
        encoded = await self.text(before, prompt.add_special_tokens)
        if not mark:
            return encoded
        return Encoded(encoded.tokens, encoded.unseen_characters + len(behind), encoded.late or "media")

    async def text(self, text: str, add_special_tokens: bool) -> Encoded:
        """Raises WithoutTokensError."""
        try:
            encoded = await self.encoding.encode(text)
        except UnicodeEncodeError:
            raise WithoutTokensError("not_unicode") from None
        encoder = self._files.encoder
        if not add_special_tokens or not (len(encoder.before) or len(encoder.after)):
            return encoded
        after = () if encoded.late else encoder.after
        return replace(encoded, tokens=np.concatenate([encoder.before, encoded.tokens, after], dtype=np.uint32))

    async def render(self, prompt: ChatPrompt) -> str:
        """The text that the model sees, with a mark for media. Raises WithoutTokensError."""
        special_tokens = dict(self._files.special_tokens)
        if prompt.template is not None:
            if not self._limits.template_in_request:
                raise WithoutTokensError("template_in_request")
            return await self._process.render(prompt.template, special_tokens, prompt, _MEDIA_MARK)
        if self._files.templates is None:
            raise WithoutTokensError("no_chat_template")
        template = self._files.templates.for_request(has_tools=prompt.tools is not None)
        if self._is_large(prompt):
            return await self._process.render(template.text, special_tokens, prompt, _MEDIA_MARK)
        try:
            return render(template, prompt, _MEDIA_MARK)
        except UnknownPartError:
            raise WithoutTokensError("not_text") from None
        except (RenderError, RecursionError):
            raise WithoutTokensError("template_refused") from None

    def _is_large(self, prompt: ChatPrompt) -> bool:
        if len(prompt.messages) > self._limits.inline_messages:
            return True
        return sum(map(_characters, prompt.messages)) > self._limits.inline_characters


def _characters(message: Message) -> int:
    """About how much text a message brings."""
    content = message.content or ""
    parts = [content] if isinstance(content, str) else content
    size = sum(len(part) if isinstance(part, str) else len(str(part.get("text") or "")) for part in parts)
    for call in message.tool_calls or ():
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, dict) else None
        size += len(arguments) if isinstance(arguments, str) else 0
    return size


def _turn_marks(files: ModelFiles) -> Iterable[str]:
    """Added tokens that the templates write."""
    templates = files.templates
    text = "" if templates is None else templates.default.text + (templates.tool_use.text if templates.tool_use else "")
    values = set(files.special_tokens.values())
    marks = [t.content for t in files.encoder.added_tokens if t.content and (t.content in text or t.content in values)]
    return marks[:_MOST_TURN_MARKS]
