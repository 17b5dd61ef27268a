"""A model with a chat template and a tokenizer: nearly all of them."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from epp.prompts.asked import ChatPrompt
from epp.prompts.chat_template import ChatTemplate, RenderError
from epp.prompts.conversation import UnknownPartError, conversation
from epp.prompts.cuts import Cutter, safe_rules
from epp.prompts.encoding import CachedEncoding, Encoded, EncodingThreads
from epp.prompts.model import WithoutTokensError
from epp.prompts.model_files import ModelFiles
from epp.prompts.prompt import TokenSource

_MOST_TURN_MARKS = 64


class TemplateModel:
    """Renders by template, then encodes."""

    source = TokenSource.TOKENIZER

    def __init__(self, files: ModelFiles, threads: EncodingThreads, *, origin: str = "") -> None:
        self.origin = origin
        """Where the files come from."""
        self._files = files
        self.encoding = CachedEncoding(files.encoder, Cutter(safe_rules(files.encoder, _turn_marks(files))), threads)

    @property
    def has_template(self) -> bool:
        """Whether chat requests get tokens."""
        return self._files.templates is not None

    async def chat(self, prompt: ChatPrompt) -> Encoded:
        """Raises WithoutTokensError."""
        return await self.text(self.render(prompt), prompt.add_special_tokens)

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

    def render(self, prompt: ChatPrompt) -> str:
        """The text that the model sees. Raises WithoutTokensError."""
        template = self._template(prompt)
        try:
            return template.render(
                conversation(prompt.messages, parts=template.reads_parts),
                tools=prompt.tools,
                documents=prompt.documents,
                variables=prompt.variables,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
            )
        except UnknownPartError:
            raise WithoutTokensError("not_text") from None
        except (RenderError, RecursionError):
            raise WithoutTokensError("template_refused") from None

    def _template(self, prompt: ChatPrompt) -> ChatTemplate:
        if prompt.template is not None:
            raise WithoutTokensError("template_in_request")
        if self._files.templates is None:
            raise WithoutTokensError("no_chat_template")
        return self._files.templates.for_request(has_tools=prompt.tools is not None)


def _turn_marks(files: ModelFiles) -> Iterable[str]:
    """Added tokens that the templates write."""
    templates = files.templates
    text = "" if templates is None else templates.default.text + (templates.tool_use.text if templates.tool_use else "")
    values = set(files.special_tokens.values())
    marks = [t.content for t in files.encoder.added_tokens if t.content and (t.content in text or t.content in values)]
    return marks[:_MOST_TURN_MARKS]
