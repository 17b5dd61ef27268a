"""`epp validate` over a snapshot whose parts really listen, on addresses of this machine."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from epp.cli import main
from epp.readiness.snapshot import files
from epp.readiness.snapshot.document import seal
from tests.readiness.world import World, body_of, healthy, one

ADDRESSES = {"w0": "127.0.0.2", "w1": "127.0.0.3", "epp-1": "127.0.0.1"}
"""Where the pods of the healthy world are."""


def placed(port: int, picker_ports: dict[str, int] | None = None) -> World:
    """The healthy world on this machine: both workers at `port`, an EPP in plain text, a route for /v1."""
    world = healthy()
    one(world, "inference_pools", "pool")["spec"]["targetPorts"] = [{"number": port}]
    rule = one(world, "http_routes", "chat")["spec"]["rules"][0]
    rule["matches"] = [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    rule["backendRefs"][0].pop("port")
    world["config_maps"][0]["data"] |= {"EPP_SECURE_SERVING": "false", "EPP_KV_EVENTS": "false"}
    for name, address in ADDRESSES.items():
        pod = one(world, "pods", name)
        pod["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
        if name != "epp-1":
            pod["spec"]["containers"][0]["ports"] = [{"containerPort": port}]
    if picker_ports:
        ports = [{"name": name, "containerPort": number} for name, number in picker_ports.items()]
        one(world, "pods", "epp-1")["spec"]["containers"][0]["ports"] = ports
    return world


@dataclass(frozen=True)
class Judged:
    """Exit code of `epp validate`, verdict and message of each check, and the report's facts."""

    code: int
    found: dict[int, tuple[str, str]]
    facts: dict[str, str]

    @property
    def headline(self) -> str:
        return self.facts["verdict"]

    def alarms(self) -> dict[int, tuple[str, str]]:
        """All that neither passed nor was skipped."""
        return {number: it for number, it in self.found.items() if it[0] not in ("passed", "skipped")}


def validate(world: World, folder: Path, *options: str) -> Judged:
    """Run the command over the world's snapshot."""
    snapshot, report = folder / "snapshot.yaml", folder / "report.json"
    snapshot.write_bytes(files.to_yaml(seal(body_of(world))))
    code = main(["validate", "-s", str(snapshot), "--max-age", "1e9", "--ctrf", str(report), *options])
    results = json.loads(report.read_bytes())["results"]
    found = {
        test["extra"]["id"]: (test["extra"].get("verdict", test["status"]), test.get("message", ""))
        for test in results["tests"]
    }
    return Judged(code, found, results["environment"]["extra"])


async def validate_beside(world: World, folder: Path, *options: str) -> Judged:
    """The same beside servers of the test's own loop."""
    return await asyncio.to_thread(validate, world, folder, *options)
