"""Large bodies: decoded and rendered in a process beside this one, so that they never hold the event loop."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec.structs import replace

from epp.prompts.apis import NotUnderstoodError, Understood
from epp.prompts.asked import AnyPrompt, Asked, Body, ChatPrompt, StandInPrompt, TextPrompt, TokensPrompt
from epp.prompts.common import CHARACTERS_PER_TOKEN
from epp.prompts.model import Model, WithoutTokensError
from epp.prompts.models import Models
from epp.prompts.prompt import TokenIds
from epp.prompts.side_child import Answer, Conversation, Render, StandIns, Text, Understand
from epp.prompts.side_process import SideProcess
from epp.prompts.template_model import TemplateModel

SMALL_BYTES = 16 * 1024
"""A body of so few bytes holds too few values to matter, whatever it is."""
_MOST_COMMAS = 1024
_MOST_VALUES = 8192
_OF_A_WORD = np.zeros(256, dtype=bool)
_OF_A_WORD[[*b'\\"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz', *range(128, 256)]] = True

_CHAT = msgspec.msgpack.Decoder(ChatPrompt)


def is_large(body: Body, most_bytes: int) -> bool:
    """Whether to decode `body` would take more than about a millisecond: by its size, or by how many values it has.

    Values are counted by quotes that are not escaped, and by commas that do not stand in prose.
    """
    if len(body) <= SMALL_BYTES:
        return False
    if len(body) > most_bytes:
        return True
    data = np.frombuffer(body, dtype=np.uint8)
    is_comma = data[:-2] == ord(",")
    if np.count_nonzero(is_comma) <= _MOST_COMMAS:
        return False
    behind_commas = np.flatnonzero(is_comma) + 1
    quotes = np.count_nonzero((data[1:] == ord('"')) & (data[:-1] != ord("\\")))
    behind = data[behind_commas]
    behind = np.where(behind == ord(" "), data[behind_commas + 1], behind)
    return bool(quotes + np.count_nonzero(~_OF_A_WORD[behind]) > _MOST_VALUES)


@dataclass(frozen=True, slots=True)
class LargeBodies:
    """Reads them for `models`; `rewrite` names the model that shall serve requests for a name."""

    models: Models
    rewrite: Callable[[str], str]
    process: SideProcess

    async def understand(
        self, path: str, content_type: str, body: Body, *, tokens: bool = True
    ) -> tuple[Understood, str]:
        """As `understand`, with the conversation rendered already for the model that shall serve it; and that model.

        Without `tokens` the prompt is left out. Raises NotUnderstoodError, also when it takes too long: "render_late".
        """
        process = self.process
        try:
            async with process.turn():
                answer, _ = await process.answer(Understand(path, content_type, process.child_seconds), body)
                if answer.refused:
                    raise NotUnderstoodError(answer.refused, answer.problem)
                asked = Asked(**answer.asked)
                serving = self.rewrite(asked.model)
                if not tokens:
                    return Understood(answer.api, asked), serving
                prompt, left_out = await _prompt(answer, self.models.find(serving), process)
        except WithoutTokensError as reason:
            raise NotUnderstoodError(str(reason)) from None
        further = asked.further_tokens + left_out // CHARACTERS_PER_TOKEN
        return Understood(answer.api, replace(asked, prompt=prompt, further_tokens=further)), serving


async def _prompt(answer: Answer, found: Model | None, process: SideProcess) -> tuple[AnyPrompt | None, int]:
    """The prompt that the child keeps, and how many characters of it were left out. Raises WithoutTokensError."""
    seconds, stand_ins = process.child_seconds, None
    if not answer.prompt:
        return None, 0
    try:
        if answer.prompt == "TokensPrompt":
            _, ids = await process.ask(Text(seconds))
            return TokensPrompt(ids=np.frombuffer(ids, dtype=np.uint32)), 0
        if found is None:
            raise WithoutTokensError("no_tokenizer")
        if answer.prompt == "ChatPrompt":
            if not isinstance(found, TemplateModel):
                _, packed = await process.ask(Conversation(seconds))
                return _CHAT.decode(packed), 0
            template, special_tokens, mark = found.template_for(answer.has_tools, answer.template)
            rendered, text = await process.text(Render(template, special_tokens, mark, seconds))
            if mark in text:
                stand_ins = await _stand_ins(process)
        else:
            rendered, text = await process.text(Text(seconds))
    except WithoutTokensError as reason:
        return StandInPrompt(tokens=await _stand_ins(process), reason=str(reason)), 0
    special = answer.add_special_tokens
    prompt = TextPrompt(text=text, add_special_tokens=special, stand_ins=stand_ins)
    return prompt, rendered.left_out


async def _stand_ins(process: SideProcess) -> TokenIds:
    """What stands for the token ids of the prompt that the child keeps. Raises WithoutTokensError."""
    _, stand_ins = await process.ask(StandIns(process.child_seconds))
    return np.frombuffer(stand_ins, dtype=np.uint32)
