"""Endpoints from a YAML or JSON file; its format is described in docs/endpoints-file.md."""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from epp.endpoints import dynamo, marked_yaml
from epp.endpoints.endpoint import Endpoint
from epp.endpoints.roles import ROLES
from epp.settings import SettingsError

MAX_FILE_BYTES = 16 * 1024 * 1024
_MAX_PORT = 65535

_Port = Annotated[int, Field(ge=1, le=_MAX_PORT)]
_Name = Annotated[str, Field(min_length=1, max_length=253)]


class _Entry(BaseModel):
    """One worker; each of its ports is an endpoint."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: _Name
    address: str
    ports: Annotated[list[_Port], Field(min_length=1)]
    uid: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict)
    role: str = "both"
    engine: _Name = "vllm"
    rank: Annotated[int, Field(ge=0)] = 0
    events_port: _Port | None = None
    replay_port: _Port | None = None
    event_ranks: Annotated[int, Field(ge=1, le=1024)] = 1
    rank_by_header: bool = False
    metrics_port: _Port | None = None
    load_port: _Port | None = None
    block_size: Annotated[int, Field(ge=1, le=65536)] | None = None
    weight: Annotated[float, Field(ge=0, le=1, strict=False)] = 1.0
    app_protocol: Literal["http", "kubernetes.io/h2c"] = "http"
    dynamo_pod: _Name | None = None
    dynamo_instance_id: Annotated[int, Field(ge=0, lt=2**64)] | None = None

    @field_validator("address")
    @classmethod
    def _plain_ip(cls, address: str) -> str:
        try:
            ip = ip_address(address)
        except ValueError:
            raise ValueError("expected an IPv4 or IPv6 address; gateways take no host names") from None
        if ip.is_unspecified or ip.is_multicast or "%" in address:
            raise ValueError("expected the address of one host that the gateway can reach")
        return str(ip)

    @field_validator("role")
    @classmethod
    def _known_role(cls, role: str) -> str:
        if role not in ROLES:
            raise ValueError(f"expected one of {', '.join(ROLES)}")
        return role

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.dynamo_pod is not None and self.dynamo_instance_id is not None:
            raise ValueError("dynamo_pod and dynamo_instance_id exclude each other")
        if self.rank_by_header and len(self.ports) > 1:
            raise ValueError("rank_by_header: expected one port, which the event_ranks ranks share")
        for field in ("events_port", "replay_port", "load_port"):
            first = getattr(self, field)
            ranks = len(self.ports) - 1 + self.event_ranks
            if first is not None and first + ranks - 1 > _MAX_PORT:
                raise ValueError(f"{field} {first} leaves no room for {ranks} ranks below port 65536")
        return self

    def endpoints(self) -> Iterator[Endpoint]:
        ports = self.ports * self.event_ranks if self.rank_by_header else self.ports
        several = len(ports) > 1
        for i, port in enumerate(ports):
            yield Endpoint(
                name=f"{self.name}-rank-{self.rank + i}" if several else self.name,
                address=self.address,
                port=port,
                uid=self.uid,
                rank=self.rank + i,
                rank_by_header=self.rank_by_header,
                roles=ROLES[self.role],
                engine=self.engine,
                app_protocol=self.app_protocol,
                weight=self.weight,
                labels=self.labels,
                # vLLM gives each data-parallel rank the configured port plus the rank.
                events_port=None if self.events_port is None else self.events_port + i,
                replay_port=None if self.replay_port is None else self.replay_port + i,
                event_ranks=1 if self.rank_by_header else self.event_ranks,
                metrics_port=self.metrics_port,
                load_port=None if self.load_port is None else self.load_port + i,
                block_size=self.block_size,
                instance_id=self._instance_id(),
            )

    def _instance_id(self) -> int | None:
        return dynamo.instance_id(self.dynamo_pod) if self.dynamo_pod is not None else self.dynamo_instance_id


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    endpoints: list[_Entry]


def read_endpoints(path: Path) -> tuple[Endpoint, ...]:
    """The endpoints that the file lists, in its order.

    Raises SettingsError that names file, line and field of everything that is wrong with it.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SettingsError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: expected UTF-8 text; byte {error.start} is none") from None
    return parse_endpoints(text, str(path))


def parse_endpoints(text: str, origin: str) -> tuple[Endpoint, ...]:
    """The endpoints in `text`; `origin` names it in errors. Raises SettingsError."""
    try:
        document = marked_yaml.load(text)
    except marked_yaml.DocumentError as error:
        raise SettingsError(f"{origin}:{error.line}: {error}") from None
    try:
        file = _File.model_validate(document.data)
    except ValidationError as error:
        raise SettingsError("\n".join(_problems(error, document, origin))) from None
    endpoints = [
        (("endpoints", i, "ports", min(j, len(entry.ports) - 1)), endpoint)
        for i, entry in enumerate(file.endpoints)
        for j, endpoint in enumerate(entry.endpoints())
    ]
    _refuse_duplicates(endpoints, document, origin)
    return tuple(endpoint for _, endpoint in endpoints)


def _problems(error: ValidationError, document: marked_yaml.Document, origin: str) -> Iterator[str]:
    for problem in error.errors():
        where = problem["loc"]
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            known = _Entry.model_fields if len(where) > 1 else _File.model_fields
            text = f"no such field; known are {', '.join(known)}"
        elif problem["type"] == "model_type":
            text = "expected a mapping of fields to values"
        elif problem["type"] != "missing" and not isinstance(problem["input"], dict | list | _Entry):
            text += f", not {problem['input']!r}"
        yield f"{origin}:{document.line(where)}: {_spell(where)}: {text[0].lower()}{text[1:]}"


def _spell(where: marked_yaml.Where) -> str:
    spelt = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return spelt.removeprefix(".") or "document"


def _refuse_duplicates(
    endpoints: Sequence[tuple[marked_yaml.Where, Endpoint]], document: marked_yaml.Document, origin: str
) -> None:
    """Two endpoints at one place could not be told apart in the destination header, nor two of a name in metrics."""
    seen: dict[str, int] = {}
    for where, endpoint in endpoints:
        line = document.line(where)
        for field, key in ((_spell(where[:2]) + ".name", endpoint.name), (_spell(where), endpoint.place)):
            if key in seen:
                raise SettingsError(f"{origin}:{line}: {field}: {key} is already given on line {seen[key]}")
            seen[key] = line
