"""guidellm, a public load generator, completes its runs against `coterie serve`, and both count the same tokens.

It is the last release that needs no torch. Tokenizer and texts are local: it fetches nothing."""

import json
import os
import pathlib
import subprocess
import unittest

from pypi import need
from serving import MODEL, Server, temporary

PACKAGES = "guidellm==0.3.1", "transformers==5.17.0", "datasets==5.0.1", "httpx==0.28.1"
REQUESTS, OUTPUT = 40, 16


class GuideLLM(unittest.TestCase):
    def complete_run(self, rate_type, *rate, path="text_completions"):
        with Server("--ranks", 2, "--max-num-seqs", 8) as server, temporary() as folder:
            out = pathlib.Path(folder) / "report.json"
            command = [pathlib.Path(PYTHON).parent / "guidellm", "benchmark", "run", "--target", f"http://127.0.0.1:{server.port}"]
            command += ["--model", "tiny", "--processor", MODEL, "--data", json.dumps({"prompt_tokens": 32, "output_tokens": OUTPUT})]
            command += ["--rate-type", rate_type, *rate, "--max-requests", str(REQUESTS), "--disable-progress", "--output-path", out]
            env = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": folder, "GUIDELLM__PREFERRED_ROUTE": path}
            env["GUIDELLM__MAX_WORKER_PROCESSES"] = "2"
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=500, env=env)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            [benchmark] = json.loads(out.read_text())["benchmarks"]
            totals, answers = benchmark["request_totals"], benchmark["requests"]["successful"]
            self.assertEqual((totals["successful"], totals["errored"], totals["incomplete"]), (REQUESTS, 0, 0))
            self.assertEqual({a["request_type"] for a in answers}, {path})
            self.assertEqual([a["output_tokens"] for a in answers], [OUTPUT] * REQUESTS)

            def counted(text):
                body = {"messages": [{"role": "user", "content": text}]} if path == "chat_completions" else {"prompt": text}
                return server.post("/tokenize", body)[1]["count"]

            self.assertEqual([a["prompt_tokens"] for a in answers], [counted(a["prompt"]) for a in answers])
            # it and each of its workers first ask for one token, to see whether the server lives
            own = server.metric("vllm:request_success_total") - REQUESTS
            self.assertGreaterEqual(own, 1)
            self.assertEqual(server.metric("vllm:generation_tokens_total"), REQUESTS * OUTPUT + own)
            inputs = sum(a["prompt_tokens"] for a in answers) + own * counted("Test connection")
            self.assertEqual(server.metric("vllm:prompt_tokens_total"), inputs)
            self.assertEqual(server.metric("vllm:request_success_total", finished_reason="abort"), 0)

    def test_concurrent(self):
        self.complete_run("concurrent", "--rate", "6")

    def test_poisson(self):
        self.complete_run("poisson", "--rate", "40")

    def test_throughput(self):
        self.complete_run("throughput")

    def test_chat(self):
        self.complete_run("concurrent", "--rate", "6", path="chat_completions")


if __name__ == "__main__":
    PYTHON = need("guidellm", *PACKAGES)
    unittest.main()
