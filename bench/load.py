#!/usr/bin/env python3
"""Writes a checkpoint of random weights in shards and measures what loading it takes: bf16 in OLMoE-1B-7B's layer shape, or
gpt-oss-20b's with experts in MXFP4 (its 24 layers are 13.8 GB).

Usage: bench/load.py FOLDER [--shape olmoe|gpt-oss] [--gigabytes 10] [--ranks 4] [--tokens 8] [--precision bf16] [--keep]
(Python's standard library alone)

Prints the size of the weights, the program's peak resident memory (VmHWM) and how long it ran: it opens the checkpoint
and evaluates some tokens, four at once and the others one at a time. Of these it prints the speed and the bytes that they
read, beside the read roof, measured before and after. FOLDER is made, and removed afterwards unless --keep is given; a
checkpoint that is there already is measured as it is.
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import time

HIDDEN, INTERMEDIATE, EXPERTS, HEADS = 2048, 1024, 64, 16
SHARD_BYTES = 2_000_000_000


def plan_olmoe(total_bytes):
    """Every tensor's name and shape, of layers and a vocabulary that come to total_bytes, and config.json."""
    layer = 2 * (4 * HIDDEN * HIDDEN + 3 * EXPERTS * HIDDEN * INTERMEDIATE + EXPERTS * HIDDEN + 4 * HIDDEN)
    layers = max(1, (total_bytes - 4 * HIDDEN * 32000) // layer)
    vocab = max(1024, (total_bytes - layers * layer) // (4 * HIDDEN))
    tensors = [("model.embed_tokens.weight", (vocab, HIDDEN))]
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors += [(p + f"self_attn.{x}_proj.weight", (HIDDEN, HIDDEN)) for x in "qkvo"]
        tensors += [(p + f"self_attn.{x}_norm.weight", (HIDDEN,)) for x in "qk"]
        tensors += [(p + f"{x}_layernorm.weight", (HIDDEN,)) for x in ("input", "post_attention")]
        tensors.append((p + "mlp.gate.weight", (EXPERTS, HIDDEN)))
        for e in range(EXPERTS):
            q = p + f"mlp.experts.{e}."
            tensors += [(q + "gate_proj.weight", (INTERMEDIATE, HIDDEN)), (q + "up_proj.weight", (INTERMEDIATE, HIDDEN)),
                        (q + "down_proj.weight", (HIDDEN, INTERMEDIATE))]
    tensors += [("model.norm.weight", (HIDDEN,)), ("lm_head.weight", (vocab, HIDDEN))]
    config = {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "vocab_size": vocab, "hidden_size": HIDDEN,
              "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers, "num_attention_heads": HEADS,
              "num_key_value_heads": HEADS, "num_experts": EXPERTS, "num_experts_per_tok": 8, "norm_topk_prob": False,
              "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "tie_word_embeddings": False}
    return tensors, config


def plan_gpt_oss(total_bytes):
    """The same for gpt-oss-20b: its vocabulary, at most its 24 layers. Shapes with the type where that is not BF16."""
    hidden, width, experts, vocab, q, kv = 2880, 2880, 32, 201088, 64 * 64, 8 * 64
    layer = experts * 3 * hidden * width * 17 // 32 + 2 * (2 * q * hidden + 2 * kv * hidden)
    layers = min(24, max(1, (total_bytes - 4 * hidden * vocab) // layer))
    tensors = [("model.embed_tokens.weight", (vocab, hidden))]
    for i in range(layers):
        p = f"model.layers.{i}."
        for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            tensors += [(p + f"self_attn.{name}_proj.weight", (rows, columns)),
                        (p + f"self_attn.{name}_proj.bias", (rows,))]
        tensors += [(p + "self_attn.sinks", (64,)), (p + "mlp.router.weight", (experts, hidden)),
                    (p + "mlp.router.bias", (experts,))]
        tensors += [(p + f"{x}_layernorm.weight", (hidden,)) for x in ("input", "post_attention")]
        for name, rows in (("gate_up", 2 * width), ("down", hidden)):
            tensors += [(p + f"mlp.experts.{name}_proj_blocks", (experts, rows, hidden // 32, 16), "U8"),
                        (p + f"mlp.experts.{name}_proj_scales", (experts, rows, hidden // 32), "U8"),
                        (p + f"mlp.experts.{name}_proj_bias", (experts, rows))]
    tensors += [("model.norm.weight", (hidden,)), ("lm_head.weight", (vocab, hidden))]
    config = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": vocab, "hidden_size": hidden,
              "intermediate_size": width, "num_hidden_layers": layers, "num_attention_heads": 64,
              "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": experts, "num_experts_per_tok": 4,
              "sliding_window": 128, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 150000.0,
              "attention_bias": True, "tie_word_embeddings": False, "quantization_config": {"quant_method": "mxfp4"}}
    return tensors, config


def random_block(bytes_):
    """bf16 numbers of either sign between 1/64 and 1/32: about 1 / sqrt(HIDDEN), all finite."""
    bits = int.from_bytes(os.urandom(bytes_), "little")
    mask, base = (int.from_bytes(struct.pack("<H", x) * (bytes_ // 2), "little") for x in (0x807F, 0x3C80))
    return (bits & mask | base).to_bytes(bytes_, "little")


def size(shape, dtype="BF16"):
    n = 2 if dtype == "BF16" else 1
    for d in shape:
        n *= d
    return n


def write_safetensors(path, tensors, write_data):
    header, offset = {}, 0
    for name, dtype, shape, bytes_ in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + bytes_]}
        offset += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, _, _, bytes_ in tensors:
            write_data(f, name, bytes_)
    return offset


def write_checkpoint(folder, tensors, config):
    block = random_block(16 << 20)
    ones = struct.pack("<H", 0x3F80)

    def write_data(f, name, bytes_):
        if name.endswith("norm.weight"):
            f.write(ones * (bytes_ // 2))
            return
        if name.endswith("_scales"):
            f.write(bytes([120]) * bytes_)               # 2^-7: E2M1 becomes about 1 / sqrt(2880)
            return
        for at in range(0, bytes_, len(block)):
            start = hash((name, at)) % 4096 * 2          # not the same numbers in every tensor
            f.write(block[start:start + min(bytes_ - at, len(block) - 8192)])
            rest = min(bytes_ - at, len(block)) - min(bytes_ - at, len(block) - 8192)
            f.write(block[:rest])

    shards, current, filled = [], [], 0
    for name, shape, *other in tensors:
        bytes_ = size(shape, *other)
        if filled + bytes_ > SHARD_BYTES:
            shards.append(current)
            current, filled = [], 0
        current.append((name, *(other or ["BF16"]), shape, bytes_))
        filled += bytes_
    shards.append(current)
    index, written = {}, 0
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        written += write_safetensors(os.path.join(folder, name), shard, write_data)
        index.update({t[0]: name for t in shard})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": written}, "weight_map": index}, f)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return written, len(shards)


def there(folder):
    """Bytes and shards of a checkpoint that is there already."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return None
    with open(index) as f:
        found = json.load(f)
    return found["metadata"]["total_size"], len(set(found["weight_map"].values()))


def read_roof(program):
    """GB/s"""
    out = subprocess.run([program, "bench", "roof", "--json"], stdout=subprocess.PIPE, check=True).stdout
    return json.loads(out)["read_bytes_per_second"] / 1e9


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--shape", choices=["olmoe", "gpt-oss"], default="olmoe")
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--precision", choices=["fp32", "bf16", "int8"], default="bf16")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint there")
    args = parser.parse_args()
    program = os.path.join(os.path.dirname(__file__), "..", "build", "release", "coterie")
    os.makedirs(args.folder, exist_ok=True)
    plan = plan_olmoe if args.shape == "olmoe" else plan_gpt_oss
    written, shards = there(args.folder) or write_checkpoint(args.folder, *plan(int(args.gigabytes * 1e9)))
    tokens, stats, output = (os.path.join(args.folder, name) for name in ("tokens.st", "stats.json", "output.st"))
    ids = [1 + 37 * i % 997 for i in range(args.tokens)]
    write_safetensors(tokens, [("ids.0", "I32", (len(ids),), 4 * len(ids)), ("prefill_tokens.0", "I32", (1,), 4)],
                      lambda f, name, _: f.write(struct.pack(f"<{len(ids)}i", *ids) if name[0] == "i" else struct.pack("<i", 4)))
    roofs = [read_roof(program)]
    began = time.monotonic()
    process = subprocess.Popen([program, "eval", args.folder, "--tokens", tokens, "--precision", args.precision, "--ranks",
                                str(args.ranks), f"--stats={stats}", "--output", output])
    usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    status = os.waitstatus_to_exitcode(usage[1])
    print(f"{written / 1e9:.2f} GB of weights in {shards} shards, {args.ranks} ranks: "
          f"VmHWM {usage[2].ru_maxrss * 1024 / 1e9:.2f} GB, {seconds:.1f} s, exit status {status}")
    if status == 0 and len(ids) > 4:
        roofs.append(read_roof(program))
        with open(stats) as f:
            told = json.load(f)
        rate = told["decode_read_bytes"] / told["decode_ns"]
        print(f"decode: {told['decode_tokens_per_second']:.2f} tokens/s, {told['decode_read_bytes'] / (len(ids) - 4) / 1e9:.2f} GB "
              f"a token, {rate:.1f} GB/s: {100 * rate / max(roofs):.0f} % of the read roof "
              f"({roofs[0]:.1f} GB/s before, {roofs[1]:.1f} after)")
    if not args.keep:
        shutil.rmtree(args.folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
