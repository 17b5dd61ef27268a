"""Headers that tell the chosen worker or its sidecar what to do (vLLM's, llm-d's and Dynamo's names)."""

from collections.abc import Callable, Sequence

from epp.endpoints.endpoint import Endpoint

Headers = tuple[tuple[str, str], ...]


def worker_headers(
    decode: Endpoint,
    prefill: Endpoint | None,
    encode: Sequence[Endpoint],
    several_ranks: Callable[[Endpoint], bool],
) -> Headers:
    """What the sidecar of `decode` needs to know; a Dynamo worker refuses every request without its id."""
    headers: list[tuple[str, str]] = []
    if decode.instance_id is not None:
        headers.append(("x-dynamo-worker-instance-id", str(decode.instance_id)))
        if several_ranks(decode):
            headers.append(("x-dynamo-dp-rank", str(decode.rank)))
    elif decode.rank_by_header:
        headers.append(("x-data-parallel-rank", str(decode.rank)))
    if prefill is not None and prefill.instance_id is not None:
        headers.append(("x-dynamo-prefill-instance-id", str(prefill.instance_id)))
        if several_ranks(prefill):
            headers.append(("x-dynamo-prefill-dp-rank", str(prefill.rank)))
        headers.append(("x-dynamo-routing-mode", "disaggregated"))
    elif prefill is not None:
        headers.append(("x-prefiller-host-port", prefill.host_port))
    if encode:
        headers.append(("x-encoder-hosts-ports", ",".join(endpoint.host_port for endpoint in encode)))
    return tuple(headers)
