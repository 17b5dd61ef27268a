"""A model with a chat template and a tokenizer: nearly all of them."""

import secrets
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from epp.prompts.approximate import MEDIA_TOKENS
from epp.prompts.asked import ChatPrompt
from epp.prompts.chat_template import ChatTemplate, RenderError
from epp.prompts.common import CHARACTERS_PER_TOKEN
from epp.prompts.conversation import UnknownPartError
from epp.prompts.cuts import Cutter, safe_rules
from epp.prompts.encoding import CachedEncoding, Encoded, EncodingThreads
from epp.prompts.model import WithoutTokensError
from epp.prompts.model_files import ModelFiles
from epp.prompts.prompt import TokenSource
from epp.prompts.side_child import render
from epp.prompts.side_process import SideProcess

_MOST_TURN_MARKS = 64
_MEDIA_MARK = f"\ue000{secrets.token_hex(8)}\ue000"
"""Stands for media in rendered text; nobody outside can write it."""


class TemplateModel:
    """Renders by template, then encodes."""

    source = TokenSource.TOKENIZER

    def __init__(
        self,
        files: ModelFiles,
        threads: EncodingThreads,
        process: SideProcess,
        *,
        template_in_request: bool = False,
    ) -> None:
        self._files = files
        self._template_in_request = template_in_request
        self._process = process
        self.encoding = CachedEncoding(files.encoder, Cutter(safe_rules(files.encoder, _turn_marks(files))), threads)

    @property
    def has_template(self) -> bool:
        """Whether chat requests get tokens."""
        return self._files.templates is not None

    @property
    def cache_rules(self) -> tuple[str, ...]:
        """Names of the rules by which texts are cut."""
        return self.encoding.rules

    @property
    def cache_differed(self) -> bool:
        """Whether a check found that cuts change the tokens."""
        return self.encoding.differed

    async def chat(self, prompt: ChatPrompt) -> Encoded:
        """Raises WithoutTokensError. A prompt with media is known up to the first of them, and late for "media"."""
        return await self.text(await self.render(prompt), prompt.add_special_tokens)

    async def text(self, text: str, add_special_tokens: bool) -> Encoded:
        """Raises WithoutTokensError."""
        before, mark, behind = text.partition(_MEDIA_MARK)
        encoded = await self._text(before, add_special_tokens)
        if not mark:
            return encoded
        media = 1 + behind.count(_MEDIA_MARK)
        unseen = len(behind) - (media - 1) * len(_MEDIA_MARK) + media * MEDIA_TOKENS * CHARACTERS_PER_TOKEN
        return Encoded(encoded.tokens, encoded.unseen_characters + unseen, encoded.late or "media")

    def template_for(self, has_tools: bool, in_request: str | None) -> tuple[str, dict[str, str], str]:
        """The template for a request, the special tokens that it knows, and the mark for media.

        `in_request`: the template that the request brought. Raises WithoutTokensError.
        """
        special_tokens = dict(self._files.special_tokens)
        if in_request is not None:
            if not self._template_in_request:
                raise WithoutTokensError("template_in_request")
            return in_request, special_tokens, _MEDIA_MARK
        return self._template(has_tools).text, special_tokens, _MEDIA_MARK

    async def _text(self, text: str, add_special_tokens: bool) -> Encoded:
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
        if prompt.template is not None:
            template, special_tokens, mark = self.template_for(prompt.tools is not None, prompt.template)
            return await self._process.render(template, special_tokens, prompt, mark)
        try:
            return render(self._template(prompt.tools is not None), prompt, _MEDIA_MARK)
        except UnknownPartError:
            raise WithoutTokensError("not_text") from None
        except (RenderError, RecursionError):
            raise WithoutTokensError("template_refused") from None

    def _template(self, has_tools: bool) -> ChatTemplate:
        if self._files.templates is None:
            raise WithoutTokensError("no_chat_template")
        return self._files.templates.for_request(has_tools=has_tools)


def _turn_marks(files: ModelFiles) -> Iterable[str]:
    """Added tokens that the templates write."""
    templates = files.templates
    text = "" if templates is None else templates.default.text + (templates.tool_use.text if templates.tool_use else "")
    values = set(files.special_tokens.values())
    marks = [t.content for t in files.encoder.added_tokens if t.content and (t.content in text or t.content in values)]
    return marks[:_MOST_TURN_MARKS]
