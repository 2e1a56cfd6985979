#!/usr/bin/env python3
"""Writes the sample files of tests/placement/samples: what each engine's own code would write, by torch.save, safetensors,
json, yaml and numpy. The numbers are formulas that tests/placement/samples.h repeats.

    make_samples.py FOLDER        (pip: torch, numpy, pyyaml, safetensors)
"""

import json
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

LAYERS, FIRST, EXPERTS, RANKS, SLOTS = 5, 2, 6, 2, 8  # layers 0 and 1 are dense; 8 slots a layer over 2 ranks
MOE = range(FIRST, LAYERS)


def tokens(layer, expert):
    """Load of an expert; dense layers have none."""
    return 0 if layer < FIRST else 10 * layer + 7 * expert % 11


def slot(layer, i):
    """Expert in a slot: a rotation a layer, so that 2 experts have a second replica on the other rank."""
    return (i * 5 + layer) % EXPERTS


def dense_slot(i):
    return i % EXPERTS


def p2l():
    return [[slot(l, i) if l >= FIRST else dense_slot(i) for i in range(SLOTS)] for l in range(LAYERS)]


def spread(layer):
    """The layer's load over its slots: an expert's tokens on its first replica, but one on its last."""
    load = [0] * SLOTS
    where = {}
    for i in range(SLOTS):
        where.setdefault(slot(layer, i), []).append(i)
    for expert, places in where.items():
        load[places[0]] += tokens(layer, expert) - 1
        load[places[-1]] += 1
    return load


def sglang_stat(folder):
    whole = torch.tensor([[tokens(l, e) for e in range(EXPERTS)] for l in range(LAYERS)], dtype=torch.int32)
    first = whole // 3
    count = torch.stack([first, torch.zeros_like(whole), whole - first])  # passes, one of them empty
    torch.save(dict(rank=0, logical_count=count, average_utilization_rate_over_window=0.75), folder / "sglang-stat.pt")
    # the same through a view with other strides, in another dtype
    view = torch.zeros(EXPERTS, LAYERS + 3, dtype=torch.float64)[:, 3:].t()
    view[...] = whole
    torch.save(OrderedDict(logical_count=view), folder / "sglang-stat-strided.pt")


def sglang_per_token(folder):
    (folder / "sglang-per-token").mkdir(exist_ok=True)
    for rank in range(RANKS):
        records = []
        for step in range(2):
            n = 3 + rank + step
            topk = torch.full((LAYERS, n, 8), -1, dtype=torch.int32)
            count = torch.zeros(LAYERS, SLOTS, dtype=torch.int32)
            for layer in MOE:
                for t in range(n):
                    for k in range(2):
                        physical = (layer + t * 3 + k * 5 + rank * 2 + step) % SLOTS
                        topk[layer, t, k] = physical
                        count[layer, physical] += 1
            records.append(
                dict(
                    forward_pass_id=step,
                    rank=rank,
                    gatherer_key="primary",
                    input_ids=[100000 + t for t in range(n)],
                    positions=list(range(n)),
                    extend_seq_lens=[n] if step == 0 else None,
                    forward_mode=1 + step,
                    topk_ids_of_layer=topk,
                    misc_objects=[],
                    global_physical_count=count,
                )
            )
        torch.save(
            dict(records=records, last_physical_to_logical_map=torch.tensor(p2l())),
            folder / "sglang-per-token" / f"expert_distribution_recorder_1.5_{rank}.pt",
        )


def vllm(folder):
    moe = [[slot(l, i) for i in range(SLOTS)] for l in MOE]
    load = [spread(l) for l in MOE]
    half = [[n // 2 for n in row] for row in load]
    rest = [[n - h for n, h in zip(a, b)] for a, b in zip(load, half)]
    with open(folder / "vllm-stats.jsonl", "w") as f:
        f.write(json.dumps({"record_type": "eplb_load_meta", "version": 1, "num_ranks": RANKS}) + "\n")
        for step, part in enumerate((half, rest)):
            record = {"record_type": "eplb_load_stats", "version": 1, "step": step, "num_ranks": RANKS,
                      "expert_load": part, "p2l_map": moe}  # fmt: skip
            f.write(json.dumps(record) + "\n")
    with open(folder / "vllm-mapping.jsonl", "w") as f:
        record = {"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": SLOTS - EXPERTS,
                  "num_slots": SLOTS,
                  "initial_global_assignments": {str(i): row for i, row in enumerate(moe)}}  # fmt: skip
        f.write(json.dumps(record) + "\n")


def tensorrt(folder):
    statistic = folder / "tensorrt"
    statistic.mkdir(exist_ok=True)
    (statistic / "meta_info.json").write_text(json.dumps({"num_experts": EXPERTS, "num_experts_per_token": 2}))
    for rank in range(RANKS):
        tensors = {}
        for iteration in (100, 101):
            for layer in MOE:
                part = [(tokens(layer, e) + rank) // 2 for e in range(EXPERTS)]
                mine = [n // 2 if iteration == 100 else n - n // 2 for n in part]
                tensors[f"{iteration}_{layer}"] = torch.tensor(mine, dtype=torch.int32)
        save_file(tensors, statistic / f"rank{rank}.safetensors")

    class Inline(list):
        pass

    yaml.add_representer(Inline, lambda d, x: d.represent_sequence("tag:yaml.org,2002:seq", x, flow_style=True))
    config = {
        "num_slots": SLOTS,
        "initial_global_assignments": {l: Inline(slot(l, i) for i in range(SLOTS)) for l in MOE},
        "layer_updates_per_iter": 0,
    }
    with open(folder / "tensorrt.yaml", "w") as f:
        yaml.dump(config, f, width=float("inf"))


def maps(folder):
    (folder / "sglang-map.json").write_text(json.dumps({"physical_to_logical_map": p2l()}))
    per_rank = SLOTS // RANKS
    layers = []
    for i, layer in enumerate(MOE):
        row = [slot(layer, s) for s in range(SLOTS)]
        devices = [{"device_id": r, "device_expert": row[r * per_rank : (r + 1) * per_rank]} for r in range(RANKS)]
        layers.append({"layer_id": i, "device_count": RANKS, "device_list": devices})
    with open(folder / "ascend.json", "w") as f:
        json.dump({"moe_layer_count": len(layers), "layer_list": layers}, f, indent=4)
    pattern = np.zeros((RANKS, len(layers), EXPERTS), dtype=np.int32)
    for i, layer in enumerate(MOE):
        for s in range(SLOTS):
            pattern[s // per_rank, i, slot(layer, s)] = 1
    np.save(folder / "omni.npy", pattern)
    np.save(folder / "omni-columns.npy", np.asfortranarray(pattern.astype(np.float32)))


def csv(folder):
    with open(folder / "counts.csv", "w") as f:
        f.write("layer,expert,tokens\n")
        for l in range(LAYERS):
            for e in range(EXPERTS):
                if tokens(l, e):
                    f.write(f"{l},{e},{tokens(l, e)}\n")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for write in (sglang_stat, sglang_per_token, vllm, tensorrt, maps, csv):
        write(out)
