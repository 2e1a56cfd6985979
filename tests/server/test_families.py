"""Every family that golden/families has is served once: the likeliest ids of its small checkpoint, over HTTP."""

import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest

from serving import SOURCE, Server

FAMILIES = pathlib.Path(os.environ["COT_SHARED"]) / "golden/families"
VOCABULARY = 331
ABSENT = "lfm2-moe nemotron-h nemotron-h-latent bailing-hybrid jetmoe gemma4-moe".split()


def tensor(path, name):
    """Of 32-bit whole numbers."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
    return list(struct.unpack(f"<{(end - begin) // 4}i", data[8 + length + begin : 8 + length + end]))


def model_of(family, folder):
    """A folder with the family's files, and a tokenizer that has a token for each of its ids."""
    tokenizer = json.loads((SOURCE / "tests/golden/formats/tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for token in range(len(vocabulary), VOCABULARY):
        vocabulary[f"token{token}"] = token
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in "config.json", "model.safetensors":
        (folder / name).symlink_to(family / name)
    return folder


class Families(unittest.TestCase):
    def test_likeliest_ids(self):
        folders = [f for f in sorted(FAMILIES.iterdir()) if f.is_dir() and f.name not in ABSENT]
        self.assertGreaterEqual(len(folders), 27)
        for number, family in enumerate(folders):
            with self.subTest(family.name), tempfile.TemporaryDirectory() as folder:
                model = model_of(family, pathlib.Path(folder))
                options = ["--precision", "fp32", "--ranks", 1 + number % 2, "--attention", ("tp", "dp")[number // 2 % 2]]
                with Server(*options, model=model) as server:
                    self.ask(server, family)

    def test_turns(self):
        """A second turn computes what is new, and says what a server says that keeps nothing."""
        for name in "qwen3-next", "qwen3-5-moe", "qwen3-5-moe-text":
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model = model_of(FAMILIES / name, pathlib.Path(folder))
                first = tensor(FAMILIES / name / "expected.safetensors", "ids.1")[:70]
                said = []
                for caching in ["--block-size", 16], ["--no-enable-prefix-caching"]:
                    with Server("--precision", "fp32", *caching, model=model) as server:
                        one = self.say(server, first)
                        before = server.metric("vllm:prefix_cache_hits_total")
                        two = self.say(server, first + one + list(range(20, 45)))
                        found = server.metric("vllm:prefix_cache_hits_total") - before
                        said.append((one, two))
                        # of 70 + 24 - 1 that the first turn fed, all whole blocks; what is left was computed
                        self.assertEqual(found, 80 if "--block-size" in caching else 0)
                self.assertEqual(said[0], said[1])

    def say(self, server, prompt):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
        status, answer = server.post("/v1/completions", body)
        self.assertEqual(status, 200, answer)
        self.assertEqual(len(answer["choices"][0]["token_ids"]), 24)
        return answer["choices"][0]["token_ids"]

    def ask(self, server, family):
        answers = family / "expected.safetensors"
        for q in "01":
            greedy = tensor(answers, f"greedy.{q}")
            prompt = tensor(answers, f"ids.{q}")[: -len(greedy)]
            body = {"model": "tiny", "prompt": prompt, "max_tokens": len(greedy), "temperature": 0, "return_token_ids": True, "n": 1 + int(q)}
            status, answer = server.post("/v1/completions", body)
            if family.name.endswith("-beyond"):  # sparse attention would be needed
                self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"))
                self.assertIn("this model's context is 20 tokens", answer["error"]["message"])
                self.assertEqual(json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"], 20)
                continue
            self.assertEqual(status, 200, answer)
            self.assertEqual([c["token_ids"] for c in answer["choices"]], [greedy] * body["n"], family.name)


if __name__ == "__main__":
    if not FAMILIES.is_dir():
        print(f"SKIPPED: there is no '{FAMILIES}'")
        sys.exit(77)
    unittest.main()
