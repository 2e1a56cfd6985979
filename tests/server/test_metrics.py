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

from serving import MODEL, SECONDS, SOURCE, Server, temporary

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


if __name__ == "__main__":
    unittest.main()
