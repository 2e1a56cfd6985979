"""lm-eval's local-completions model gives a local text the log-likelihood that `coterie eval` gives it, cut alike.

It sends token ids with echo, logprobs 1 and one token more; a task of its own reads the local file."""

import json
import os
import pathlib
import subprocess
import unittest

from pypi import need
from serving import MODEL, SOURCE, Server, run, temporary

PACKAGES = "lm_eval==0.4.13", "transformers==5.17.0", "datasets==5.2.0", "aiohttp==3.14.5", "tenacity==9.2.1", "requests==2.34.2"
PREFIX = 0  # what lm-eval puts before a text: the end-of-text token, as the tokenizer names no beginning
TASK = """
task: local_text
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity}
metadata: {version: 1}
"""
TEXTS = ["README.md", "models/tiny/README.md", "docs/HOUSE.md"]


class LmEval(unittest.TestCase):
    def rolling(self, url, texts, window, batch, streams):
        """What lm-eval sums for each text."""
        with temporary() as name:
            folder = pathlib.Path(name)
            (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
            (folder / "local_text.yaml").write_text(TASK % json.dumps(str(folder / "texts.jsonl")))
            # it keeps one token for the answer, and one for what comes before the first
            given = {"model": "tiny", "base_url": url + "/v1/completions", "tokenizer_backend": "huggingface", "tokenizer": MODEL}
            given |= {"max_length": window + 2, "num_concurrent": streams}
            command = [pathlib.Path(PYTHON).parent / "lm_eval", "run", "--model", "local-completions", "--tasks", "local_text"]
            command += ["--model_args", ",".join(f"{k}={v}" for k, v in given.items()), "--include_path", folder]
            command += ["--batch_size", str(batch), "--log_samples", "--output_path", folder / "out"]
            env = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": name, "OPENAI_API_KEY": "none"}
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, env=env)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertNotIn("API request failed", done.stdout + done.stderr)
            [samples] = (folder / "out").rglob("samples_local_text_*.jsonl")
            lines = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda line: line["doc_id"])
            self.assertEqual([line["doc"]["text"] for line in lines], texts)
            return [float(line["resps"][0][0]) for line in lines]

    def evaluated(self, text, window):
        """What `coterie eval` sums, as its lines say, and how many predictions these are."""
        with temporary() as folder:
            path = pathlib.Path(folder) / "text"
            path.write_text(text)
            options = "--prefix-token", PREFIX, "--window", window, "--ranks", 2, "--attention", "dp", "--json"
            done = run("eval", MODEL, "--text", path, *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            all_of_it = json.loads(done.stdout)["all"]
            return -all_of_it["nats"] * all_of_it["predictions"], all_of_it["predictions"]

    def test_rolling(self):
        texts = [(SOURCE / name).read_text()[:12000] for name in TEXTS] + ["x", "Two words", "naïve 東京\n"]
        with Server("--ranks", 2, "--max-num-seqs", 8) as server:
            url = f"http://127.0.0.1:{server.port}"
            counts = [server.post("/tokenize", {"prompt": t, "add_special_tokens": False})[1]["count"] for t in texts]
            # one at a time, in batches, and at once; windows of any length, and as long as they can be
            for window, batch, streams in ((128, 1, 1), (33, 5, 1), (510, 1, 4)):
                sums = self.rolling(url, texts, window, batch, streams)
                for text, count, theirs in zip(texts, counts, sums):
                    ours, predictions = self.evaluated(text, window)
                    self.assertEqual(predictions, count)
                    self.assertLess(ours, 0)
                    print(f"window {window}: {predictions} predictions, lm-eval {theirs:.4f}, coterie eval {ours:.4f}")
                    self.assertLessEqual(abs(theirs - ours), 1e-3 * abs(ours))


if __name__ == "__main__":
    PYTHON = need("lm-eval", *PACKAGES)
    unittest.main()
