"""A model with a token whose values overflow: the requests that meet it fail, and nobody else notices."""

import concurrent.futures
import json
import pathlib
import struct
import unittest

from serving import MODEL, Server, run, temporary

HIDDEN, BAD, PLACE = 192, 4000, 191
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def make_model(folder):
    """Copies the model to `folder`; token BAD alone has something at one place, which layer 0's values blow up."""
    stored = bytearray((MODEL / "model.safetensors").read_bytes())
    (length,) = struct.unpack_from("<Q", stored)
    header = json.loads(stored[8 : 8 + length])

    def put(name, index, value):
        struct.pack_into("<H", stored, 8 + length + header[name]["data_offsets"][0] + 2 * index, value)

    rows = header["model.embed_tokens.weight"]["shape"][0]
    for row in range(rows):
        put("model.embed_tokens.weight", row * HIDDEN + PLACE, 0x4280 if row == BAD else 0)
    put("model.layers.0.self_attn.v_proj.weight", PLACE, 0x7F7F)
    put("model.layers.0.input_layernorm.weight", PLACE, 0x3F80)
    put("model.norm.weight", PLACE, 0)
    (folder / "model.safetensors").write_bytes(stored)
    for path in MODEL.iterdir():
        if path.name != "model.safetensors":
            (folder / path.name).symlink_to(path)


class Overflow(unittest.TestCase):
    def setUp(self):
        self.folder = temporary()
        self.addCleanup(self.folder.cleanup)
        self.model = pathlib.Path(self.folder.name)
        make_model(self.model)

    def assert_failed(self, error):
        self.assertEqual((error["type"], error["code"]), ("server_error", None))
        self.assertIn("overflowed", error["message"])

    def test_server(self):
        for ranks in (1, 4):
            with self.subTest(ranks=ranks), Server("--ranks", ranks, "--max-num-seqs", 4, model=self.model) as server:
                good, bad = list(range(300, 360)), list(range(300, 350)) + [BAD] + list(range(9))
                alone = server.complete(good, **GREEDY, cache_salt="alone")["choices"][0]["text"]
                with concurrent.futures.ThreadPoolExecutor(8) as pool:
                    fine = [pool.submit(server.complete, good, **GREEDY) for _ in range(3)]
                    failing = [pool.submit(server.send, "POST", "/v1/completions", {"prompt": bad} | GREEDY) for _ in range(3)]
                    both = pool.submit(server.send, "POST", "/v1/completions", {"prompt": [good, bad], "n": 2} | GREEDY)
                    drawn = pool.submit(server.send, "POST", "/v1/completions", {"prompt": good, "logit_bias": {str(BAD): 100}, "stream": True} | GREEDY)
                for answer in failing + [both]:
                    status, headers, body = answer.result()
                    # the openai client would send it twice more, were it not told
                    self.assertEqual((status, headers["X-Should-Retry"], headers["Retry-After"]), (500, "false", None))
                    self.assert_failed(json.loads(body)["error"])
                self.assertIsNone(server.send("POST", "/v1/completions", {"prompt": 5.5})[1]["X-Should-Retry"])
                for answer in fine:
                    self.assertEqual(answer.result()["choices"][0]["text"], alone)
                # it was sampled before it overflowed: what was sent is followed by the error, and by nothing else; where
                # the loop heard of both at once, nothing was sent
                status, headers, body = drawn.result()
                if status == 200:
                    events = [json.loads(part[6:]) for part in body.decode().split("\n\n") if part]
                    self.assertEqual(len(events), 2, events)
                    self.assertIsNone(events[0]["choices"][0]["finish_reason"])
                    self.assert_failed(events[1]["error"])
                else:
                    self.assertEqual((status, headers["X-Should-Retry"]), (500, "false"))
                    self.assert_failed(json.loads(body)["error"])
                self.assertEqual(server.complete(good, **GREEDY)["choices"][0]["text"], alone)
                self.assertEqual(server.metric("vllm:num_requests_running"), 0)
                self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
                self.assertGreaterEqual(server.metric("vllm:request_success_total", finished_reason="abort"), 5)
                status, _ = server.get("/health")
                self.assertEqual(status, 200)

    def test_commands(self):
        """`run` goes on with the other prompts, says what went wrong in one line and fails."""
        with Server(model=self.model) as server:
            text = server.post("/detokenize", {"tokens": [BAD]})[1]["prompt"]
            self.assertEqual(server.post("/tokenize", {"prompt": text})[1]["tokens"], [BAD])
        plain = run("run", self.model, "-p", "Once upon", "--max-tokens", 5)
        both = run("run", self.model, "-p", text, "-p", "Once upon", "--max-tokens", 5)
        self.assertEqual(plain.returncode, 0)
        self.assertEqual((both.returncode, both.stdout), (1, "== 1 ==\n\n== 2 ==\n" + plain.stdout))
        self.assertEqual(both.stderr.count("\n"), 1, both.stderr)
        self.assertRegex(both.stderr, r"prompt 1: .*overflowed")


if __name__ == "__main__":
    unittest.main()
