"""Rules that tie requests to endpoints: sessions, adapters, places, prompt lengths, labels."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from epp.endpoints.endpoint import Endpoint
from epp.prompts.prompt import Request
from epp.scheduling.candidates import Candidates
from epp.scheduling.scorers import Scores
from epp.scheduling.sessions import Sessions

_MOST_SESSION_BYTES = 256


class Session:
    """A session's requests go where its last one went: as a scorer softly, as a filter without exception.

    A header names the session, else the request itself does. It is forgotten `ttl_seconds` after its last request.
    """

    def __init__(self, header: str = "x-session-id", ttl_seconds: float = 1800.0) -> None:
        self._header = header.lower()
        self._ttl = ttl_seconds
        self.sessions = Sessions()
        """Its memory, which several rules may have in common."""

    def keep(self, request: Request, candidates: Candidates) -> NDArray[np.bool_] | None:
        """Only the session's endpoint, if it is among the candidates."""
        return self._mine(request, candidates)

    def score(self, request: Request, candidates: Candidates) -> Scores | None:
        """1 for the session's endpoint."""
        mine = self._mine(request, candidates)
        return None if mine is None else mine.astype(np.float64)

    def picked(self, request: Request, candidates: Candidates, position: int) -> None:
        """The session is bound to its last endpoint."""
        name = self._name(request, candidates)
        if name and len(name) <= _MOST_SESSION_BYTES:
            self.sessions.bind(name, candidates.endpoints[position], candidates.now)

    def _name(self, request: Request, candidates: Candidates) -> str:
        return candidates.header(self._header) or request.session

    def _mine(self, request: Request, candidates: Candidates) -> NDArray[np.bool_] | None:
        name = self._name(request, candidates)
        bound = self.sessions.last(name, candidates.now, self._ttl) if name else None
        if bound is None:
            return None
        mine = np.array([endpoint.incarnation == bound for endpoint in candidates.endpoints])
        return mine if mine.any() else None


class LoraAffinity:
    """Where the request's adapter runs already (1), could be loaded (0.8), waits to be (0.6), or neither (0)."""

    def __init__(self, adapters: list[str] | None = None) -> None:
        self._adapters = None if adapters is None else frozenset(adapters)

    def score(self, request: Request, candidates: Candidates) -> Scores | None:
        """No opinion where the model of the request is no adapter that any engine knows."""
        name = request.served_model
        samples = [candidates.sample(int(column)) for column in candidates.columns]
        known = any(name in each.adapters or name in each.adapters_waiting for each in samples if each is not None)
        if not known and (self._adapters is None or name not in self._adapters):
            return None
        scores = np.zeros(len(candidates))
        for i, each in enumerate(samples):
            if each is None or name in each.adapters:
                scores[i] = 0.5 if each is None else 1.0
            elif each.adapters_most is not None and len(each.adapters) < each.adapters_most:
                scores[i] = 0.8
            elif name in each.adapters_waiting:
                scores[i] = 0.6
        return scores


class Topology:
    """Endpoints near the one who asks: the first label that agrees counts, nearest label first."""

    def __init__(
        self,
        header: str = "x-topology",
        labels: list[str] | None = None,
        here: Mapping[str, str] | None = None,
    ) -> None:
        self._header = header.lower()
        self._labels = labels or [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
            "topology.kubernetes.io/region",
        ]
        self._here = dict(here or {})

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """1 for the nearest label, less for each label further out; the header is `label=value,...`."""
        pairs = (pair.partition("=") for pair in candidates.header(self._header).split(","))
        place = self._here | {name.strip(): value.strip() for name, _, value in pairs if value}
        if not place:
            return None
        return np.array([self._nearness(endpoint, place) for endpoint in candidates.endpoints])

    def _nearness(self, endpoint: Endpoint, place: Mapping[str, str]) -> float:
        for i, label in enumerate(self._labels):
            if label in place and endpoint.labels.get(label) == place[label]:
                return 1.0 - i / len(self._labels)
        return 0.0


class ContextLength:
    """Endpoints whose label says that they take prompts of this length, such as `0-8192`."""

    def __init__(self, label: str = "llm-d.ai/context-length-range") -> None:
        self._label = label

    def keep(self, request: Request, candidates: Candidates) -> NDArray[np.bool_] | None:  # noqa: ARG002
        """Those whose range holds the prompt, and those without a range."""
        ranges = [_range(endpoint.labels.get(self._label, "")) for endpoint in candidates.endpoints]
        tokens = candidates.prompt_tokens
        return np.array([each is None or each[0] <= tokens <= each[1] for each in ranges])

    def score(self, request: Request, candidates: Candidates) -> Scores | None:  # noqa: ARG002 - the interface
        """1 in the range, 0.5 without a range, 0 outside."""
        ranges = [_range(endpoint.labels.get(self._label, "")) for endpoint in candidates.endpoints]
        tokens = candidates.prompt_tokens
        return np.array([0.5 if each is None else float(each[0] <= tokens <= each[1]) for each in ranges])


class LabelSelector:
    """Endpoints that carry all these labels; as a scorer they are merely preferred."""

    def __init__(self, labels: dict[str, str]) -> None:
        if not labels:
            raise ValueError("labels must name at least one label")
        self._labels = {str(name): str(value) for name, value in labels.items()}

    def keep(self, request: Request, candidates: Candidates) -> NDArray[np.bool_] | None:  # noqa: ARG002
        """Those with all the labels."""
        return np.array([self._labels.items() <= dict(endpoint.labels).items() for endpoint in candidates.endpoints])

    def score(self, request: Request, candidates: Candidates) -> Scores | None:
        """1 for those with all the labels."""
        keep = self.keep(request, candidates)
        return None if keep is None else keep.astype(np.float64)


def _range(text: str) -> tuple[int, int] | None:
    low, _, high = text.partition("-")
    return (int(low), int(high)) if low.isdigit() and high.isdigit() else None
