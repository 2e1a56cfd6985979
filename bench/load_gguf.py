#!/usr/bin/env python3
"""Writes a GGUF file of random weights in Q4_K_M's types, in OLMoE-1B-7B's layer shape, and the same model as a folder in int4
(compressed-tensors), and measures what loading each takes.

Usage: bench/load_gguf.py FOLDER [--gigabytes 4] [--runs 3] [--keep]
(Python's standard library alone)

Prints of both the bytes of the files, the memory that `coterie info` says is needed on one rank, the peak of resident
memory (VmHWM), and the rate at which weights were read: bytes over the time that the program ran but did not compute. Runs alternate,
the medians are compared. FOLDER is made, and removed afterwards unless --keep is given.
"""
import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time

import load
from load import EXPERTS, HEADS, HIDDEN, INTERMEDIATE

VOCAB, CONTEXT, TOP_K = 8192, 512, 8
F32, Q4_K, Q6_K = 0, 12, 14
BLOCK = {Q4_K: 144, Q6_K: 210}  # bytes of 256 elements
STRING, U32, FLOAT, ARRAY = 8, 4, 6, 9


def blocks(kind, count):
    """Random blocks, whose halves are 2^-13."""
    data = bytearray(os.urandom(BLOCK[kind] * count))
    small = struct.pack("<H", 2 << 10)
    for at in (0, 2) if kind == Q4_K else (208,):
        data[at::BLOCK[kind]], data[at + 1::BLOCK[kind]] = small[:1] * count, small[1:] * count
    return bytes(data)


def plan(layers):
    """Names, shapes (rows last) and types of the tensors, as Q4_K_M has them: half of the layers have attn_v and ffn_down in Q6_K."""
    tensors = [("token_embd.weight", (HIDDEN, VOCAB), Q4_K), ("output_norm.weight", (HIDDEN,), F32),
               ("output.weight", (HIDDEN, VOCAB), Q6_K)]
    for i in range(layers):
        more = Q6_K if i % 2 == 0 else Q4_K
        tensors += [(f"blk.{i}.{x}_norm.weight", (HIDDEN,), F32) for x in ("attn", "ffn", "attn_q", "attn_k")]
        tensors += [(f"blk.{i}.attn_{x}.weight", (HIDDEN, HIDDEN), more if x == "v" else Q4_K) for x in ("q", "k", "v", "output")]
        tensors += [(f"blk.{i}.ffn_gate_inp.weight", (HIDDEN, EXPERTS), F32)]
        tensors += [(f"blk.{i}.ffn_{x}_exps.weight", (HIDDEN, INTERMEDIATE, EXPERTS), Q4_K) for x in ("gate", "up")]
        tensors += [(f"blk.{i}.ffn_down_exps.weight", (INTERMEDIATE, HIDDEN, EXPERTS), more)]
    return tensors


def elements(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def bytes_of(shape, kind):
    return elements(shape) * 4 if kind == F32 else elements(shape) // 256 * BLOCK[kind]


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def pair(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def write_gguf(path, layers):
    tensors = plan(layers)
    numbers = {"block_count": layers, "context_length": CONTEXT, "embedding_length": HIDDEN, "feed_forward_length": INTERMEDIATE,
               "attention.head_count": HEADS, "attention.head_count_kv": HEADS, "expert_count": EXPERTS, "expert_used_count": TOP_K}
    tokens = [f"t{i}" for i in range(VOCAB)]
    pairs = [pair("general.architecture", STRING, text("olmoe")), pair("general.name", STRING, text("random"))]
    pairs += [pair("olmoe." + key, U32, struct.pack("<I", value)) for key, value in numbers.items()]
    pairs += [pair("olmoe.attention.layer_norm_rms_epsilon", FLOAT, struct.pack("<f", 1e-5)),
              pair("olmoe.rope.freq_base", FLOAT, struct.pack("<f", 1e4)), pair("tokenizer.ggml.model", STRING, text("gpt2")),
              pair("tokenizer.ggml.pre", STRING, text("olmo")),
              pair("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, VOCAB) + b"".join(map(text, tokens))),
              pair("tokenizer.ggml.merges", ARRAY, struct.pack("<IQ", STRING, 0))]
    at, infos = 0, []
    for name, shape, kind in tensors:
        infos.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at))
        at += -(-bytes_of(shape, kind) // 32) * 32
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(infos)
    random = {kind: blocks(kind, 1 << 16) for kind in BLOCK}
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for name, shape, kind in tensors:
            count = bytes_of(shape, kind)
            if kind == F32:
                one = 1.0 if "norm" in name else 0.01
                f.write(struct.pack("<f", one) * (count // 4))
            else:
                write_some(f, random[kind], count)
            f.write(bytes(-count % 32))
    return sum(bytes_of(shape, kind) for _, shape, kind in tensors)


def write_some(f, random, count):
    for at in range(0, count, len(random)):
        f.write(random[:min(len(random), count - at)])


def write_folder(folder, layers):
    """The same matrices in int4, groups of 32; the embedding in bf16."""
    os.makedirs(folder)
    matrices = [("lm_head", VOCAB, HIDDEN)]
    plain = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(layers):
        p = f"model.layers.{i}."
        plain |= {p + f"{x}_layernorm.weight": (HIDDEN,) for x in ("input", "post_attention")}
        plain |= {p + f"self_attn.{x}_norm.weight": (HIDDEN,) for x in "qk"} | {p + "mlp.gate.weight": (EXPERTS, HIDDEN)}
        matrices += [(p + f"self_attn.{x}_proj", HIDDEN, HIDDEN) for x in "qkvo"]
        for e in range(EXPERTS):
            q = p + f"mlp.experts.{e}."
            matrices += [(q + "gate_proj", INTERMEDIATE, HIDDEN), (q + "up_proj", INTERMEDIATE, HIDDEN),
                         (q + "down_proj", HIDDEN, INTERMEDIATE)]
    tensors, data = [], {}
    for name, shape in plain.items():
        tensors.append((name, "BF16", shape, 2 * elements(shape)))
    for name, rows, columns in matrices:
        tensors += [(name + ".weight_packed", "I32", (rows, columns // 8), rows * columns // 2),
                    (name + ".weight_scale", "BF16", (rows, columns // 32), rows * columns // 16),
                    (name + ".weight_shape", "I64", (2,), 16)]
        data[name + ".weight_shape"] = struct.pack("<2q", rows, columns)
    random, small = os.urandom(16 << 20), load.random_block(16 << 20)

    def write_data(f, name, count):
        if name in data:
            f.write(data[name])
        elif name.endswith("norm.weight"):
            f.write(struct.pack("<H", 0x3F80) * (count // 2))
        else:
            write_some(f, random if name.endswith("packed") else small, count)

    written = load.write_safetensors(os.path.join(folder, "model.safetensors"), tensors, write_data)
    told = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}}}
    config = {"architectures": ["OlmoeForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
              "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_experts": EXPERTS,
              "num_experts_per_tok": TOP_K, "norm_topk_prob": False, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
              "rope_theta": 1e4, "quantization_config": told}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return written


def loaded(program, model, scratch):
    """VmHWM, and seconds that were not spent on five tokens."""
    tokens, stats, output = (os.path.join(scratch, name) for name in ("tokens.st", "stats.json", "output.st"))
    load.write_safetensors(tokens, [("ids.0", "I32", (5,), 20), ("prefill_tokens.0", "I32", (1,), 4)],
                           lambda f, name, _: f.write(struct.pack("<5i", 3, 1, 4, 1, 5) if name[0] == "i" else struct.pack("<i", 4)))
    began = time.monotonic()
    process = subprocess.Popen([program, "eval", model, "--tokens", tokens, "--ranks", "1", f"--stats={stats}", "--output", output],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    if os.waitstatus_to_exitcode(usage[1]) != 0:
        raise SystemExit(f"{model}: eval failed")
    with open(stats) as f:
        told = json.load(f)
    return usage[2].ru_maxrss * 1024, seconds - (told["prefill_ns"] + told["decode_ns"]) / 1e9


def needed(program, model):
    out = subprocess.run([program, "info", model, "--ranks", "1", "--json"], stdout=subprocess.PIPE, check=True).stdout
    sizes = [s for s in json.loads(out)["sizes"] if s["precision"] == "bf16"]
    return sizes[0]["total_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave both models there")
    args = parser.parse_args()
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "release", "coterie")
    os.makedirs(args.folder, exist_ok=True)
    ends = sum(bytes_of(shape, kind) for _, shape, kind in plan(0))
    two = sum(bytes_of(shape, kind) for _, shape, kind in plan(2)) - ends
    layers = max(1, round((args.gigabytes * 1e9 - ends) / (two / 2)))
    models = {"Q4_K_M": os.path.join(args.folder, "model.gguf"), "int4": os.path.join(args.folder, "int4")}
    written = {"Q4_K_M": write_gguf(models["Q4_K_M"], layers), "int4": write_folder(models["int4"], layers)}
    rates, peaks = {name: [] for name in models}, {}
    for _ in range(args.runs):
        for name, model in models.items():
            peaks[name], seconds = loaded(program, model, args.folder)
            rates[name].append(written[name] / seconds / 1e9)
    medians = {name: statistics.median(x) for name, x in rates.items()}
    for name, model in models.items():
        told = needed(program, model)
        print(f"{name:7} {written[name] / 1e9:.2f} GB in {layers} layers: info says {told / 1e9:.3f} GB, VmHWM {peaks[name] / 1e9:.3f} GB "
              f"({told / peaks[name]:.2f} of it), read at {medians[name]:.2f} GB/s ({min(rates[name]):.2f} to {max(rates[name]):.2f})")
    print(f"Q4_K_M is read at {100 * medians['Q4_K_M'] / medians['int4']:.0f} % of int4's rate")
    if not args.keep:
        shutil.rmtree(args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
