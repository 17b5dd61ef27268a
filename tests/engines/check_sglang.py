"""Our index against SGLang's real radix cache: `python -m tests.engines.check_sglang ROOT SEED REQUESTS`."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from epp.kvcache.keys import PrefixKeys
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex
from epp.prompts.namespace import namespace
from epp.prompts.prompt import Prompt
from tests.engines.check_vllm import copies, logging_off
from tests.engines.sglang_engine import SglangEngine


def main(root: Path, seed: int, requests: int) -> None:
    """Compare after every step and for every request."""
    logging_off()
    draw = random.Random(seed)
    engine = SglangEngine(root, slots=900, page=draw.choice((4, 8)))
    index = RunIndex(PrefixKeys())
    rank = Rank(index, 0)
    trunks = [[draw.randrange(9999) for _ in range(64)] for _ in range(5)]
    live: list[Any] = []
    admitted = hits = 0
    _feed(rank, engine)
    while admitted < requests:
        if len(live) > 5 or (live and draw.random() < 0.4):
            engine.finish(live.pop(draw.randrange(len(live))))
        tokens = draw.choice(trunks)[: draw.randrange(2, 65)]
        tokens += [draw.randrange(9999) for _ in range(draw.choice((0, 30)))]
        lora = "sql" if draw.random() < 0.2 else None
        salt = draw.choice((None, None, "s"))
        prompt = Prompt(tokens=np.array(tokens, dtype=np.uint32), namespace=namespace(lora or "", salt or ""))
        predicted = int(index.match(prompt).cached_tokens[0])
        result = engine.admit(tokens, lora=lora, salt=salt)
        if result is not None:
            handle, cached = result
            assert predicted == cached, f"predicted {predicted}, reported {cached}"
            live.append(handle)
            admitted += 1
            hits += cached
        if draw.random() < 0.004:
            while live:
                engine.finish(live.pop())
            engine.reset()
        _feed(rank, engine)
        assert copies(index, 1) == engine.truth()
    assert not rank.counts.skipped, rank.counts.skipped
    print(json.dumps({"requests": admitted, "cached_tokens": hits}))


def _feed(rank: Rank, engine: SglangEngine) -> None:
    batch = engine.step()
    for _ in rank.feed(batch) if batch else ():
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
