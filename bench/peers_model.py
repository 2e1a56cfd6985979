#!/usr/bin/env python3
"""Measures a whole model's decode beside llama.cpp's: the same shape, random weights in bf16, sequences and threads.

    python3 -m venv out/peers && out/peers/bin/pip install numpy gguf llama-cpp-python
    out/peers/bin/python bench/peers_model.py build/release/coterie --sequences 16,64

Both take turns, each in a process of its own: prompts of 64 tokens, then --decode-tokens steps that feed every sequence one
token; the time of the prompts is not counted. llama.cpp (through llama-cpp-python, which is built where it is installed) runs
with every combination of flash attention and one or several KV streams in the first round, and with the fastest from then
on; its weights are bf16, or f16 where that is faster. Coterie runs `bench model` on one rank. The shape is that of
`bench/serving`. --json writes {"sequences": {N: {coterie, llama_cpp, ratio, ...}}}, in tokens a second; ratio = Coterie's over
llama.cpp's, the median over rounds.
"""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT = 64
SETTINGS = [(kind, flash, unified) for kind in ("BF16", "F16") for flash in (1, 0) for unified in (False, True)]


def shape():
    path = str(pathlib.Path(__file__).with_name("serving"))
    spec = importlib.util.spec_from_loader("serving", importlib.machinery.SourceFileLoader("serving", path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SHAPE


def write_gguf(path, kind, s):
    """Random weights, uniform about zero, under the names of llama.cpp's qwen3moe."""
    import gguf
    import numpy
    kinds = {"BF16": gguf.GGMLQuantizationType.BF16, "F16": gguf.GGMLQuantizationType.F16}
    values = (numpy.random.default_rng(1).random(1 << 24, dtype=numpy.float32) - 0.5) * 0.07
    raw = (values.view(numpy.uint32) >> 16).astype(numpy.uint16) if kind == "BF16" else values.astype(numpy.float16).view(numpy.uint16)
    h, d, e, i = s["hidden_size"], s["head_dim"], s["num_experts"], s["moe_intermediate_size"]
    heads, kv, vocab = s["num_attention_heads"], s["num_key_value_heads"], s["vocab_size"]
    w = gguf.GGUFWriter(path, "qwen3moe")
    w.add_block_count(s["num_hidden_layers"])
    w.add_context_length(s["max_position_embeddings"])
    w.add_embedding_length(h)
    w.add_feed_forward_length(s["intermediate_size"])
    w.add_expert_feed_forward_length(i)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(d)
    w.add_value_length(d)
    w.add_expert_count(e)
    w.add_expert_used_count(s["num_experts_per_tok"])
    w.add_layer_norm_rms_eps(s["rms_norm_eps"])
    w.add_rope_freq_base(s["rope_theta"])
    w.add_tokenizer_model("none")
    w.add_vocab_size(vocab)

    def add(name, *dims):
        count = 1
        for n in dims:
            count *= n
        data = numpy.resize(raw, count).view(numpy.uint8).reshape(*dims[:-1], 2 * dims[-1])
        w.add_tensor(name, data, raw_dtype=kinds[kind])

    def ones(name, n):
        w.add_tensor(name, numpy.ones(n, dtype=numpy.float32))

    add("token_embd.weight", vocab, h)
    add("output.weight", vocab, h)
    ones("output_norm.weight", h)
    for n in range(s["num_hidden_layers"]):
        b = f"blk.{n}."
        for name in ("attn_norm", "ffn_norm"):
            ones(b + name + ".weight", h)
        for name in ("attn_q_norm", "attn_k_norm"):
            ones(b + name + ".weight", d)
        add(b + "attn_q.weight", heads * d, h)
        add(b + "attn_k.weight", kv * d, h)
        add(b + "attn_v.weight", kv * d, h)
        add(b + "attn_output.weight", h, heads * d)
        w.add_tensor(b + "ffn_gate_inp.weight", values[:e * h].reshape(e, h))
        add(b + "ffn_gate_exps.weight", e, i, h)
        add(b + "ffn_up_exps.weight", e, i, h)
        add(b + "ffn_down_exps.weight", e, h, i)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def run_llama(path, sequences, tokens, flash, unified, threads, vocab):
    """Tokens a second of `tokens` steps; in a process of its own."""
    import llama_cpp as l
    import random
    l.llama_backend_init()
    params = l.llama_model_default_params()
    params.use_mmap = False
    model = l.llama_load_model_from_file(path.encode(), params)
    c = l.llama_context_default_params()
    c.n_ctx = sequences * 256
    c.n_batch = c.n_ubatch = 512
    c.n_seq_max = sequences
    c.n_threads = c.n_threads_batch = threads
    c.flash_attn_type = flash
    c.kv_unified = unified
    context = l.llama_new_context_with_model(model, c)
    if not model or not context:
        sys.exit("llama.cpp does not take the model")
    batch = l.llama_batch_init(512, 0, 1)

    def feed(rows):
        for at in range(0, len(rows), 512):
            part = rows[at:at + 512]
            batch.n_tokens = len(part)
            for n, (sequence, position, logits) in enumerate(part):
                batch.token[n] = random.randrange(vocab)
                batch.pos[n] = position
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = sequence
                batch.logits[n] = logits
            if l.llama_decode(context, batch):
                sys.exit("llama.cpp cannot decode")
        l.llama_synchronize(context)

    feed([(s, p, p == PROMPT - 1) for s in range(sequences) for p in range(PROMPT)])
    for step in range(4):  # warm
        feed([(s, PROMPT + step, True) for s in range(sequences)])
    begin = time.perf_counter()
    for step in range(4, 4 + tokens):
        feed([(s, PROMPT + step, True) for s in range(sequences)])
    print(sequences * tokens / (time.perf_counter() - begin))


def llama(path, sequences, options, setting, vocab):
    kind, flash, unified = setting
    done = subprocess.run([sys.executable, __file__, "--llama", path[kind], str(sequences), str(options.decode_tokens), str(flash),
                           str(int(unified)), str(options.threads), str(vocab)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return 0.0
    return float(done.stdout.split()[-1])


def coterie(folder, sequences, options):
    done = subprocess.run([options.coterie, "bench", "model", "--config", f"{folder}/config.json", "--attention", "dp", "--sequences",
                           str(sequences), "--prompt-tokens", str(PROMPT), "--decode-tokens", str(options.decode_tokens),
                           "--threads", str(options.threads), "--repeat", "1", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["decode_tokens_per_second"]


def main():
    if sys.argv[1:2] == ["--llama"]:
        path, *numbers = sys.argv[2:]
        sequences, tokens, flash, unified, threads, vocab = map(int, numbers)
        return run_llama(path, sequences, tokens, flash, bool(unified), threads, vocab)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coterie", help="the program")
    parser.add_argument("--sequences", default="16,64")
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    s, out = shape(), {}
    with tempfile.TemporaryDirectory(prefix="coterie-peers-") as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(s))
        paths = {kind: f"{folder}/{kind}.gguf" for kind in ("BF16", "F16")}
        for kind, path in paths.items():
            write_gguf(path, kind, s)
        for sequences in map(int, options.sequences.split(",")):
            tried = {setting: llama(paths, sequences, options, setting, s["vocab_size"]) for setting in SETTINGS}
            best = max(tried, key=tried.get)
            if not tried[best]:
                sys.exit("peers_model.py: llama.cpp runs with no setting")
            ours, theirs = [], []
            for _ in range(options.rounds):
                theirs.append(llama(paths, sequences, options, best, s["vocab_size"]))
                ours.append(coterie(folder, sequences, options))
            out[sequences] = {"coterie": statistics.median(ours), "llama_cpp": statistics.median(theirs),
                              "ratio": statistics.median(a / b for a, b in zip(ours, theirs)),
                              "setting": f"{best[0]}, flash attention {'on' if best[1] else 'off'}, "
                                         f"{'one KV stream' if best[2] else 'a KV stream a sequence'}",
                              "tried": {", ".join(map(str, k)): round(v, 1) for k, v in tried.items()}}
            if not options.json:
                print(f"{sequences} sequences: {json.dumps(out[sequences])}", flush=True)
    if options.json:
        print(json.dumps({"sequences": out}, indent=1))


if __name__ == "__main__":
    main()
