"""`coterie bench serve` against `coterie serve`: both ends count the same, and what is refused is counted apart."""

import json
import os
import subprocess
import unittest

from serving import PROGRAM, SECONDS, Peer, Server


class Bench(unittest.TestCase):
    def measure(self, server, *options, status=0):
        url = f"http://127.0.0.1:{server.port}"
        command = [PROGRAM, "bench", "serve", url, "--json", *map(str, options)]
        env = {k: v for k, v in os.environ.items() if k != "COTERIE_API_KEY"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=env)
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(done.stdout)

    def check(self, got, server, requests, inputs, outputs):
        """All of them came to their end, with as many tokens as asked, by both ends' count."""
        self.assertEqual((got["sent"], got["completed"], got["failed"], got["failures"]), (requests, requests, 0, {}))
        self.assertEqual((got["input_tokens"], got["output_tokens"]), (inputs, requests * outputs))
        self.assertEqual((got["events"], got["unlike_asked"]), (requests * outputs, 0))
        self.assertEqual(server.metric("vllm:prompt_tokens_total"), inputs)
        self.assertEqual(server.metric("vllm:generation_tokens_total"), requests * outputs)
        self.assertEqual(server.metric("vllm:prefix_cache_hits_total"), got["cached_tokens"])
        self.assertEqual(server.metric("vllm:request_success_total", finished_reason="length"), requests)

    def test_closed_loop(self):
        for streams in (1, 5):
            with Server("--ranks", 2, "--max-num-seqs", 4) as server:
                got = self.measure(server, "-n", 23, "-c", streams, "--input-tokens", 37, "--output-tokens", 11)
                self.check(got, server, 23, 23 * 37, 11)

    def test_open_loop(self):
        with Server("--ranks", 2, "--max-num-seqs", 4) as server:
            got = self.measure(server, "-n", 40, "--request-rate", 400, "--input-tokens", 20, "--output-tokens", 7)
            self.check(got, server, 40, 40 * 20, 7)

    def test_chats(self):
        """The template adds to what is sent; the rest is counted alike at both ends."""
        with Server("--ranks", 2, "--max-num-seqs", 4) as server:
            got = self.measure(server, "-n", 9, "-c", 3, "--backend", "openai-chat", "--input-tokens", 20, "--output-tokens", 5)
            self.assertGreater(got["input_tokens"], 9 * 20)
            self.check(got, server, 9, got["input_tokens"], 5)

    def test_full_queue(self):
        """What finds the queue full is told of as 429; the others are whole, and nobody hangs."""
        for load in (("-c", 24), ("--request-rate", 10000)):
            self.check_full_queue(load)

    def check_full_queue(self, load):
        closed = load[0] == "-c"
        with Server("--max-num-seqs", 1, "--max-queue", 1) as server:
            got = self.measure(server, "-n", 24, *load, "--input-tokens", 8, "--output-tokens", 400, status=int(closed))
            whole, refused = got["completed"], got["failed"] + got["rejected"]
            self.assertEqual((got["sent"], whole + refused), (24, 24))
            self.assertGreater(refused, 0)
            self.assertEqual(got["failures"], {"HTTP 429": refused} if closed else {})
            self.assertEqual(got["output_tokens"], 400 * whole)
            self.assertEqual(server.metric("vllm:generation_tokens_total"), 400 * whole)
            self.assertEqual(server.metric("vllm:request_success_total", finished_reason="length"), whole)

    def test_nul(self):
        """A token may be any byte: an event whose text is NUL counts as any other."""
        event = json.dumps({"choices": [{"index": 0, "text": "\0", "finish_reason": "length"}],
                            "usage": {"prompt_tokens": 8, "completion_tokens": 1}})
        with Peer(event, "[DONE]") as peer:
            got = self.measure(peer, "-n", 3, "--input-tokens", 8, "--output-tokens", 1)
            self.assertEqual((got["completed"], got["events"], got["failures"]), (3, 3, {}))


if __name__ == "__main__":
    unittest.main()
