"""/metrics as Prometheus reads it, and the Grafana board over it. With COT_WITH_PROMETHEUS a Prometheus scrapes the server and
answers every query of the board."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

from serving import GREEDY, MODEL, PROMPTS, SECONDS, SOURCE, Server, Shared, temporary

BOARD = json.loads((SOURCE / "examples" / "grafana" / "coterie.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel.get("targets", [])]
CONFIG = json.loads((MODEL / "config.json").read_text())
LINE = re.compile(r"([a-z0-9_:]+)(?:\{(.*)\})? (\S+)$")


def scrape(server):
    """{name: {labels: value}}, every line read strictly."""
    found = {}
    for line in server.get("/metrics")[1].decode().splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        key = tuple(sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")))
        assert key not in found.setdefault(name, {}), line
        found[name][key] = float(value)
    return found


def total(metrics, name, **labels):
    return sum(value for key, value in metrics[name].items() if set(labels.items()) <= set(key))


def settled(server, tokens):
    """Metrics once the engine's counters hold so many tokens."""
    end = time.monotonic() + SECONDS
    while True:
        metrics = scrape(server)
        if "coterie:step_tokens_total" in metrics and total(metrics, "coterie:step_tokens_total") >= tokens:
            return metrics
        assert time.monotonic() < end, metrics.get("coterie:step_tokens_total")
        time.sleep(0.05)


def load(server, count=12):
    """Requests at once; how many tokens went through the engine."""
    used = []

    def one(number):
        usage = server.complete(f"Tale {number}: once upon a time there was", max_tokens=30, ignore_eos=True, seed=number, temperature=1)["usage"]
        used.append(usage["total_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] - 1)  # the last one is fed to nobody

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(used) == count
    return sum(used)


class Metrics(unittest.TestCase):
    def test_engine(self):
        for ranks, options in ((1, ()), (3, ("--attention", "dp")), (2, ("--attention", "tp")), (2, ("--fabric", "processes"))):
            with self.subTest(ranks=ranks, options=options), Server("--ranks", ranks, "--max-num-seqs", 6, *options) as server:
                self.assertNotIn("coterie:sent_bytes_total", scrape(server))  # nothing was computed yet
                tokens = load(server)
                m = settled(server, tokens)
                layers, k = CONFIG["num_hidden_layers"], CONFIG["num_experts_per_tok"]
                self.assertEqual(total(m, "coterie:step_tokens_total"), tokens)
                self.assertEqual(total(m, "vllm:iteration_tokens_total_sum"), tokens)
                self.assertEqual(total(m, "vllm:iteration_tokens_total_count"), total(m, "coterie:steps_total"))
                self.assertEqual(total(m, "vllm:request_num_preemptions_count"), 12)
                self.assertEqual(total(m, "coterie:moe_layers"), layers)
                self.assertEqual(total(m, "coterie:routed_tokens_total"), tokens * layers)
                self.assertEqual(total(m, "coterie:activations_total"), tokens * layers * k)
                steps, distinct = total(m, "coterie:steps_total"), total(m, "coterie:distinct_experts_total")
                self.assertTrue(steps * layers * k <= distinct <= tokens * layers * k, (steps, distinct))
                self.assertEqual(len(m["coterie:distinct_experts_total"]), ranks)
                local, sends = total(m, "coterie:local_activations_total"), total(m, "coterie:remote_sends_total")
                if ranks == 1:
                    self.assertEqual((local, sends), (tokens * layers * k, 0))
                    self.assertEqual(total(m, "coterie:sent_bytes_total", phase="dispatch"), 0)
                else:
                    self.assertTrue(0 < local < tokens * layers * k)
                    self.assertTrue(0 < sends <= tokens * layers * k - local)
                    self.assertGreater(total(m, "coterie:sent_bytes_total", phase="dispatch"), 0)
                self.assertEqual(len(m["coterie:balancedness"]), layers)
                for value in m["coterie:balancedness"].values():
                    self.assertTrue(1 / ranks <= value <= 1 and (ranks > 1 or value == 1), value)
                self.assertGreater(total(m, "coterie:step_seconds_total"), 0)
                self.assertGreater(total(m, "coterie:steps_waited_total"), -1)

    def test_series_are_few(self):
        """No label of an expert, and as many lines as ranks, layers and phases ask for."""
        with Server("--ranks", 4) as server:
            m = settled(server, load(server, 4))
            self.assertFalse([key for values in m.values() for key in values if any(name == "expert" for name, _ in key)])
            self.assertLess(sum(len(values) for name, values in m.items() if name.startswith("coterie:")), 100)

    def test_steps_that_are_sat_out(self):
        with Server("--max-num-seqs", 8, "--max-num-batched-tokens", 4, "--tbt-ms", 0) as server:
            m = settled(server, load(server, 8))
            self.assertGreater(total(m, "coterie:steps_waited_total"), 0)

    def test_the_board_asks_for_what_there_is(self):
        self.assertGreater(len(QUERIES), 30)
        with Server("--ranks", 2) as server:
            names = set(settled(server, load(server, 4)))
        asked = {name for _, query in QUERIES for name in re.findall(r"(?:vllm|coterie):\w+", query)}
        asked |= set(re.findall(r"(?:vllm|coterie):\w+", json.dumps(BOARD["templating"])))
        self.assertEqual(asked - names, set())
        ours = {name for name in names if name.startswith("coterie:")}
        self.assertEqual(ours - asked - {"coterie:kv_event_batches_total", "coterie:kv_event_losses_total"}, set())
        self.assertEqual(len({panel["id"] for panel in BOARD["panels"]}), len(BOARD["panels"]))

    @unittest.skipUnless("COT_WITH_PROMETHEUS" in os.environ, "of the long suite")
    def test_a_prometheus_answers_the_board(self):
        if not shutil.which("prometheus"):
            print("SKIPPED: there is no prometheus (apt-get install prometheus)", file=sys.stderr)
            self.skipTest("no prometheus")
        with temporary() as folder, Server("--ranks", 2) as server:
            path = pathlib.Path(folder) / "prometheus.yml"
            path.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: coterie\n  static_configs:\n  - targets: ['127.0.0.1:{server.port}']\n")
            with socket.create_server(("127.0.0.1", 0)) as one:
                port = one.getsockname()[1]
            process = subprocess.Popen(["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
                                       stderr=subprocess.PIPE)  # fmt: skip
            said = []
            reader = threading.Thread(target=lambda: said.extend(process.stderr))
            reader.start()
            try:
                end = time.monotonic() + 12
                while time.monotonic() < end:
                    load(server, 6)

                def ask(query):
                    query = query.replace("$__rate_interval", "10s").replace("$model", ".*")
                    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                        return json.load(answer)["data"]["result"]

                for title, query in QUERIES:
                    with self.subTest(title=title, query=query):
                        result = ask(query)
                        self.assertTrue(result)
                        if "finished_reason" not in query:
                            self.assertTrue(any(value["value"][1] != "NaN" for value in result), result)
            finally:
                process.terminate()
                process.wait(SECONDS)
                reader.join()
                process.stderr.close()


class Sums(Shared):
    """What requests add to the figures of vLLM's names."""

    def test_metrics(self):
        before = {m: self.server.metric(m) for m in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")}
        ended = self.server.metric("vllm:request_success_total", finished_reason="length")
        answer = self.server.complete(PROMPTS[:2], **GREEDY)
        self.assertEqual(self.server.metric("vllm:generation_tokens_total") - before["vllm:generation_tokens_total"], 24)
        self.assertEqual(self.server.metric("vllm:prompt_tokens_total") - before["vllm:prompt_tokens_total"], answer["usage"]["prompt_tokens"])
        self.assertEqual(self.server.metric("vllm:request_success_total", finished_reason="length") - ended, 2)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)
        # every name that vLLM's own Grafana board asks for
        text = self.server.get("/metrics")[1].decode()
        histograms = ("e2e_request_latency_seconds", "time_per_output_token_seconds", "time_to_first_token_seconds",
                      "request_prompt_tokens", "request_generation_tokens", "request_queue_time_seconds",
                      "request_prefill_time_seconds", "request_decode_time_seconds", "request_max_num_generation_tokens")
        for name in (*(f"{h}_{part}" for h in histograms for part in ("bucket", "sum", "count")), "prompt_tokens_total",
                     "generation_tokens_total", "num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc",
                     "kv_cache_usage_perc", "request_success_total", "inter_token_latency_seconds_sum",
                     "request_inference_time_seconds_sum"):
            self.assertRegex(text, rf"(?m)^vllm:{name}{{[^}}]*model_name=")
        for name in re.findall(r"^# TYPE (\S+)", text, flags=re.M):
            self.assertEqual(text.count(f"# TYPE {name} "), 1)

    def test_metrics_of_complete_choices(self):
        """Choices that need no computing are sequences as the others."""
        names = ("request_success_total", "prompt_tokens_total", "generation_tokens_total", "e2e_request_latency_seconds_count",
                 "request_prompt_tokens_sum", "request_generation_tokens_sum", "request_max_num_generation_tokens_count",
                 "request_max_num_generation_tokens_sum", "prefix_cache_queries_total")  # fmt: skip

        def counts():
            return [self.server.metric("vllm:" + name) for name in names]

        for stream in (False, True):
            before = counts()
            body = {"prompt": [[5, 6, 7], [8, 9]], "n": 2, "max_tokens": 0, "echo": True, "stream": stream}
            self.assertEqual(self.server.send("POST", "/v1/completions", body)[0], 200)
            self.assertEqual([b - a for a, b in zip(before, counts())], [4, 10, 0, 4, 10, 0, 2, 0, 0])
            before = counts()
            body = {"prompt": [5, 6, 7], "n": 2, "max_tokens": 2, "ignore_eos": True, "continue_token_ids": [[11, 12], [13]], "stream": stream}
            self.assertEqual(self.server.send("POST", "/v1/completions", body)[0], 200)
            self.assertEqual([b - a for a, b in zip(before, counts())], [2, 6, 1, 2, 6, 4, 1, 2, 3])

    def test_metrics_of_the_cache(self):
        """Every prompt token is a query where the cache is asked, whoever leaves and whenever."""
        names = ("prompt_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total")
        before = [self.server.metric("vllm:" + name) for name in names]
        body = json.dumps({"prompt": [7] * 300, "max_tokens": 100, "ignore_eos": True, "n": 8}).encode()
        for i in range(60):  # some leave before they are admitted, some between that and its being known
            connection = self.server.connect()
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            time.sleep(i % 12 / 2000)
            connection.close()
            if i % 20 == 19:
                self.server.wait_idle()  # the queue takes 256 sequences, and a slow machine forgets them slowly
        self.server.complete([7] * 100, max_tokens=60, continue_token_ids=[[9] * 50], ignore_eos=True)
        self.server.complete([7] * 100, max_tokens=60, continue_token_ids=[[9] * 50], ignore_eos=True)
        self.server.wait_idle()
        prompts, queries, hits = (self.server.metric("vllm:" + name) - b for name, b in zip(names, before))
        self.assertEqual(prompts, queries)
        self.assertLessEqual(hits, queries)
        self.assertGreaterEqual(queries, 200)

    def test_longest_choice(self):
        """vLLM counts the longest of a prompt's choices once a prompt."""
        longest = "vllm:request_max_num_generation_tokens_"
        before = [self.server.metric(longest + part) for part in ("sum", "count")]
        answer = self.server.complete(PROMPTS[:2], n=3, temperature=1.5, seed=3, max_tokens=20, stop=["e"], return_token_ids=True)
        lengths = [len(c["token_ids"]) for c in answer["choices"]]
        after = [self.server.metric(longest + part) for part in ("sum", "count")]
        self.assertEqual([b - a for a, b in zip(before, after)], [max(lengths[:3]) + max(lengths[3:]), 2])


if __name__ == "__main__":
    unittest.main()
