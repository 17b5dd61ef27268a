"""Run by a Python with transformers: JSON cases on standard input, rendered texts or errors on standard output."""

import json
import sys

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast


def main() -> None:
    results = []
    for case in json.load(sys.stdin):
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")), **case["special_tokens"]
        )
        try:
            text = tokenizer.apply_chat_template(
                case["messages"],
                tools=case["tools"],
                documents=case["documents"],
                chat_template=case["template"],
                tokenize=False,
                add_generation_prompt=case["add_generation_prompt"],
                continue_final_message=case["continue_final_message"],
                **case["variables"],
            )
        except Exception as error:  # noqa: BLE001 - whatever it refuses, we refuse
            results.append({"error": f"{type(error).__name__}: {error}"})
        else:
            results.append({"text": text})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
