#!/usr/bin/env python3
"""Measures a whole model's prefill and decode beside llama.cpp's: the same shape, random weights in bf16, sequences and threads.

    python3 -m venv out/peers && out/peers/bin/pip install numpy gguf llama-cpp-python
    out/peers/bin/python bench/peers_model.py build/release/coterie --sequences 16,64
    out/peers/bin/python bench/peers_model.py build/release/coterie --shape qwen3.6 --sequences 1 --prompt-tokens 512

Both take turns, each in a process of its own: prompts of --prompt-tokens, then --decode-tokens steps that feed every sequence one
token. llama.cpp (through llama-cpp-python, which is built where it is installed) runs with every combination of flash attention
and one or several KV streams in the first round, and from then on with what was the fastest at prefill and at decode; its weights
are bf16, or f16 where that is faster. Coterie runs `bench model` on one rank.

--shape serving: that of `bench/serving`. qwen3.6: four layers of Qwen3.6-35B-A3B, three of them Gated DeltaNet, with a vocabulary
of 4,096; its weights take 6.6 GB, which lie twice on the disk and once in memory.

--json writes {"sequences": {N: {"prefill": {coterie, llama_cpp, ratio, setting}, "decode": {...}, "tried"}}}, in tokens a second;
ratio = Coterie's over llama.cpp's, the median over rounds.
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

PHASES = ("prefill", "decode")
QWEN36 = {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 4,
          "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "moe_intermediate_size": 512,
          "shared_expert_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8, "full_attention_interval": 4,
          "linear_conv_kernel_dim": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
          "linear_value_head_dim": 128, "vocab_size": 4096, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
          "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
          "tie_word_embeddings": False, "hidden_act": "silu"}
SETTINGS = [(kind, flash, unified) for kind in ("BF16", "F16") for flash in (1, 0) for unified in (False, True)]


def serving_shape():
    path = str(pathlib.Path(__file__).with_name("serving"))
    spec = importlib.util.spec_from_loader("serving", importlib.machinery.SourceFileLoader("serving", path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SHAPE


class Weights:
    """A GGUF file of random weights, uniform about zero, under llama.cpp's names."""

    def __init__(self, path, architecture, kind, s):
        import gguf
        import numpy
        self.numpy = numpy
        self.kind = {"BF16": gguf.GGMLQuantizationType.BF16, "F16": gguf.GGMLQuantizationType.F16}[kind]
        self.values = (numpy.random.default_rng(1).random(1 << 24, dtype=numpy.float32) - 0.5) * 0.07
        self.raw = ((self.values.view(numpy.uint32) >> 16).astype(numpy.uint16) if kind == "BF16"
                    else self.values.astype(numpy.float16).view(numpy.uint16))
        self.file = w = gguf.GGUFWriter(path, architecture)
        w.add_block_count(s["num_hidden_layers"])
        w.add_context_length(s["max_position_embeddings"])
        w.add_embedding_length(s["hidden_size"])
        w.add_expert_feed_forward_length(s["moe_intermediate_size"])
        w.add_head_count(s["num_attention_heads"])
        w.add_head_count_kv(s["num_key_value_heads"])
        w.add_key_length(s["head_dim"])
        w.add_value_length(s["head_dim"])
        w.add_expert_count(s["num_experts"])
        w.add_expert_used_count(s["num_experts_per_tok"])
        w.add_layer_norm_rms_eps(s["rms_norm_eps"])
        w.add_tokenizer_model("none")
        w.add_vocab_size(s["vocab_size"])
        self.add("token_embd.weight", s["vocab_size"], s["hidden_size"])
        self.add("output.weight", s["vocab_size"], s["hidden_size"])
        self.ones("output_norm.weight", s["hidden_size"])

    def add(self, name, *dims):
        count = 1
        for n in dims:
            count *= n
        data = self.numpy.resize(self.raw, count).view(self.numpy.uint8).reshape(*dims[:-1], 2 * dims[-1])
        self.file.add_tensor(name, data, raw_dtype=self.kind)

    def wide(self, name, *dims):
        """What stays in fp32."""
        count = 1
        for n in dims:
            count *= n
        self.file.add_tensor(name, self.values[:count].reshape(dims))

    def ones(self, name, n, value=1):
        self.file.add_tensor(name, self.numpy.full(n, value, dtype=self.numpy.float32))

    def attention(self, b, s, gates):
        """Of a layer with keys; gates: each query head has as many, in one matrix with the queries."""
        h, d, heads, kv = s["hidden_size"], s["head_dim"], s["num_attention_heads"], s["num_key_value_heads"]
        for name in ("attn_q_norm", "attn_k_norm"):
            self.ones(b + name + ".weight", d)
        self.add(b + "attn_q.weight", heads * d * (2 if gates else 1), h)
        self.add(b + "attn_k.weight", kv * d, h)
        self.add(b + "attn_v.weight", kv * d, h)
        self.add(b + "attn_output.weight", h, heads * d)

    def experts(self, b, s):
        h, e, i = s["hidden_size"], s["num_experts"], s["moe_intermediate_size"]
        self.wide(b + "ffn_gate_inp.weight", e, h)
        self.add(b + "ffn_gate_exps.weight", e, i, h)
        self.add(b + "ffn_up_exps.weight", e, i, h)
        self.add(b + "ffn_down_exps.weight", e, h, i)

    def close(self):
        self.file.write_header_to_file()
        self.file.write_kv_data_to_file()
        self.file.write_tensors_to_file()
        self.file.close()


def write_qwen3(path, kind, s):
    w = Weights(path, "qwen3moe", kind, s)
    w.file.add_feed_forward_length(s["intermediate_size"])
    w.file.add_rope_freq_base(s["rope_theta"])
    for n in range(s["num_hidden_layers"]):
        b = f"blk.{n}."
        for name in ("attn_norm", "ffn_norm"):
            w.ones(b + name + ".weight", s["hidden_size"])
        w.attention(b, s, False)
        w.experts(b, s)
    w.close()


def write_qwen36(path, kind, s):
    w = Weights(path, "qwen35moe", kind, s)
    h, dk, dv = s["hidden_size"], s["linear_key_head_dim"], s["linear_value_head_dim"]
    keys, values, taps = s["linear_num_key_heads"], s["linear_num_value_heads"], s["linear_conv_kernel_dim"]
    shared, every = s["shared_expert_intermediate_size"], s["full_attention_interval"]
    rotated = int(s["head_dim"] * s["rope_parameters"]["partial_rotary_factor"])
    w.file.add_expert_shared_feed_forward_length(shared)
    w.file.add_full_attention_interval(every)
    w.file.add_rope_freq_base(s["rope_parameters"]["rope_theta"])
    w.file.add_rope_dimension_count(rotated)
    w.file.add_rope_dimension_sections([11, 11, 10, 0])
    w.file.add_ssm_conv_kernel(taps)
    w.file.add_ssm_inner_size(values * dv)
    w.file.add_ssm_state_size(dk)
    w.file.add_ssm_time_step_rank(values)
    w.file.add_ssm_group_count(keys)
    for n in range(s["num_hidden_layers"]):
        b = f"blk.{n}."
        for name in ("attn_norm", "post_attention_norm"):
            w.ones(b + name + ".weight", h)
        if (n + 1) % every == 0:
            w.attention(b, s, True)
        else:
            w.add(b + "attn_qkv.weight", 2 * keys * dk + values * dv, h)
            w.add(b + "attn_gate.weight", values * dv, h)
            w.wide(b + "ssm_conv1d.weight", 2 * keys * dk + values * dv, taps)
            w.wide(b + "ssm_dt.bias", values)
            w.ones(b + "ssm_a", values, -1)  # minus the rate of decay
            w.add(b + "ssm_beta.weight", values, h)
            w.add(b + "ssm_alpha.weight", values, h)
            w.ones(b + "ssm_norm.weight", dv)
            w.add(b + "ssm_out.weight", h, values * dv)
        w.experts(b, s)
        w.wide(b + "ffn_gate_inp_shexp.weight", h)
        w.add(b + "ffn_gate_shexp.weight", shared, h)
        w.add(b + "ffn_up_shexp.weight", shared, h)
        w.add(b + "ffn_down_shexp.weight", h, shared)
    w.close()


def run_llama(path, sequences, prompt, tokens, flash, unified, threads, vocab):
    """Tokens a second of prompts, and of `tokens` steps behind them; in a process of its own."""
    import llama_cpp as l
    import random
    l.llama_backend_init()
    params = l.llama_model_default_params()
    params.use_mmap = False
    model = l.llama_load_model_from_file(path.encode(), params)
    c = l.llama_context_default_params()
    c.n_ctx = sequences * ((prompt + 4 + tokens + 255) // 256 * 256)
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

    prompts = [(s, p, p == prompt - 1) for s in range(sequences) for p in range(prompt)]
    feed(prompts)  # warm
    l.llama_memory_clear(l.llama_get_memory(context), True)
    begin = time.perf_counter()
    feed(prompts)
    prefill = sequences * prompt / (time.perf_counter() - begin)
    for step in range(4):  # warm
        feed([(s, prompt + step, True) for s in range(sequences)])
    begin = time.perf_counter()
    for step in range(4, 4 + tokens):
        feed([(s, prompt + step, True) for s in range(sequences)])
    print(prefill, sequences * tokens / (time.perf_counter() - begin))


def llama(path, sequences, options, setting, vocab):
    """Of each phase; zeros where it does not run so."""
    kind, flash, unified = setting
    done = subprocess.run([sys.executable, __file__, "--llama", path[kind], str(sequences), str(options.prompt_tokens),
                           str(options.decode_tokens), str(flash), str(int(unified)), str(options.threads), str(vocab)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return dict.fromkeys(PHASES, 0.0)
    return dict(zip(PHASES, map(float, done.stdout.split()[-2:])))


def coterie(folder, sequences, options):
    done = subprocess.run([options.coterie, "bench", "model", "--config", f"{folder}/config.json", "--attention", "dp", "--sequences",
                           str(sequences), "--prompt-tokens", str(options.prompt_tokens), "--decode-tokens",
                           str(options.decode_tokens), "--threads", str(options.threads), "--repeat", "1", "--json"],
                          stdout=subprocess.PIPE, text=True, check=True)
    rates = json.loads(done.stdout)
    return {phase: rates[f"{phase}_tokens_per_second"] for phase in PHASES}


def told(setting):
    kind, flash, unified = setting
    return f"{kind}, flash attention {'on' if flash else 'off'}, {'one KV stream' if unified else 'a KV stream a sequence'}"


def compare(folder, paths, sequences, options, vocab):
    tried = {setting: llama(paths, sequences, options, setting, vocab) for setting in SETTINGS}
    best = {phase: max(tried, key=lambda setting: tried[setting][phase]) for phase in PHASES}
    if not all(tried[best[phase]][phase] for phase in PHASES):
        sys.exit("peers_model.py: llama.cpp runs with no setting")
    ours, theirs = [], []
    for _ in range(options.rounds):
        ran = {setting: llama(paths, sequences, options, setting, vocab) for setting in set(best.values())}
        theirs.append({phase: ran[best[phase]][phase] for phase in PHASES})
        ours.append(coterie(folder, sequences, options))
    out = {phase: {"coterie": statistics.median(a[phase] for a in ours), "llama_cpp": statistics.median(b[phase] for b in theirs),
                   "ratio": statistics.median(a[phase] / b[phase] for a, b in zip(ours, theirs)), "setting": told(best[phase])}
           for phase in PHASES}
    out["tried"] = {told(setting): {phase: round(rate, 1) for phase, rate in rates.items()} for setting, rates in tried.items()}
    return out


def main():
    if sys.argv[1:2] == ["--llama"]:
        path, *numbers = sys.argv[2:]
        sequences, prompt, tokens, flash, unified, threads, vocab = map(int, numbers)
        return run_llama(path, sequences, prompt, tokens, flash, bool(unified), threads, vocab)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coterie", help="the program")
    parser.add_argument("--shape", choices=("serving", "qwen3.6"), default="serving")
    parser.add_argument("--sequences", default="16,64")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--decode-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    s, write = (QWEN36, write_qwen36) if options.shape == "qwen3.6" else (serving_shape(), write_qwen3)
    out = {}
    with tempfile.TemporaryDirectory(prefix="coterie-peers-") as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(s))
        paths = {kind: f"{folder}/{kind}.gguf" for kind in ("BF16", "F16")}
        for kind, path in paths.items():
            write(path, kind, s)
        for sequences in map(int, options.sequences.split(",")):
            out[sequences] = compare(folder, paths, sequences, options, s["vocab_size"])
            if not options.json:
                print(f"{sequences} sequences: {json.dumps(out[sequences])}", flush=True)
    if options.json:
        print(json.dumps({"sequences": out}, indent=1))


if __name__ == "__main__":
    main()
