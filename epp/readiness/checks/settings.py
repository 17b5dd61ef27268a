"""Group F: whether EPP and workers agree on blocks, models and planes."""

import json
from collections.abc import Iterator

from epp.readiness.chain import Chain, is_ready
from epp.readiness.checks.sources import DYNAMO, OWN
from epp.readiness.rule import Group, NotApplicableError, Problem, check, warning
from epp.readiness.snapshot.core_objects import Pod
from epp.readiness.snapshot.objects import annotations_of, labels_of, name_of
from epp.readiness.words import first_of, flags_of, settings_of

BLOCK_SETTINGS = ("EPP_BLOCK_SIZE", "DYN_KV_CACHE_BLOCK_SIZE")
BLOCK_FLAGS = ("--block-size", "--page-size", "--kv-cache-block-size")
PLANES = {
    "event plane": (("DYN_EVENT_PLANE",), ("--event-plane",)),
    "request plane": (("DYN_REQUEST_PLANE",), ("--request-plane",)),
    "discovery backend": (("DYN_DISCOVERY_BACKEND",), ("--discovery-backend",)),
}


class Said:
    """All settings and flags of a pod's containers together."""

    def __init__(self, chain: Chain, pod: Pod) -> None:
        self.pod = pod
        self.settings: dict[str, str] = {}
        self.flags: dict[str, str] = {}
        for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
            self.settings |= settings_of(chain, pod, container)[0]
            self.flags |= flags_of(container)

    def one_of(self, settings: tuple[str, ...], flags: tuple[str, ...] = ()) -> str | None:
        """The value of the first setting or flag that is there."""
        return first_of(self.settings, *settings) or first_of(self.flags, *flags)


def _picker(chain: Chain) -> Said:
    pods = [pod for pod in chain.picker_pods if is_ready(pod)] or chain.picker_pods
    if not pods:
        raise NotApplicableError("no pod of the EPP is recorded")
    return Said(chain, pods[0])


@check(
    46,
    "workers.same-blocks",
    group=Group.WORKERS,
    needs=(32, 41),
    rule="EPP and workers have the same block size and model, and workers publish the KV events that the EPP wants",
    source=OWN + f"; {DYNAMO}",
    fix="set EPP_BLOCK_SIZE to the engine's --block-size; give vLLM --kv-events-config",
)
def same_blocks(chain: Chain) -> Iterator[Problem]:
    picker = _picker(chain)
    ours = picker.one_of(BLOCK_SETTINGS)
    for pod in chain.ready_workers:
        worker, where = Said(chain, pod), f"Pod {name_of(pod)}"
        theirs = worker.one_of(BLOCK_SETTINGS, BLOCK_FLAGS)
        own = annotations_of(pod).get("epp.block-size") or labels_of(pod).get("epp.block-size") or ours
        if own and theirs and own != theirs:
            text = f"block size {own} in EPP, {theirs} in {name_of(pod)}: prefix hits never match"
            yield Problem(text, where)
        wanted = picker.one_of(("DYN_MODEL_NAME",))
        served = worker.one_of(("DYN_MODEL_NAME",), ("--served-model-name", "--model"))
        if wanted and served and wanted != served:
            yield Problem(f"model {wanted} in EPP, {served} in {name_of(pod)}", where)
        yield from _events(picker, worker, where)


def _events(picker: Said, worker: Said, where: str) -> Iterator[Problem]:
    """Only where the settings of both sides tell; guesses are not told."""
    wanted = picker.settings.get("EPP_KV_EVENTS", "").lower()
    if "--no-enable-prefix-caching" in worker.flags:
        yield Problem(f"prefix caching is off in {where}: no pick can hit", where)
    if wanted not in ("true", "1"):
        return
    text = worker.flags.get("--kv-events-config")
    if text is None:
        yield warning(f"{where} publishes no KV events, by its flags", where)
        return
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict) or config.get("enable_kv_cache_events") is not True:
        yield Problem(f"KV events are not switched on in {where}, and the EPP waits for them", where)


@check(
    47,
    "workers.same-planes",
    group=Group.WORKERS,
    needs=(46,),
    rule="EPP and workers use the same event plane, request plane and discovery",
    source=DYNAMO,
    fix="set DYN_EVENT_PLANE, DYN_REQUEST_PLANE and DYN_DISCOVERY_BACKEND alike on both sides",
)
def same_planes(chain: Chain) -> Iterator[Problem]:
    picker, compared = _picker(chain), False
    for pod in chain.ready_workers:
        worker = Said(chain, pod)
        for plane, (settings, flags) in PLANES.items():
            ours, theirs = picker.one_of(settings, flags), worker.one_of(settings, flags)
            compared = compared or bool(ours and theirs)
            if ours and theirs and ours.lower() != theirs.lower():
                yield Problem(f"{plane} differs: EPP {ours}, worker {theirs}", f"Pod {name_of(pod)}")
    if not compared:
        raise NotApplicableError("neither side's settings name a plane")


CHECKS = (same_blocks, same_planes)
