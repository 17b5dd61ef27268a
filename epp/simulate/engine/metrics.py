"""The worker's /metrics, under vLLM's names."""

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from epp.simulate.engine.engine import Engine


def engine_registry(engine: Engine) -> CollectorRegistry:
    """A registry whose values are read from `engine` at each scrape."""
    registry = CollectorRegistry()
    labels = {"model_name": engine.config.model, "engine": str(engine.config.rank)}

    def gauge(name: str, help_: str) -> Gauge:
        return Gauge(f"vllm:{name}", help_, list(labels), registry=registry)

    gauge("num_requests_running", "Requests that decode.").labels(**labels).set_function(lambda: engine.running)
    gauge("num_requests_waiting", "Requests whose prefill is not done.").labels(**labels).set_function(
        lambda: engine.waiting
    )
    gauge("kv_cache_usage_perc", "Share of KV blocks that running requests hold, 0 to 1.").labels(
        **labels
    ).set_function(lambda: engine.cache.used / engine.cache.blocks)
    shape = {"block_size": str(engine.cache.block_size), "num_gpu_blocks": str(engine.cache.blocks)}
    info = {**shape, "enable_prefix_caching": "True", "engine": labels["engine"]}
    Gauge("vllm:cache_config_info", "The cache's configuration.", list(info), registry=registry).labels(**info).set(1)
    registry.register(_Counters(engine, labels))
    return registry


class _Counters(Collector):
    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        self._engine = engine
        self._labels = labels

    def collect(self) -> list[Metric]:
        """The counters at this moment."""
        totals = self._engine.totals
        values = {
            "prompt_tokens": (totals.prompt_tokens, "Prompt tokens processed, cached ones included."),
            "generation_tokens": (totals.generation_tokens, "Tokens generated."),
            "prefix_cache_queries": (totals.prompt_tokens, "Prompt tokens looked up in the prefix cache."),
            "prefix_cache_hits": (totals.cached_tokens, "Prompt tokens found in the prefix cache."),
            "request_success": (totals.finished, "Requests answered to the end."),
        }
        families: list[Metric] = []
        for name, (value, help_) in values.items():
            family = CounterMetricFamily(f"vllm:{name}", help_, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), value)
            families.append(family)
        return families
