"""A KV cache as those know it who follow its events: vLLM's decoder, and a model that applies what it decodes.

The structures are those of vLLM 0.24 and later (vllm/distributed/kv_events.py): a batch is an array, an event a map with a
tag. What is decoded without an error here is decoded by vLLM's own subscribers."""

import msgspec


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class RankSnapshot(msgspec.Struct):
    data_parallel_rank: int
    seq: int
    batch: KVEventBatch


class Snapshot(msgspec.Struct):
    ranks: list[RankSnapshot]


read_batch = msgspec.msgpack.Decoder(KVEventBatch).decode
read_snapshot = msgspec.msgpack.Decoder(Snapshot).decode


class Cache:
    """One rank's blocks: each knows the text up to its end."""

    def __init__(self):
        self.texts = {}  # hash: (salt, ids)
        self.parents, self.children = {}, {}  # hash: the block before; how many blocks stand behind it
        self.states = set()  # hashes of blocks of which a state is kept

    def apply(self, batch):
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.__init__()
            elif event.group_idx:
                self.apply_states(event)
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    self.remove(block)
            else:
                self.store(event)

    def apply_states(self, event):
        assert event.group_idx == 1 and event.medium == "GPU"
        blocks = set(event.block_hashes)
        assert len(blocks) == len(event.block_hashes)
        if isinstance(event, BlockRemoved):
            assert blocks <= self.states, "a state went that was not kept"
            self.states -= blocks
            return
        assert event.kv_cache_spec_kind == "mamba" and len(event.extra_keys) == len(event.block_hashes)
        assert blocks <= set(self.texts), "a state was kept of a block that is not there"
        assert not blocks & self.states, "a state that is kept came again"
        for i, block in enumerate(event.block_hashes):
            assert tuple(event.token_ids[i * event.block_size : (i + 1) * event.block_size]) == self.texts[block][1][-event.block_size :]
            parent = event.block_hashes[i - 1] if i else event.parent_block_hash
            assert parent == self.parents[block]
        self.states |= blocks

    def store(self, event):
        assert event.block_hashes and len(event.token_ids) == len(event.block_hashes) * event.block_size
        assert len(event.extra_keys) == len(event.block_hashes) and event.medium == "GPU"
        parent = event.parent_block_hash
        for i, (block, extra) in enumerate(zip(event.block_hashes, event.extra_keys)):
            assert block not in self.texts, "a block that is there came again"
            ids = tuple(event.token_ids[i * event.block_size : (i + 1) * event.block_size])
            if parent is None:
                text = (extra[0] if extra else "", ids)
            else:
                assert extra is None and parent in self.texts, "a block came before its parent"
                text = (self.texts[parent][0], self.texts[parent][1] + ids)
            self.texts[block], self.parents[block], self.children[block] = text, parent, 0
            if parent is not None:
                self.children[parent] += 1
            parent = block

    def remove(self, block):
        assert block in self.texts, "a block went that was not there"
        assert block not in self.states, "a block went before its state"
        assert not self.children.pop(block), "a block went before those behind it"
        del self.texts[block]
        if (parent := self.parents.pop(block)) is not None:
            self.children[parent] -= 1

    def held(self):
        """Of each block its text and whether its state is kept."""
        return sorted((*text, block in self.states) for block, text in self.texts.items())
