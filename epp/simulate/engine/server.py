"""The worker's HTTP interface."""

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import generate_latest

from epp.simulate.engine.answers import answer_text
from epp.simulate.engine.cache import Sequence
from epp.simulate.engine.engine import Engine, Run
from epp.simulate.engine.events import EventsConfig, Publisher
from epp.simulate.engine.metrics import engine_registry
from epp.simulate.engine.requests import Asked, RequestError, decode_body, prompt_tokens, understand
from epp.simulate.engine.sidecar import Sidecar, SidecarConfig
from epp.simulate.engine.tokens import Answer, ModelText

Json = dict[str, object]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Routes of one simulated worker."""

    def __init__(
        self,
        engine: Engine,
        text: ModelText,
        publisher: Publisher,
        events: EventsConfig,
        sidecar: SidecarConfig | None = None,
    ) -> None:
        self._engine = engine
        self._text = text
        self._publisher = publisher
        self._events = events
        self._sidecar = Sidecar(sidecar or SidecarConfig())
        self._registry = engine_registry(engine)

    def application(self, *, debug: bool) -> web.Application:
        """The aiohttp application; `debug` adds /debug/cache."""
        app = web.Application(client_max_size=64 << 20, middlewares=[_errors])
        app.on_cleanup.append(self._stop)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._reset)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/kv_event_sources", self._event_sources)
        if debug:
            app.router.add_get("/debug/cache", self._debug_cache)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        raw = await request.read()
        transferred = await self._sidecar.admit(request.headers, request.path, raw)
        config = self._engine.config
        asked = await asyncio.to_thread(
            understand, raw, self._text, chat=chat, model=config.model, loras=config.loras, room=config.max_tokens
        )
        answer = self._text.answer(answer_text(raw, asked.answer_tokens), asked.answer_tokens)
        exchange = _Exchange(self._engine, asked, answer, chat=chat, transferred=transferred)
        return await (exchange.stream(request) if asked.body.stream else exchange.whole())

    async def _stop(self, _application: web.Application) -> None:
        await self._sidecar.stop()

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = decode_body(await request.read())
        tokens = prompt_tokens(body, self._text, chat=body.messages is not None)
        return web.json_response(
            {"count": len(tokens), "max_model_len": self._engine.config.max_tokens, "tokens": tokens}
        )

    async def _reset(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self._engine.reset() else 409)

    async def _models(self, _request: web.Request) -> web.Response:
        config = self._engine.config
        models = [{"id": config.model, "object": "model", "max_model_len": config.max_tokens, "parent": None}]
        models += [{"id": lora, "object": "model", "parent": config.model} for lora in config.loras]
        return web.json_response({"object": "list", "data": models})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), content_type="text/plain")

    async def _event_sources(self, _request: web.Request) -> web.Response:
        if self._publisher.port is None:
            return web.json_response({})
        replay = self._publisher.replay_port
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self._publisher.port}",
            "replay_endpoint": None if replay is None else f"tcp://*:{replay}",
            "buffer_steps": self._events.buffer_steps,
            "topic": self._events.topic,
        }
        return web.json_response({str(self._engine.config.rank): source})

    async def _debug_cache(self, _request: web.Request) -> web.Response:
        blocks = [
            {
                "hash": block.hash,
                "parent": block.parent,
                "tokens": block.tokens,
                "copies": block.copies,
                "lora": block.namespace.lora,
                "salt": block.namespace.salt,
            }
            for block in self._engine.cache.residents()
        ]
        return web.json_response({"block_size": self._engine.cache.block_size, "blocks": blocks})


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        kind = "NotFoundError" if error.status == 404 else "BadRequestError"
        body = {"error": {"message": str(error), "type": kind, "param": None, "code": error.status}}
        return web.json_response(body, status=error.status)


class _Exchange:
    """One request being answered, in OpenAI's forms."""

    def __init__(self, engine: Engine, asked: Asked, answer: Answer, *, chat: bool, transferred: bool) -> None:
        self._engine = engine
        self._asked = asked
        self._answer = answer
        self._chat = chat
        self._transferred = transferred
        self._sequence = Sequence(list(asked.tokens), engine.cache.block_size, asked.namespace)
        self._finish = "length" if len(answer.ids) >= asked.answer_tokens else "stop"
        kind = "chat.completion" if chat else "text_completion"
        self._head: Json = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if chat and asked.body.stream else kind,
            "created": int(time.time()),
            "model": asked.body.model or engine.config.model,
        }

    async def whole(self) -> web.Response:
        """The answer in one piece, when all of it exists."""
        async with self._engine.run(self._sequence, self._answer.ids, transferred=self._transferred) as run:
            async for _ in run.tokens():
                pass
        text = "".join(self._answer.pieces)
        said: Json = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": self._finish}
        return web.json_response({**self._head, "choices": [choice], "usage": self._usage(run)})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The answer as server-sent events; the headers leave before prefill is done, as vLLM's do."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        async with self._engine.run(self._sequence, self._answer.ids, transferred=self._transferred) as run:
            async for start, end in run.tokens():
                opening = self._event(self._delta("", role=True)) if self._chat and start == 0 else b""
                last = end == len(self._answer.ids)
                text = "".join(self._answer.pieces[start:end])
                await response.write(opening + self._event(self._delta(text), self._finish if last else None))
        ending = b"data: [DONE]\n\n"
        if self._asked.body.include_usage:
            ending = _sse({**self._head, "choices": [], "usage": self._usage(run)}) + ending
        await response.write(ending)
        await response.write_eof()
        return response

    def _delta(self, text: str, *, role: bool = False) -> Json:
        if not self._chat:
            return {"text": text}
        return {"delta": {"role": "assistant", "content": text} if role else {"content": text}}

    def _event(self, said: Json, finish: str | None = None) -> bytes:
        return _sse({**self._head, "choices": [{"index": 0, **said, "finish_reason": finish}]})

    def _usage(self, run: Run) -> Json:
        prompt, completion = run.prompt_tokens, len(self._answer.ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": run.cached_tokens},
        }


def _sse(event: Json) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
