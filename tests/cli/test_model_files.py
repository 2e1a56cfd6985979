"""Models as other programs write them, by `coterie eval`: logits must be those of transformers. The cases' folders, and each golden
checkpoint written anew here: experts of a layer in one tensor, as a base model's, and with names of other families."""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
SHARED = pathlib.Path(os.environ["COT_SHARED"])
CASES, GOLDEN = SHARED / "cases" / "models", SHARED / "golden"
if not CASES.is_dir() or not GOLDEN.is_dir():
    print(f"SKIPPED: no cases or golden checkpoints at {SHARED}")
    sys.exit(77)
FAMILIES = "mixtral", "olmoe", "qwen2-moe", "qwen3-moe", "deepseek-v2", "deepseek-v2-lite", "deepseek-v3"
TIED = "qwen3-moe-tied"
# What transformers 5 calls the tensors of these when it does not write a family's own names.
LATER = {"afmoe": {}, "dots1": {}, "minimax-m2": {}, "flex-olmo": {}, "solar-open": {},
         "ernie4-5-moe": {"mlp.moe_statics.": "mlp.gate.moe_statics."},
         "hy-v3": {"mlp.router.gate.": "mlp.gate.", "mlp.expert_bias": "mlp.e_score_correction_bias", "shared_mlp.": "shared_experts."},
         "granitemoe": {".mlp.router.layer.": ".block_sparse_moe.router.",
                        ".mlp.input_linear.weight": ".block_sparse_moe.experts.gate_up_proj",
                        ".mlp.output_linear.weight": ".block_sparse_moe.experts.down_proj"}}
LATER["granitemoeshared"] = LATER["granitemoe"]


def read(path):
    """Name -> (dtype, shape, bytes)."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[end + t["data_offsets"][0]:end + t["data_offsets"][1]])
            for name, t in header.items()}


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def read_model(folder):
    return {name: t for path in folder.glob("model*.safetensors") for name, t in read(path).items()}


def fused(tensors):
    """Experts [E][2 I][H], gate's rows first, and [E][H][I], as transformers 5 calls them."""
    out, experts = {}, {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)\.weight", name)
        if not found:
            out[name.replace("block_sparse_moe", "mlp")] = tensor
            continue
        block, expert, part = found.groups()
        part = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(part, part)
        experts.setdefault(block.replace("block_sparse_moe", "mlp"), {})[int(expert), part] = tensor
    for block, parts in experts.items():
        count = 1 + max(expert for expert, _ in parts)
        dtype, (rows, columns), _ = parts[0, "gate_proj"]
        both = b"".join(parts[e, part][2] for e in range(count) for part in ("gate_proj", "up_proj"))
        out[f"{block}.experts.gate_up_proj"] = dtype, [count, 2 * rows, columns], both
        out[f"{block}.experts.down_proj"] = dtype, [count, columns, rows], b"".join(
            parts[e, "down_proj"][2] for e in range(count))
    return out


def bare(tensors):
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def mixed(tensors):
    """Mixtral's names for others' and theirs for Mixtral's, experts' parts in every other layer alone."""
    names = {"mlp.": "block_sparse_moe.", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    names |= {value: key for key, value in names.items()}

    def other(name):
        found = re.fullmatch(r"(model\.layers\.(\d+)\.)(mlp\.|block_sparse_moe\.)(gate\.weight|experts\.\d+\.)(\w*)(.*)", name)
        if not found:
            return name
        head, layer, block, inside, part, end = found.groups()
        return head + names[block] + inside + (names.get(part, part) if int(layer) % 2 else part) + end

    return {other(name): tensor for name, tensor in tensors.items()}


class ModelFiles(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def eval(self, folder, expected):
        out = self.folder / "out.safetensors"
        return subprocess.run([PROGRAM, "eval", folder, "--tokens", expected, "--precision", "fp32", "-o", out],
                              capture_output=True, text=True), out

    def expect_logits(self, folder, expected, near=5e-4, told=""):
        done, out = self.eval(folder, expected)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, f"^{told}$")
        results = read(out)
        for name, (_, shape, data) in read(expected).items():
            if name.startswith("logits."):
                self.assertEqual(results[name][1], shape)
                numbers = (struct.unpack(f"<{len(x) // 4}f", x) for x in (data, results[name][2]))
                self.assertLess(max(abs(x - y) for x, y in zip(*numbers)), near, f"{folder.name}, {name}")

    def test_cases(self):
        warning = ".*warning: config.json ties the head to the embedding, but a head is stored that differs: it is used.*\n"
        for name, told in (("c-q3-fused", ""), ("c-q3-base-tied", ""), ("c-q3-tie-true-with-head", warning)):
            self.expect_logits(CASES / name, CASES / name / "expected.safetensors", 1e-4, told)
        done, _ = self.eval(CASES / "c-q3-base-only", CASES / "c-q3-fused" / "expected.safetensors")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertIn("no head in it, and its config does not tie it", done.stderr)

    def written(self, name, way, golden=GOLDEN):
        folder = self.folder / f"{name}-{way.__name__}"
        folder.mkdir()
        shutil.copy(golden / name / "config.json", folder)
        write(folder / "model.safetensors", way(read_model(golden / name)))
        return folder

    def test_families(self):
        for name in FAMILIES:
            for way in fused, mixed:
                with self.subTest(name=name, way=way.__name__):
                    self.expect_logits(self.written(name, way), GOLDEN / name / "expected.safetensors")

    def test_later_families(self):
        golden = GOLDEN / "families"
        for name, names in LATER.items():
            def renamed(tensors, names=names):
                out = {}
                for old, tensor in fused(tensors).items():
                    for ours, theirs in names.items():
                        old = old.replace(ours, theirs)
                    out[old] = tensor
                return out

            def renamed_base(tensors, renamed=renamed):
                return bare(renamed(tensors))

            for way in renamed, renamed_base:
                tied = json.loads((golden / name / "config.json").read_text()).get("tie_word_embeddings", False)
                if way is renamed or tied:
                    with self.subTest(name=name, way=way.__name__):
                        self.expect_logits(self.written(name, way, golden), golden / name / "expected.safetensors")

    def test_bases(self):
        for name in ("gpt-oss", TIED, "deepseek-v3-fp8"):
            with self.subTest(name=name):
                folder = self.written(name, bare)
                config = json.loads((folder / "config.json").read_text())
                config["architectures"] = [config["architectures"][0].replace("ForCausalLM", "Model")]
                (folder / "config.json").write_text(json.dumps(config))
                self.expect_logits(folder, GOLDEN / name / "expected.safetensors", 2e-3)

    def test_converted(self):
        """`convert` writes the same of each, by the family's own names."""
        for name in ("mixtral", "qwen2-moe", "deepseek-v3"):
            files = []
            for way in (dict, fused, mixed, bare):
                folder, out = self.written(name, way), self.folder / f"{name}-{way.__name__}-int8"
                subprocess.run([PROGRAM, "convert", folder, "-o", out, "--weights", "int8"], check=True, capture_output=True)
                files.append((out / "model.safetensors").read_bytes() + (out / "config.json").read_bytes())
            self.assertEqual([file == files[0] for file in files], 4 * [True], name)

    def test_equal_head(self):
        """One that is stored and equal is no note."""
        folder = self.written(TIED, lambda tensors: tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
        self.expect_logits(folder, GOLDEN / TIED / "expected.safetensors")


if __name__ == "__main__":
    unittest.main()
