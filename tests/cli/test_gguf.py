"""Commands on GGUF files: the greedy texts that others computed, what `info` tells, chats by the file's template, and refusals in a line."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["COT_PROGRAM"]
GOLDEN = pathlib.Path(os.environ["COT_SHARED"]) / "golden/gguf"


def run(*words, text=""):
    return subprocess.run([PROGRAM, *map(str, words)], input=text.encode(), capture_output=True)


def decode(model, ids):
    return json.loads(run("tokenize", model, "--jsonl", text=json.dumps({"ids": ids})).stdout)["decoded_skip"]


class Gguf(unittest.TestCase):
    def test_greedy_texts(self):
        rows = [json.loads(line) for line in (GOLDEN / "arch/greedy.jsonl").read_text().splitlines()]
        files = {}
        for row in rows:
            files.setdefault(row["file"], row)
        self.assertGreater(len(files), 12)
        for name, row in files.items():
            model = GOLDEN / "arch" / name
            found = run("run", model, "-p", row["prompt"], "-n", 12, "--precision", "fp32", "--ranks", 2)
            self.assertEqual(found.returncode, 0, found.stderr)
            wanted = decode(model, row["next"])
            self.assertEqual(found.stdout.decode().rstrip("\n"), wanted.rstrip("\n"), name)

    def test_info(self):
        told = json.loads(run("info", GOLDEN / "quant/qwen3moe-Q4_K_M.gguf", "--ranks", 1, "--json").stdout)
        stored = told["stored"]
        self.assertEqual((stored["format"], stored["name"], stored["files"]), ("gguf", "tiny qwen3moe", 1))
        self.assertEqual([t["type"] for t in stored["types"]], ["Q4_K", "Q6_K", "F32"])
        self.assertEqual(sum(t["bytes"] for t in stored["types"]), stored["bytes"])
        self.assertEqual(told["tokenizer_tokens"], 512)
        said = run("info", GOLDEN / "quant/qwen3moe-Q8_0.gguf").stdout.decode()
        self.assertIn("Q8_0 ", said)
        self.assertIn("(kept: int8)", said)
        parts = json.loads(run("info", GOLDEN / "container/parts-00001-of-00003.gguf", "--ranks", 1, "--json").stdout)
        self.assertEqual(parts["stored"]["files"], 3)

    def test_chat_template(self):
        said = run("tokenize", GOLDEN / "arch/olmoe.gguf", "--messages", "-", text='[{"role": "user", "content": "hi"}]')
        self.assertEqual(said.stdout.decode().rstrip("\n"), "<|bos|>user: hi\nassistant: ")

    def test_folders(self):
        """A folder that is made of a file runs, answers and counts tokens as the file does; and what it is in."""
        row = json.loads((GOLDEN / "arch/greedy.jsonl").read_text().splitlines()[0])
        chat = "tokenize", "--messages", "-"
        for name, types in [("arch/olmoe", {"F32"}), ("arch/mixtral", {"BF16", "F32"}), ("arch/gpt-oss", {"BF16", "F32", "U8"}),
                            ("quant/qwen3moe-Q8_0", {"F16", "F32", "I32", "I64"}),
                            ("quant/qwen3moe-MXFP4_MOE", {"F16", "F32", "I32", "I64", "U8"})]:
            with tempfile.TemporaryDirectory() as folder:
                file, made = GOLDEN / f"{name}.gguf", pathlib.Path(folder) / "made"
                done = run("convert", file, "-o", made)
                self.assertEqual(done.returncode, 0, done.stderr)
                header = (made / "model.safetensors").read_bytes()
                tensors = json.loads(header[8:8 + int.from_bytes(header[:8], "little")])
                self.assertEqual({t["dtype"] for n, t in tensors.items() if n != "__metadata__"}, types, name)
                words = "-p", row["prompt"], "-n", 12, "--precision", "fp32", "--ranks", 2
                told = [run("run", model, *words) for model in (file, made)]
                self.assertEqual(told[0].stdout, told[1].stdout, told[1].stderr)
                chats = [run(*chat[:1], model, *chat[1:], text='[{"role": "user", "content": "hi"}]') for model in (file, made)]
                self.assertEqual((chats[0].returncode, chats[0].stdout), (chats[1].returncode, chats[1].stdout), chats[1].stderr)

    def test_rounded(self):
        """In bf16 all that was in blocks takes two bytes, and int4 is what rounding at load makes of the file."""
        file = GOLDEN / "quant/qwen3moe-Q4_K_M.gguf"
        with tempfile.TemporaryDirectory() as folder:
            sizes = {}
            for weights in ("as-stored", "bf16", "int4"):
                made = pathlib.Path(folder) / weights
                self.assertEqual(run("convert", file, "-o", made, "--weights", weights).returncode, 0)
                sizes[weights] = (made / "model.safetensors").stat().st_size
                as_loaded = "--weights", weights, "--weights-attention", "int8" if weights == "int4" else weights, "--weights-head", "fp32"
                words = "-p", "The", "-n", 12, "--precision", "fp32" if weights != "bf16" else "bf16", "--ranks", 1
                if weights == "int4":
                    self.assertEqual(run("run", made, *words).stdout, run("run", file, *words, *as_loaded).stdout)
                else:
                    self.assertEqual(run("run", made, *words).returncode, 0)
            self.assertGreater(sizes["as-stored"], 1.3 * sizes["bf16"])
            self.assertGreater(sizes["bf16"], 1.2 * sizes["int4"])

    def test_a_tensor_that_lacks(self):
        """`info` refuses what `run` does."""
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.gguf"
            for name, tensor in (("olmoe", b"blk.0.ffn_gate_inp.weight"), ("olmoe", b"output_norm.weight"), ("gpt-oss", b"blk.0.attn_q.bias"),
                                 ("gpt-oss", b"blk.1.attn_v.bias"), ("qwen3moe", b"blk.0.attn_q_norm.weight")):  # fmt: skip
                whole = (GOLDEN / f"arch/{name}.gguf").read_bytes()
                self.assertEqual(whole.count(tensor), 1)
                model.write_bytes(whole.replace(tensor, tensor.replace(b"weight", b"height").replace(b"bias", b"bier")))
                told = [run(*words) for words in (("run", model, "-p", "x"), ("info", model), ("info", model, "--json"))]
                for found in told:
                    self.assertEqual((found.returncode, found.stdout, found.stderr), (1, b"", told[0].stderr))
                self.assertRegex(told[0].stderr.decode(), f"^coterie: .*{tensor.decode()}.*\n$")
            for name, tensor in (("gpt-oss", b"attn_q.bias"), ("glm4moe", b"attn_q_norm.weight")):  # of all layers: those of k are there
                whole = (GOLDEN / f"arch/{name}.gguf").read_bytes()
                model.write_bytes(whole.replace(tensor, tensor.replace(b"weight", b"height").replace(b"bias", b"bier")))
                told = run("info", model)
                self.assertEqual((told.returncode, told.stdout), (1, b""))
                self.assertRegex(told.stderr.decode(), f"^coterie: .*{tensor.decode()}.*\n$")

    def test_refusals(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            for words, says in [
                (("convert", GOLDEN / "arch/mixtral-llama3.gguf", "-o", out), "'rope_freqs.weight' no folder is written"),
                (("convert", GOLDEN / "bad/cut-data.gguf", "-o", out), "cut off?"),
                (("run", GOLDEN / "bad/cut-data.gguf", "-p", "x"), "cut off?"),
                (("tokenize", GOLDEN / "bad/pre-unknown.gguf", "x"), "'nonesuch' cuts words is not known"),
            ]:
                found = run(*words)
                said = found.stderr.decode()
                self.assertEqual((found.returncode, said.count("\n"), found.stdout), (1, 1, b""), said)
                self.assertIn(says, said)
            self.assertFalse(out.exists())


if __name__ == "__main__":
    if not GOLDEN.is_dir():
        print(f"SKIPPED: there is no '{GOLDEN}'")
        sys.exit(77)
    unittest.main()
