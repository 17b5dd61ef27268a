"""The watch against a server that answers by script: forms of failure that a healthy API server seldom shows."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from epp.endpoints.kubernetes.client import KubernetesClient
from epp.endpoints.kubernetes.objects import Pod
from epp.endpoints.kubernetes.watch import Listed, Put, Removed, Resource, Timing, follow
from epp.endpoints.source import Source

TIMING = Timing(
    list_silence=5, watch=5, first_watch=1, watch_silence=5, first_pause=0.001, longest_pause=0.01, absent_pause=0.02
)
GONE = {"kind": "Status", "code": 410, "message": "too old resource version"}


def named(name: str) -> dict:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}, "status": {}}


class Script:
    """An API server that plays back one answer per request; when all are played, watches live in silence."""

    def __init__(self) -> None:
        self.lists: list[object] = []
        self.watches: list[object] = []
        self.listed: list[dict] = []
        self.lives: list[int] = []
        """What each watch asked for, in seconds."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.listed.append(dict(request.query))
            return self._answer(self.lists.pop(0) if self.lists else ["a"])
        self.lives.append(int(request.query["timeoutSeconds"]))
        if not self.watches:
            await asyncio.sleep(self.lives[-1])
        answer = self.watches.pop(0) if self.watches else []
        if isinstance(answer, int):
            return self._answer(answer)
        response = web.StreamResponse()
        await response.prepare(request)
        for line in answer:
            await response.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        return response

    def _answer(self, answer: object) -> web.Response:
        if isinstance(answer, int):
            return web.json_response({"kind": "Status", "code": answer, "message": "scripted"}, status=answer)
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        names, *rest = answer if isinstance(answer, tuple) else (answer,)
        meta = {"resourceVersion": "1"} | ({"continue": rest[0]} if rest else {})
        return web.json_response({"metadata": meta, "items": [named(name) for name in names]})


@pytest.fixture
async def script(tmp_path: Path):
    played = Script()
    application = web.Application()
    application.router.add_get("/{path:.*}", played.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    played.client = KubernetesClient(str(tmp_path / "kubeconfig"))
    await played.client.open()
    yield played
    await played.client.close()
    await runner.cleanup()


async def changes(script: Script, count: int, source: Source | None = None, **resource: object) -> list[object]:
    """The first `count` changes that a follower sees, in short."""
    seen: list[object] = []
    target = Resource(path="/pods", kind=Pod, **resource)
    async with asyncio.timeout(20), aclosing(follow(script.client, target, source or Source("pods"), TIMING)) as stream:
        async for change in stream:
            if isinstance(change, Listed):
                seen.append([found.metadata.name for found in change.objects])
            elif isinstance(change, Put):
                seen.append("+" + change.object.metadata.name)
            elif isinstance(change, Removed):
                seen.append("-" + change.name)
            if len(seen) == count:
                break
    return seen


async def test_a_list_and_then_its_changes(script: Script):
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "9"}}}
    script.lists = [["a", "b"]]
    script.watches = [
        [
            {"type": "ADDED", "object": named("a")},
            bookmark,
            {"type": "MODIFIED", "object": named("b")},
            {"type": "DELETED", "object": named("a")},
        ]
    ]
    assert await changes(script, 4) == [["a", "b"], "+a", "+b", "-a"]


async def test_a_young_watch_that_stays_silent_is_soon_followed_by_a_new_list(script: Script):
    script.lists = [404, ["a"], ["a", "b"]]
    assert await changes(script, 2) == [["a"], ["a", "b"]]
    assert script.lives == [1]


async def test_watches_that_end_well_live_longer_and_longer_until_one_fails(script: Script):
    script.watches = [[], [], [], [], [], 500, []]
    await changes(script, 8)
    assert script.lives == [1, 1, 3, 4, 4, 4, 1]


@pytest.mark.parametrize("form", [410, [{"type": "ERROR", "object": GONE}]])
async def test_410_in_either_form_means_one_new_list_each(script: Script, form: object):
    script.lists = [["a"], ["b"], ["c"], ["d"]]
    script.watches = [form, form, form, [{"type": "ADDED", "object": named("e")}]]
    source = Source("pods")
    assert await changes(script, 5, source) == [["a"], ["b"], ["c"], ["d"], "+e"]
    assert len(script.listed) == 4
    assert source.failures == 0, "410 is normal in operation"


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n',
        b'{"type": "DELETED", "object": {}}\n',
        b"x" * 6_000_000 + b"\n",
    ],
)
async def test_a_line_that_makes_no_sense_means_a_new_list(script: Script, line: bytes):
    script.lists = [["a"], ["b"]]
    script.watches = [[line]]
    source = Source("pods")
    assert await changes(script, 2, source) == [["a"], ["b"]]
    assert source.failures == 1


async def test_one_strange_object_does_not_hide_the_others(script: Script):
    strange = {"metadata": {"name": 7}}
    script.lists = [json.dumps({"metadata": {}, "items": [named("a"), strange, named("b")]}).encode()]
    unknown = {"type": "UNKNOWN", "object": {}}
    script.watches = [[{"type": "ADDED", "object": strange}, unknown, {"type": "ADDED", "object": named("c")}]]
    assert await changes(script, 2) == [["a", "b"], "+c"]


async def test_pages_are_one_list(script: Script):
    script.lists = [(["a", "b"], "more"), (["c"], "yet more"), ["d"]]
    assert await changes(script, 1, page=2, label_selector="app=x") == [["a", "b", "c", "d"]]
    assert [query.get("continue") for query in script.listed] == [None, "more", "yet more"]
    assert all(query["labelSelector"] == "app=x" for query in script.listed)


async def test_a_continue_token_that_expired_begins_the_list_anew(script: Script):
    script.lists = [(["a"], "more"), 410, ["b"]]
    assert await changes(script, 1) == [["b"]]


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_refusals_are_told_and_retried(script: Script, status: int):
    script.lists = [status, status, ["a"]] if status != 401 else [401, 401, ["a"]]
    script.watches = [[{"type": "ADDED", "object": named("b")}]]
    source = Source("pods")
    assert await changes(script, 2, source) == [["a"], "+b"]
    assert source.failures >= 1
    assert source.error == ""
