"""The router learns from its workers what requests call, and weighs it: two engines whose prompts begin alike."""

import json
import pathlib
import subprocess
import tempfile
import time
import unittest

from routing import MODEL, PROGRAM, SECONDS, Engine, Router, RouterTest, Server, engine, free_ports, mocks, stream, url

BLOCK = 64


def prompt(kind, tail):
    return [kind * 7 + i % 50 for i in range(BLOCK)] + [tail + i % 30 for i in range(BLOCK)]


class Experts(RouterTest):
    def ask(self, router, ids, tokens=4):
        return stream(router, "/v1/completions", {"prompt": ids, "max_tokens": tokens, "ignore_eos": True})

    def test_signatures_are_learnt(self):
        with engine() as one, engine() as two, Router([one, two]) as router:
            told = json.loads(one.get("/worker")[1])["popularity"]
            self.assertGreater(told["cells"], 0)
            first = router.get("/decisions")
            # What is told before the router has subscribed is lost: requests come until their blocks are known.
            tail = 100

            def known():
                nonlocal tail
                tail += 1
                self.ask(router, prompt(1, tail))
                return router.figure("coterie:router_signature_blocks") >= 3

            self.wait(known)
            self.assertEqual(json.loads(first[1])["decisions"], [])
            last = json.loads(router.get("/decisions")[1])["decisions"][0]
            self.assertEqual(len(last["targets"]), 2)
            self.assertTrue(all("experts_ns" in target for target in last["targets"]))

            def weighed():
                """One is in the midst of its answer when another comes: the one's worker has the experts already."""
                nonlocal tail
                tail += 1
                seen = []

                def on_event(headers, count):
                    if count == 2:
                        self.ask(router, prompt(1, tail + 1000), 1)
                        decision = json.loads(router.get("/decisions")[1])["decisions"][0]
                        seen.append({t["worker"]: t["experts_ns"] for t in decision["targets"]})

                headers, _ = stream(router, "/v1/completions", {"prompt": prompt(1, tail), "max_tokens": 200, "ignore_eos": True}, on_event)
                here = headers["X-Worker"]
                other = next(name for name in seen[0] if name != here)
                # What an expert costs is learnt from steps, and may be nothing on a machine that other programs share.
                return seen[0][here] < seen[0][other] or (time.monotonic() > end and seen[0][here] <= seen[0][other])

            end = time.monotonic() + 20
            self.wait(weighed)

    def test_strangers_are_ignored(self):
        """Signatures that cannot be read, or are of another model, do no harm, and are told by name."""
        document = {"models": ["other"], "fingerprint": "f", "block_size": BLOCK, "model_hash": "h", "kv_homes": 1}
        for popularity, said in (
            ({"endpoint": "tcp://127.0.0.1:1", "topic": "popularity", "cells": 7000, "layers_every": 1}, "does not say how"),
            ({"endpoint": "tcp://127.0.0.1:1", "topic": "popularity", "cells": 0, "layers_every": 1}, "does not say how"),
            ({"endpoint": "tcp://127.0.0.1:1", "topic": "popularity", "cells": 70, "layers_every": 0}, "does not say how"),
        ):
            with self.subTest(popularity=popularity), Engine(None, document=document | {"popularity": popularity}) as worker, Router([url(worker)]) as router:
                self.wait(lambda: f"worker '127.0.0.1:{worker.port}': it {said}" in "".join(router.log))
        good = {"endpoint": "tcp://127.0.0.1:1", "topic": "popularity", "cells": 70, "layers_every": 1}
        for change in ({"model_hash": "i"}, {"popularity": good | {"cells": 71}}):
            one = document | {"popularity": good}
            with self.subTest(change=change), Engine(None, document=one) as worker, Engine(None, document=one | change) as stranger, Router([url(worker), url(stranger)]) as router:
                self.wait(lambda: "its signatures are of another model than the others': they are ignored" in "".join(router.log))

    def test_tables_foretell(self):
        """Of a prompt whose blocks nobody has told of, tables say what it calls."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "text").write_text("The router asks the tables of texts that it has learnt. " * 150)
            trace, tables = folder / "trace.safetensors", folder / "tables.safetensors"
            for command in (("profile", MODEL, "--text", folder / "text", "-o", trace), ("group", trace, "--ranks", "1", "--tables", tables)):
                subprocess.run([PROGRAM, *map(str, command)], check=True, capture_output=True, timeout=SECONDS)
            with engine() as one, Router([one], "--signature-tables", tables) as router:
                ids = json.loads(one.send("POST", "/tokenize", {"prompt": (folder / "text").read_text()})[2])["tokens"]
                stranger = next(i for i in range(10, 4000) if i not in ids)
                self.ask(router, ids[:12])  # less than a block, of which none can be told
                self.assertEqual(router.figure("coterie:router_foretold_total"), 1)
                self.ask(router, [stranger] * 12)  # which no table knows
                self.assertEqual(router.figure("coterie:router_foretold_total"), 1)
                self.assertEqual(router.figure("coterie:router_signature_blocks"), 0)
                tail = 0

                def known():
                    nonlocal tail
                    tail += 1
                    self.ask(router, ids[:BLOCK] + [tail] * BLOCK)
                    return router.figure("coterie:router_signature_blocks") >= 2

                self.wait(known)
                foretold = router.figure("coterie:router_foretold_total")
                self.ask(router, ids[:BLOCK] + [tail + 1] * BLOCK)  # what was told of its first block comes first
                self.assertEqual(router.figure("coterie:router_foretold_total"), foretold)

    def test_heat(self):
        """What workers' texts call lately is told side by side, as each of them tells it."""
        with engine() as one, engine() as two, Router([one, two]) as router:
            self.assertEqual([worker["worker"] for worker in json.loads(router.get("/experts")[1])["workers"]], [f"127.0.0.1:{one.port}", f"127.0.0.1:{two.port}"])
            tail = 0

            def heat():
                nonlocal tail
                tail += 1
                self.ask(router, prompt(tail, tail), 40)
                told = json.loads(router.get("/experts")[1])["workers"]
                return all(set("".join(worker["shares"])) > {"0"} for worker in told) and told

            self.wait(heat)
            for worker in heat():
                shares = [[int(row[i : i + 2], 16) / 255 for i in range(0, len(row), 2)] for row in worker["shares"]]
                self.assertEqual((len(shares), {len(row) for row in shares}), (worker["layers"], {worker["experts"]}))
                chosen = json.loads(one.get("/popularity")[1])["top_k"]
                for row in shares:  # each token calls so many
                    self.assertAlmostEqual(sum(row), chosen, delta=worker["experts"] / 510 + 0.01)

    def test_homes(self):
        """Where a worker's ranks have its experts is asked for when its steps say that they have moved."""
        port = free_ports(3)
        options = ("--ranks", 2, "--attention", "dp", "--movable", "--max-num-seqs", 10, "--step-reports-endpoint", f"tcp://127.0.0.1:{port}", "--popularity-endpoint", f"tcp://127.0.0.1:{port + 1}")
        with Server(*options) as one, Router([one]) as router:
            def epoch(wanted):
                self.ask(router, prompt(1, 100))
                told = router.workers()[0]["placement_epoch"]
                return told is not None and (told >= wanted)

            self.wait(lambda: epoch(0))
            self.assertEqual(router.workers()[0]["placement_epoch"], 0)
            self.assertEqual([target["slots"] for target in router.workers()[0]["targets"]], [5, 5])  # requests that run at once, of each
            then = json.loads(one.get("/placement")[1])
            rows = then["physical_to_logical_map"]
            for row in rows:  # the first two experts of both ranks change their places
                half = len(row) // 2
                row[0], row[half] = row[half], row[0]
            status, _, body = one.send("PUT", "/placement", then)
            self.assertEqual(status, 202, body)
            self.wait(lambda: epoch(1))

    def test_scales(self):
        """What terms count may be said."""
        with mocks(2) as servers, Router(servers, "--kv", 2, "--experts", 0, "--load", 0.5) as router:
            self.assertEqual(len(self.ask(router, [1, 2, 3])[1]), 5)


if __name__ == "__main__":
    unittest.main()
