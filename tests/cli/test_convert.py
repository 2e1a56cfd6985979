"""`coterie convert`: files read by the layouts' documentation alone, the same results as rounding at load, and what is left
behind when it fails or is stopped; `coterie eval --compare`, which tells results apart."""

import json
import math
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
TINY = pathlib.Path(os.environ["COT_SOURCE"]) / "models" / "tiny"
TIED = "--weights-head", "as-stored"  # the head is the embedding
KINDS = "int4", "int8", "mxfp4"
E2M1 = 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6
SEED = int(os.environ.get("COT_SEED") or random.SystemRandom().getrandbits(32))


def run(*words, fails=0, **more):
    """Standard output; or, of what shall fail, the one line on standard error."""
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, **more)
    if done.returncode != fails or (fails and done.stderr.count("\n") != 1):
        raise AssertionError(f"{words}: exit {done.returncode}, {done.stderr}")
    return done.stderr if fails else done.stdout


def tensors(path):
    """Name -> (dtype, shape, bytes), and the metadata."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    metadata = header.pop("__metadata__", {})
    places = {n: t["data_offsets"] for n, t in header.items()}
    return {n: (t["dtype"], t["shape"], data[end + places[n][0]:end + places[n][1]]) for n, t in header.items()}, metadata


def widen(data):
    """bf16 to floats."""
    return struct.unpack(f"<{len(data) // 2}f", b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))


def unpacked(file, name, kind):
    """(code, scale) of all elements of X.weight, row by row, and the matrix's shape."""
    dtype, (rows, across), data = file[name + ".weight_packed"]
    scale_type, (scale_rows, groups), scales = file[name + ".weight_scale"]
    if kind == "mxfp4":
        assert dtype == scale_type == "U8"
        shape = [rows, 2 * across]
        codes = [E2M1[code] for byte in data for code in (byte & 15, byte >> 4)]
        factors = [2.0 ** (byte - 127) for byte in scales]
    else:
        bits = int(kind[3:])
        assert dtype == "I32" and scale_type == ("BF16" if bits == 4 else "F32")
        kind_of_shape, _, shape_bytes = file[name + ".weight_shape"]
        assert kind_of_shape == "I64"
        shape = list(struct.unpack("<2q", shape_bytes))
        words = struct.unpack(f"<{len(data) // 4}I", data)
        codes = [(word >> at & (1 << bits) - 1) - (1 << bits - 1) for word in words for at in range(0, 32, bits)]
        factors = widen(scales) if bits == 4 else struct.unpack(f"<{len(scales) // 4}f", scales)
    assert scale_rows == rows == shape[0] and groups == (1 if kind == "int8" else shape[1] // 32)
    of_scale = shape[1] // groups
    return [(code, factors[i // of_scale]) for i, code in enumerate(codes)], shape


class Convert(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"COT_SEED={SEED}", flush=True)
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.random = random.Random(SEED)
        for kind in KINDS:
            run("convert", TINY, "-o", cls.folder / kind, "--weights", kind)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_files_by_their_documentation(self):
        source, _ = tensors(TINY / "model.safetensors")
        for kind in KINDS:
            file, metadata = tensors(self.folder / kind / "model.safetensors")
            self.assertEqual(metadata["format"], "pt")
            experts = {n[:-len(".weight")] for n in source if ".experts." in n}
            attention = {n[:-len(".weight")] for n in source if "_proj.weight" in n and ".self_attn." in n}
            for name in source.keys() - {f"{n}.weight" for n in experts | attention}:
                self.assertEqual(file[name], source[name])
            for part, names in (".experts.", experts), ("_proj.", attention):
                self.assertLessEqual(names, {n.rsplit(".", 1)[0] for n in file if part in n})
            self.assertEqual({n for n in file if n.endswith("_proj.weight")}, set())
            error = square = 0.0
            for name in self.random.sample(sorted(attention), 3):
                elements, shape = unpacked(file, name, "int8")
                self.assertEqual(shape, source[f"{name}.weight"][1])
                for x, (code, scale) in zip(widen(source[f"{name}.weight"][2]), elements):
                    self.assertLessEqual(abs(x - code * scale), 0.501 * scale)
            for name in self.random.sample(sorted(experts), 12):
                elements, shape = unpacked(file, name, kind)
                _, was, data = source[f"{name}.weight"]
                self.assertEqual(shape, was)
                for x, (code, scale) in zip(widen(data), elements):
                    error += (x - code * scale) ** 2
                    square += x * x
                    if kind == "int8":
                        self.assertLessEqual(abs(x - code * scale), 0.501 * scale)
            self.assertLess((error / square) ** 0.5, {"int8": 0.0095, "int4": 0.09, "mxfp4": 0.12}[kind])

    def test_configuration(self):
        source = json.loads((TINY / "config.json").read_text())
        names, _ = tensors(TINY / "model.safetensors")
        for kind in KINDS:
            config = json.loads((self.folder / kind / "config.json").read_text())
            told = config.pop("quantization_config")
            self.assertEqual(config, source)
            layout = "mxfp4-pack-quantized" if kind == "mxfp4" else "pack-quantized"
            self.assertEqual((told["quant_method"], told["format"]),
                             ("compressed-tensors", "mixed-precision" if kind == "mxfp4" else layout))
            groups = [(group["targets"], group["format"], *(group["weights"][k] for k in ("num_bits", "type", "strategy", "group_size")))
                      for group in told["config_groups"].values()]
            attention = ["re:.*self_attn.*"], "pack-quantized", 8, "int", "channel", None
            experts = {"int4": (4, "int", "group", 32), "int8": (8, "int", "channel", None), "mxfp4": (4, "float", "group", 32)}[kind]
            self.assertEqual(groups, [(["Linear"], layout, *experts)] if kind == "int8" else
                             [attention, (["re:.*mlp.experts.*"], layout, *experts)])
            linear = {n[:-len(".weight")] for n, (_, shape, _) in names.items() if len(shape) == 2} | {"lm_head"}
            self.assertEqual(set(told["ignore"]),
                             {n for n in linear if "_proj" not in n and n != "model.embed_tokens"})
            for name in "tokenizer.json", "tokenizer_config.json", "generation_config.json":
                self.assertEqual((self.folder / kind / name).read_bytes(), (TINY / name).read_bytes())
            self.assertFalse((self.folder / kind / "heldout.safetensors").exists())

    def drawn(self, name, config, matrices):
        """A folder with a model of random bf16 matrices."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        header, data = {}, b""
        for tensor, shape in matrices.items():
            bits = b"".join(struct.pack("<f", self.random.gauss(0, 0.1))[2:] for _ in range(math.prod(shape)))
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(bits)]}
            data += bits
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        return folder

    def two_layers(self):
        """Qwen2-MoE: a dense layer, and one of experts with a shared one; and Mixtral."""
        common = {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "num_experts_per_tok": 2, "max_position_embeddings": 64}
        qwen = common | {"architectures": ["Qwen2MoeForCausalLM"], "num_experts": 3, "moe_intermediate_size": 32, "qkv_bias": False,
                         "shared_expert_intermediate_size": 32, "intermediate_size": 64, "mlp_only_layers": [0]}
        mixtral = common | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 3, "intermediate_size": 32}
        base = {"model.embed_tokens.weight": [48, 32], "model.norm.weight": [32], "lm_head.weight": [48, 32]}
        for layer in range(2):
            head = f"model.layers.{layer}."
            base |= {f"{head}{norm}_layernorm.weight": [32] for norm in ("input", "post_attention")}
            base |= {f"{head}self_attn.{x}_proj.weight": [16 if x in "kv" else 32, 32] for x in "qkvo"}
        network = lambda head, wide, names=("gate_proj", "up_proj", "down_proj"): {
            f"{head}.{name}.weight": [32, wide] if i == 2 else [wide, 32] for i, name in enumerate(names)}
        of_qwen = base | network("model.layers.0.mlp", 64) | network("model.layers.1.mlp.shared_expert", 32)
        of_qwen |= {"model.layers.1.mlp.gate.weight": [3, 32], "model.layers.1.mlp.shared_expert_gate.weight": [1, 32]}
        of_mixtral = dict(base)
        for expert in range(3):
            of_qwen |= network(f"model.layers.1.mlp.experts.{expert}", 32)
            for layer in range(2):
                block = f"model.layers.{layer}.block_sparse_moe"
                of_mixtral |= network(f"{block}.experts.{expert}", 32, ("w1", "w3", "w2")) | {f"{block}.gate.weight": [3, 32]}
        return self.drawn("qwen", qwen, of_qwen), self.drawn("mixtral", mixtral, of_mixtral)

    def test_readers(self):
        """What readers take the groups for: each matrix is of the kind that its name finds, first by patterns and names, then by its
        class; and all packed that is no expert's is of the kind of the first group that does not single out experts."""
        kinds = {(8, "int"): "int8", (4, "int"): "int4", (4, "float"): "mxfp4"}
        ways = [words for words in ((w, a, h) for w in KINDS for a in (None, "as-stored", *KINDS) for h in (None, *KINDS))]
        for folder in self.two_layers():
            for weights, attention, head in self.random.sample(ways, 12) + [(weights, None, None) for weights in KINDS]:
                more = [f"--weights-{part}={word}" for part, word in (("attention", attention), ("head", head)) if word]
                about = f"{folder.name} {weights} {more}"
                out = self.folder / "written"
                done = subprocess.run([PROGRAM, "convert", folder, "-o", out, f"--weights={weights}", *more], capture_output=True,
                                      text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                sizes = [file.stat().st_size for file in out.iterdir()]
                self.assertEqual(done.stderr.splitlines()[-1], f"coterie: wrote {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB, to '{out}'")
                told = json.loads((out / "config.json").read_text())["quantization_config"]
                file, _ = tensors(out / "model.safetensors")
                shutil.rmtree(out)
                groups = [(g["targets"], kinds[g["weights"]["num_bits"], g["weights"]["type"]]) for g in told["config_groups"].values()]
                dense = next(kind for targets, kind in groups
                             if not any(t.startswith("re:") and "experts" in t for t in targets))
                first = attention or "int8"
                first = first if first != "as-stored" else head or weights
                for name, (_, shape, _) in file.items():
                    module, end = name.rsplit(".", 1)
                    fits = [kind for by_class in (False, True) for targets, kind in groups
                            if any((t == "Linear") if by_class else (re.match(t[3:], module) if t[:3] == "re:" else t == module)
                                   for t in targets)]
                    if end == "weight" and len(shape) == 2:
                        self.assertIn(module, told["ignore"] + ["model.embed_tokens"], about)
                    if end != "weight_packed":
                        continue
                    self.assertNotIn(module, told["ignore"], about)
                    found = ("mxfp4" if file[name][0] == "U8" else
                             "int4" if file[f"{module}.weight_scale"][0] == "BF16" else "int8")
                    expected = (weights if ".experts." in module else head if module == "lm_head" else
                                (attention or "int8") if ".self_attn." in module else first)
                    self.assertEqual((found, fits[0]), (expected, expected), f"{about}: {module}")
                    if ".experts." not in module and (module != "lm_head" or head == first):
                        self.assertEqual(dense, expected, f"{about}: {module}")
                others = [n for n in file if re.search(r"shared_expert\.|layers\.0\.mlp\.(gate|up|down)_proj", n)]
                self.assertEqual({n.rsplit(".", 1)[1] for n in others} == {"weight"}, bool(others) and first != weights, about)
                self.assertEqual("networks of dense layers and shared experts stay as stored" in done.stderr, bool(others) and first != weights, done.stderr)
                self.assertEqual("of two kinds, which transformers reads as one or refuses" in done.stderr, bool(head) and head != first, done.stderr)

    def write_ids(self, lengths, vocabulary=4096):
        """Token sequences of drawn ids."""
        header, at = {}, 0
        for name, length in lengths.items():
            header[f"ids.{name}"] = {"dtype": "I32", "shape": [length], "data_offsets": [at, at + 4 * length]}
            at += 4 * length
        text = json.dumps(header).encode()
        path = self.folder / "ids.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text +
                         struct.pack(f"<{at // 4}i", *(self.random.randrange(vocabulary) for _ in range(at // 4))))
        return path

    def evaluated(self, name, model, ids, *words):
        path = self.folder / f"{name}.safetensors"
        run("eval", model, "--tokens", ids, "-o", path, *words)
        return path

    def test_results_are_those_of_rounding_at_load(self):
        ids = self.write_ids({"a.1": 20, "b.1": 28})
        for kind, ranks in zip(KINDS, self.random.sample((1, 2, 4), 3)):
            group = "--ranks", ranks, "--attention", "dp", "--precision", self.random.choice(("fp32", "bf16", "int8"))
            results = [self.evaluated("x", model, ids, *weights, *group).read_bytes()
                       for model, weights in ((TINY, ("--weights", kind, *TIED)), (self.folder / kind, ()))]
            self.assertTrue(results[0] == results[1], f"{kind}, {group}")

    def test_loading_tells_what_convert_saves(self):
        """Where experts were rounded to four bits while they were loaded, and a folder that has them so can be written."""
        ids, gpt_oss = self.write_ids({"a": 4}, 128), TINY.parent.parent / "tests" / "golden" / "formats" / "gpt-oss-mxfp4"

        def said(model, *words):
            out = self.folder / "x.safetensors"
            done = subprocess.run([PROGRAM, "eval", model, "--tokens", ids, "-o", out, *words], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return re.findall("coterie convert MODEL -o FOLDER --weights ([a-z0-9]+)", done.stderr)

        for kind in "int4", "mxfp4":
            self.assertEqual(said(TINY, "--weights", kind), [kind])
            self.assertEqual(said(self.folder / kind), [])
            self.assertEqual(said(self.folder / kind, "--weights", kind), [])
            self.assertEqual(said(self.folder / "int8", "--weights", kind), [kind])
        self.assertEqual(said(TINY), [])
        self.assertEqual(said(TINY, "--weights", "int8"), [])  # takes no longer than reading
        self.assertEqual(said(gpt_oss, "--weights", "int4"), [])  # has no layout of it
        self.assertIn("no layout of experts in int4", run("convert", gpt_oss, "-o", self.folder / "x", fails=1))

    def test_compare(self):
        """`eval --compare` against sums over both models' logits and experts as `eval -o` writes them."""
        lengths = {"a.1": 9, "a.2": 14, "b.1": 12, "c": 6}
        ids = self.write_ids(lengths)
        lines = run("eval", self.folder / "int4", "--tokens", ids, "--compare", TINY).splitlines()[1:]
        told = {line.split()[0]: [float(x) for x in line.replace("%", "").split()[1:]] for line in lines}
        tokens, _ = tensors(ids)
        files = [tensors(self.evaluated("x", model, ids))[0] for model in (self.folder / "int4", TINY)]
        differences = {}
        for name, length in lengths.items():
            all_ids = struct.unpack(f"<{length}i", tokens[f"ids.{name}"][2])
            nats, kl, same = [0.0, 0.0], 0.0, 0
            for t in range(length):
                logs = []
                for file in files:
                    row = struct.unpack("<4096f", file[f"logits.{name}"][2][16384 * t:16384 * (t + 1)])
                    most = max(row)
                    total = most + math.log(math.fsum(math.exp(x - most) for x in row))
                    logs.append([x - total for x in row])
                kl += math.fsum(math.exp(y) * (y - x) for x, y in zip(*logs)) / length
                same += logs[0].index(max(logs[0])) == logs[1].index(max(logs[1]))
                for i in range(2):
                    nats[i] -= logs[i][all_ids[t + 1]] / (length - 1) if t + 1 < length else 0
            chosen = both = 0
            for key in (k for k in files[0] if k.startswith(f"experts.{name}.")):
                x, y = (struct.unpack(f"<{4 * length}i", file[key][2]) for file in files)
                for t in range(length):
                    both += len(set(x[4 * t:4 * t + 4]) & set(y[4 * t:4 * t + 4]))
                    chosen += 4
            differences[name] = *nats, nats[0] - nats[1], kl, 100 * same / length, 100 * both / chosen
        mean = lambda names: [sum(column) / len(names) for column in zip(*(differences[n] for n in names))]
        expected = {"a": mean(["a.1", "a.2"]), "b": mean(["b.1"]), "c": mean(["c"]), "all": mean(list(lengths))}
        self.assertEqual(told.keys(), expected.keys())
        for name, numbers in expected.items():
            for x, y, near in zip(told[name], numbers, (1e-4, 1e-4, 2e-4, 2e-5, 0.01, 0.01)):
                self.assertLess(abs(x - y), near, f"{name}: {told[name]}, {numbers}")
        self.assertGreater(told["all"][3], 1e-3)
        self.assertIn("--compare is for", run("eval", TINY, "--tokens", ids, "--compare", TINY, "--json", fails=2))

    def test_refused(self):
        out = self.folder / "never"
        self.assertIn("exists", run("convert", TINY, "-o", self.folder / "int4", fails=1))
        self.assertIn("already", run("convert", self.folder / "int4", "-o", out, fails=1))
        self.assertIn("config.json", run("convert", self.folder, "-o", out, fails=1))
        self.assertIn("No such file", run("convert", TINY, "-o", out / "deeper", fails=1))
        self.assertIn("-o FOLDER", run("convert", TINY, fails=2))
        self.assertIn("int4, int8", run("convert", TINY, "-o", out, "--weights", "fp8", fails=2))
        self.assertIn("but of a GGUF file", run("convert", TINY, "-o", out, "--weights", "bf16", fails=1))
        self.assertIn("nothing to convert", run("convert", TINY, "-o", out, "--weights", "as-stored", fails=1))
        full = subprocess.run(["bash", "-c", 'ulimit -f 2000; "$0" convert "$1" -o "$2"', PROGRAM, TINY, out],
                              capture_output=True, text=True)
        self.assertEqual((full.returncode, full.stderr.count("\n")), (1, 1), full.stderr)
        self.assertIn("File too large", full.stderr)
        self.assertEqual([p for p in self.folder.iterdir() if p.name.startswith("never")], [])

    def test_stopped(self):
        """On a terminal; whenever it is told to end, the folder is whole or nothing of it is there."""
        for number in signal.SIGINT, signal.SIGTERM:
            out = self.folder / "stopped"
            main, side = pty.openpty()
            process = subprocess.Popen([PROGRAM, "convert", TINY, "-o", out, "-t", "1"], stderr=side,
                                       env={**os.environ, "TERM": "xterm"})
            os.close(side)
            shown = os.read(main, 4096).decode()
            process.send_signal(number)
            while True:
                try:
                    shown += os.read(main, 4096).decode()
                except OSError:
                    break
            os.close(main)
            self.assertIn("converting [", shown)
            left = [p.name for p in self.folder.iterdir() if p.name.startswith("stopped")]
            if process.wait() == 0:
                self.assertEqual(left, ["stopped"])
                run("info", out)
                subprocess.run(["rm", "-r", out], check=True)
            else:
                self.assertEqual((process.returncode, left), (-number, []), shown)


if __name__ == "__main__":
    unittest.main()
