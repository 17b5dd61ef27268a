"""Metrics of understanding requests."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from epp.prompts.prompt import Api, TokenSource
from epp.telemetry.tally import Distribution, Tally


class PromptMetrics:
    """Counts what was understood, and where token ids came from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read = Tally(
            "epp_prompts",
            "Requests read, by API and by where their token ids came from; source none: routed without tokens.",
            ["api", "source"],
            registry=registry,
        )
        self._not_understood = Tally(
            "epp_prompts_without_tokens",
            "Requests that were routed without token ids, by reason.",
            ["reason"],
            registry=registry,
        )
        self._tokens = Tally("epp_prompt_tokens", "Prompt tokens of requests read.", registry=registry)
        self._seconds = Distribution(
            "epp_prompt_read_seconds",
            "Seconds from a whole body to its token ids.",
            bounds=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
            registry=registry,
        )

    def read(self, api: Api, source: TokenSource, tokens: int, seconds: float) -> None:
        """One request was read."""
        self._read.counts[api, source] += 1
        self._tokens.counts[()] += tokens
        self._seconds.observe(seconds)

    def without_tokens(self, reason: str) -> None:
        """One request has no token ids; `reason` is one of a fixed few words."""
        self._not_understood.counts[(reason,)] += 1


class EncodingMetrics:
    """Counts what encoding costs and what the token cache saves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._characters = Counter(
            "epp_tokenizer_characters", "Characters of prompt texts that were turned into tokens.", registry=registry
        )
        self._encoded = Counter(
            "epp_tokenizer_encoded_characters",
            "Characters that the tokenizer had to encode; the rest came from the token cache.",
            registry=registry,
        )
        self._checks = Counter(
            "epp_token_cache_checks",
            "Sampled comparisons of cut with whole encoding; a different one switches the token cache off.",
            ["result"],
            registry=registry,
        )
        self._cache_bytes = Gauge("epp_token_cache_bytes", "Bytes that the token cache holds.", registry=registry)

    def characters(self, all_: int, encoded: int) -> None:
        """One text was encoded."""
        self._characters.inc(all_)
        self._encoded.inc(encoded)

    def checked(self, equal: bool) -> None:
        """One text was encoded a second time, whole."""
        self._checks.labels("equal" if equal else "different").inc()

    def cache(self, size: Callable[[], float]) -> None:
        """Report `size()` as the bytes of the token cache."""
        self._cache_bytes.set_function(size)
