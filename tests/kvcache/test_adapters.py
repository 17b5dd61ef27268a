"""The names of LoRA adapters are learnt from the blocks that engines store under them."""

import msgspec

from epp.kvcache.keys import PrefixKeys
from epp.kvcache.rank import Rank
from epp.kvcache.run_index import RunIndex


def test_a_block_of_an_adapter_tells_its_name():
    names = []
    rank = Rank(RunIndex(PrefixKeys()), 0, on_adapter=names.append)
    blocks = [
        {"type": "BlockStored", "block_hashes": [i], "parent_block_hash": None, "token_ids": [1, 2, 3, 4], **more}
        for i, more in enumerate([{"block_size": 4}, {"block_size": 4, "lora_name": "sql"}])
    ]
    for _ in rank.feed(msgspec.msgpack.encode([0.0, blocks, 0])):
        pass
    assert names == ["sql"]
