"""The engines' own APIs: vLLM's `/inference/v1/generate` and SGLang's `/generate`."""

from typing import Any

import msgspec
from msgspec.structs import replace

from epp.prompts.asked import Asked, Body, TokensPrompt
from epp.prompts.common import CommonBody, asked, text_or_tokens


class _Sampling(msgspec.Struct):
    max_tokens: int | None = None
    max_new_tokens: int | None = None


class _Generate(CommonBody, kw_only=True):
    token_ids: list[int] | None = None
    features: Any = None
    sampling_params: _Sampling | list[_Sampling] | None = None
    text: str | list[str | int | list[int]] | None = None
    input_ids: list[str | int | list[int]] | None = None
    lora_path: str | list[str | None] | None = None
    extra_key: str | None = None


_GENERATE = msgspec.json.Decoder(_Generate, strict=False)


def read_generate(body: Body) -> Asked:
    """Both APIs, told apart by their fields; a prompt with media features is not its token ids alone, so has none."""
    generate = _GENERATE.decode(body)
    sampling = generate.sampling_params
    sampling = (sampling[0] if sampling else None) if isinstance(sampling, list) else sampling
    limit = None if sampling is None else sampling.max_tokens or sampling.max_new_tokens
    if generate.token_ids is not None:
        prompt = TokensPrompt(ids=generate.token_ids) if generate.features is None else None
        return asked(generate, prompt, limit)
    source = generate.input_ids if generate.input_ids is not None else generate.text
    adapter = generate.lora_path
    adapter = (adapter[0] if adapter else None) if isinstance(adapter, list) else adapter
    first, further = text_or_tokens(source, True)
    understood = asked(generate, first, limit, further_tokens=further)
    return replace(understood, adapter=adapter or "", cache_salt=generate.extra_key or understood.cache_salt)
