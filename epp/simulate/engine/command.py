"""`epp simulate engine`: the command line of one simulated worker."""

import argparse
import asyncio
import json
import signal
import sys

import zmq
from aiohttp import web

from epp.simulate.engine.cache import BlockCache
from epp.simulate.engine.engine import Engine, EngineConfig
from epp.simulate.engine.events import EventEncoder, EventsConfig, EventsForm, Publisher
from epp.simulate.engine.server import Server
from epp.simulate.engine.sidecar import SidecarConfig, SidecarKind
from epp.simulate.engine.tokens import ModelText, TokensError


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; see `epp.simulate.engine.arguments` for the arguments."""
    try:
        text = ModelText(arguments.tokenizer, arguments.chat_template)
    except (TokensError, OSError) as error:
        print(f"epp simulate engine: --tokenizer: {error}", file=sys.stderr)  # noqa: T201 - a command speaks
        return 2
    try:
        asyncio.run(_serve(arguments, text))
    except (OSError, zmq.ZMQError) as error:
        print(f"epp simulate engine: cannot listen: {error}", file=sys.stderr)  # noqa: T201
        return 3
    return 0


async def _serve(arguments: argparse.Namespace, text: ModelText) -> None:
    config = EngineConfig(
        model=arguments.model,
        loras=tuple(arguments.lora),
        blocks=arguments.blocks,
        block_size=arguments.block_size,
        prefill_tokens_per_second=arguments.prefill_tokens_per_second,
        step_tokens=arguments.step_tokens,
        inter_token_seconds=arguments.inter_token_ms / 1000,
        stream_interval=arguments.stream_interval,
        rank=arguments.rank,
    )
    events = EventsConfig(
        host=arguments.host,
        port=arguments.events_port,
        replay_port=arguments.replay_port,
        form=EventsForm(arguments.events_form),
        replay_frames=arguments.replay_frames,
        topic=arguments.topic,
        buffer_steps=arguments.buffer_steps,
    )
    publisher = Publisher(events, EventEncoder(events.form, config.block_size, config.rank))
    engine = Engine(config, BlockCache(config.blocks, config.block_size), publisher)
    sidecar = SidecarConfig(
        kind=SidecarKind(arguments.sidecar),
        instance_id=arguments.instance_id,
        prefill_workers=dict(arguments.prefill_worker),
    )
    server = Server(engine, text, publisher, events, sidecar)
    # A client that leaves ends its request here too, as in a real engine.
    runner = web.AppRunner(server.application(debug=arguments.debug), access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        publisher.start()
        site = web.TCPSite(runner, arguments.host, arguments.port)
        await site.start()
        ports = {"port": runner.addresses[0][1], "events_port": publisher.port, "replay_port": publisher.replay_port}
        print(json.dumps(ports), flush=True)  # noqa: T201 - tells a parent that it may begin, and where
        await _stop_signal()
    finally:
        await runner.cleanup()
        await publisher.stop()


async def _stop_signal() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
