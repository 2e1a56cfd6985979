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

    def test_refusals(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            for words, says in [
                (("convert", GOLDEN / "arch/olmoe.gguf", "-o", out), "is GGUF, of which no folder is written"),
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
