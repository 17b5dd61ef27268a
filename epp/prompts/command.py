"""`epp tokens`: what the EPP makes of a request, and whether an engine makes the same of it."""

import argparse
import asyncio
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from epp.kvcache.keys import PrefixKeys
from epp.prompts.apis import NotUnderstoodError, Understood, understand
from epp.prompts.asked import ChatPrompt, TextPrompt
from epp.prompts.model import WithoutTokensError
from epp.prompts.prompt import TokenIds
from epp.prompts.reader import PromptReader
from epp.prompts.render_service import RenderService, RenderServiceLimits
from epp.prompts.side_process import SideProcess
from epp.prompts.template_model import TemplateModel
from epp.settings import Settings

_PATIENCE_MS = 60_000.0
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `epp tokens` prints."""

    api: str
    model: str
    namespace: str
    source: str
    """Where the ids come from; text: they stand for four bytes of text each."""
    without: list[str]
    """Why ids are missing."""
    text: str | None
    tokens: list[int]
    block_keys: list[str]
    """One for each full block; the same for the same beginning in the same namespace, in every run."""
    engine_tokens: list[int] | None = None
    difference: int | None = field(default=None)
    """Place of the first token that differs from the engine's."""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the report; 0 fine, 1 the engine differs, 2 the body is none, 3 the engine cannot be asked."""
    try:
        body = sys.stdin.buffer.read() if arguments.body == "-" else Path(arguments.body).read_bytes()
        understood = understand(arguments.path, "", body)
    except OSError as error:
        return _complain(2, f"{arguments.body}: {error.strerror}")
    except NotUnderstoodError as error:
        return _complain(2, f"{arguments.body}: {error}{': ' if error.problem else ''}{error.problem}")
    try:
        report = asyncio.run(_report(understood, body, arguments, settings))
    except WithoutTokensError as error:
        return _complain(3, f"{arguments.compare}: no token ids from there ({error})")
    _print(report, as_json=arguments.json)
    return 0 if report.difference is None else 1


async def _report(understood: Understood, body: bytes, arguments: argparse.Namespace, settings: Settings) -> Report:
    patient = {"tokenize_budget_ms": _PATIENCE_MS, "render_budget_ms": _PATIENCE_MS, "render_url": None}
    reader = PromptReader.from_settings(settings.model_copy(update=patient), CollectorRegistry())
    try:
        request = await reader.read(path=arguments.path, content_type="", body=body, request_id="")
        text = await _text(reader, understood)
    finally:
        await reader.stop()
    prompt = request.prompt
    engine = None if arguments.compare is None else await _engine(arguments.compare, understood, body)
    keys = PrefixKeys(bytes(32)).of_prompt(prompt.tokens, prompt.namespace, settings.block_size, prompt.media)
    return Report(
        api=request.api.value,
        model=request.model,
        namespace=prompt.namespace,
        source=prompt.source.value,
        without=list(reader.status().without_tokens),
        text=text,
        tokens=prompt.tokens.tolist(),
        block_keys=[f"{key:016x}" for key in keys.tolist()],
        engine_tokens=None if engine is None else engine.tolist(),
        difference=None if engine is None else _difference(prompt.tokens, engine),
    )


async def _text(reader: PromptReader, understood: Understood) -> str | None:
    """The text that is tokenised, where there is one."""
    prompt = understood.asked.prompt
    if isinstance(prompt, TextPrompt):
        return prompt.text
    model = reader.models.find(understood.asked.model)
    if not isinstance(prompt, ChatPrompt) or not isinstance(model, TemplateModel):
        return None
    try:
        return await model.render(prompt)
    except WithoutTokensError:
        return None


async def _engine(url: str, understood: Understood, body: bytes) -> TokenIds:
    """Raises WithoutTokensError."""
    patience = _PATIENCE_MS / 1000
    process = SideProcess(patience)
    service = RenderService(lambda: [url.rstrip("/")], RenderServiceLimits(budget_seconds=patience), process)
    try:
        return (await service.tokens(understood.api, body)).tokens
    finally:
        await service.stop()
        process.close()


def _difference(ours: TokenIds, theirs: TokenIds) -> int | None:
    for place, (one, two) in enumerate(zip(ours.tolist(), theirs.tolist(), strict=False)):
        if one != two:
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        _say(msgspec.json.encode(asdict(report)).decode())
        return
    _say(
        f"api {report.api}, model {report.model or '-'}, namespace {report.namespace or '-'}, ids from {report.source}"
    )
    for reason in report.without:
        _say(f"ids are missing: {reason}")
    if report.text is not None:
        _say(f"--- text\n{report.text}\n---")
    _say(f"{len(report.tokens)} tokens: {' '.join(map(str, report.tokens))}")
    _say(f"{len(report.block_keys)} full blocks: {' '.join(report.block_keys)}")
    if report.engine_tokens is None:
        return
    if report.difference is None:
        _say(f"the engine has the same {len(report.engine_tokens)} tokens")
        return
    here = slice(max(0, report.difference - _SHOWN), report.difference + _SHOWN)
    _say(f"the engine differs from token {report.difference} on")
    _say(f"  here:   {report.tokens[here]}\n  engine: {report.engine_tokens[here]}")


def _say(text: str) -> None:
    print(text)  # noqa: T201 - a command speaks to a person


def _complain(code: int, text: str) -> int:
    print(f"epp tokens: {text}", file=sys.stderr)  # noqa: T201
    return code
