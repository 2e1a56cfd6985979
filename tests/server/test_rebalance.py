"""Experts that a server moves by itself, or as POST /rebalance asks: --rebalance."""

import collections
import json
import pathlib
import tempfile
import time
import unittest

import serving

RANKS, EXPERTS, LAYERS = 4, 32, 6
NEVER = "1000000000steps"
STEERED = ("--ranks", RANKS, "--spare-slots", 1, "--rebalance", "load", "--no-enable-prefix-caching")
REBALANCES = (*STEERED, "--migration-share", 1)
BODY = {"model": "tiny", "prompt": list(range(40, 60)), "max_tokens": 300, "ignore_eos": True, "temperature": 0}
REASONS = {"experts move", "too few calls counted", "no move helps", "moves cost more than they save", "moved too lately", "moves a cycle are used up"}


def ask(server, **fields):
    status, answer = server.post("/rebalance", fields)
    return status, answer


def show(server, path):
    status, body = server.get(path)
    assert status == 200, body
    return json.loads(body)


def wait_over(server, number):
    end = time.monotonic() + serving.SECONDS
    while not (moves := show(server, f"/rebalance/{number}"))["over"]:
        assert time.monotonic() < end, moves
        time.sleep(0.005)
    return moves


def held(placed):
    """{(layer, rank): experts}"""
    slots = placed["slots_per_rank"]
    return {(layer, rank): {e for e in row[rank * slots : (rank + 1) * slots] if e >= 0}
            for layer, row in zip(placed["layers"], placed["physical_to_logical_map"]) for rank in range(RANKS)}


def changed(before, changes):
    after = {place: set(experts) for place, experts in before.items()}
    for change in changes:
        experts = after[change["layer"], change["rank"]]
        assert (change["action"] == "copy") == (change["expert"] not in experts), change
        experts ^= {change["expert"]}
    return after


class Rebalance(unittest.TestCase):
    def test_one_memory_is_split(self):
        split = lambda server: {part: server.metric("coterie:memory_bytes", part=part) for part in ("all", "states", "pages", "slots", "replicas")}
        short = BODY | {"max_tokens": 60}  # many short answers, so that none is late on a machine that does much else
        with serving.Server("--ranks", RANKS, "--spare-slots", 2, "--rebalance", "load", "--rebalance-interval", "4steps", "--memory", 6_000_000,
                            "--popularity-half-life", 4096) as server:
            first = split(server)
            self.assertEqual((first["all"], first["states"], first["replicas"]), (6_000_000, 0, 0))
            self.assertGreater(first["pages"], 5_800_000)  # all, but for less than a page
            self.assertEqual(server.metric("coterie:memory_looks_total"), 0)
            alone = server.complete(**short)["choices"][0]["text"]
            end = time.monotonic() + serving.SECONDS
            while server.metric("coterie:memory_looks_total") < 4:
                assert time.monotonic() < end
                self.assertEqual(server.complete(**short)["choices"][0]["text"], alone)
                now = split(server)
                self.assertLessEqual(now["pages"] + now["slots"], now["all"])
                self.assertLessEqual(now["pages"] + now["replicas"], now["all"])
            memory = show(server, "/experts")["rebalancing"]["memory"]
            self.assertEqual((memory["bytes"], memory["states_bytes"]), (6_000_000, 0))
            self.assertLessEqual(memory["pages_bytes"] + memory["slots_bytes"], memory["bytes"])  # moves may still end
            self.assertTrue(memory["reason"])
        with serving.Server("--memory", "auto") as server:  # half of what is free, whose split stays
            self.assertEqual(server.complete(**short)["choices"][0]["text"], alone)
            self.assertNotIn("coterie:memory", server.get("/metrics")[1].decode())

    def test_memory_that_cannot_be_is_refused(self):
        for options, status, message in ((("--memory", "6e9"), 2, "--memory takes bytes or auto, not '6e9'"),
                                         (("--memory", "0"), 2, "--memory takes bytes or auto, not '0'"),
                                         (("--memory", 10**6, "--kv-cache-memory-bytes", 10**6), 2, "1000000 bytes of KV cache, and 1000000 bytes of memory"),
                                         (("--memory", 10**5), 2, "100000 bytes of memory hold 1 KV pages of 98304 bytes beside 0 bytes of spare slots, the model's context of 512 tokens needs 8 pages"),
                                         (("--memory", "auto", "--kv-cache-memory-bytes", 5), 2, "5 bytes of KV cache, and --memory auto: one of them"),
                                         (("--memory", 10**14), 1, "100000.00 GB of it for KV pages and spare slots; "),
                                         (("--memory", 999_999_999_999_999), 1, " GB of memory with the most KV pages that it can use, 1000000.00 GB were asked for; "),
                                         (("--memory", 2**63 - 1), 1, " GB of memory with the most KV pages that it can use, 9223372036.85 GB were asked for; ")):
            with self.subTest(message):
                done = serving.run("serve", serving.MODEL, "--port", 0, *options)
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (status, "", 1), done.stderr)
                self.assertIn(message, done.stderr)

    def test_half_of_nothing_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads((serving.MODEL / "config.json").read_text()) | {"moe_intermediate_size": 10**7}
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            done = serving.run("serve", folder, "--port", 0, "--load-format", "dummy", "--tokenizer", serving.MODEL, "--memory", "auto")
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr, r"^coterie: --memory auto: the model needs [0-9]{4}\.[0-9]{2} GB beside it, [0-9.]+ GB are available\n$")

    def test_a_cycle_does_what_it_says(self):
        with serving.Server(*REBALANCES, "--rebalance-interval", NEVER) as server:
            status, cycle = ask(server)
            self.assertEqual((status, cycle["id"], cycle["dry_run"], cycle["mode"], cycle["changes"]), (200, None, False, "load", []))
            self.assertEqual([(layer["layer"], layer["reason"]) for layer in cycle["layers"]], [(l, "too few calls counted") for l in range(LAYERS)])
            alone = server.complete(**BODY)["choices"][0]["text"]
            first = held(show(server, "/placement"))
            status, dry = ask(server, dry_run=True)
            self.assertEqual((status, dry["id"], dry["dry_run"]), (200, None, True))
            self.assertGreater(dry["copies"], 0)
            self.assertLess(0, dry["saving_seconds"])
            self.assertLess(dry["saving_seconds"], dry["step_seconds"])
            self.assertLessEqual({layer["reason"] for layer in dry["layers"]}, REASONS)
            self.assertAlmostEqual(sum(layer["before_seconds"] - layer["after_seconds"] for layer in dry["layers"] if layer["reason"] == "experts move"),
                                   dry["saving_seconds"], delta=1e-9)
            self.assertEqual(ask(server, dry_run=True), (200, dry))  # nothing has changed
            done = serving.run("rebalance", f"http://{server.host}:{server.port}/v1/", "--dry-run")
            lines = done.stdout.splitlines()
            self.assertEqual((done.returncode, done.stderr, len(lines)), (0, "", 1 + LAYERS + dry["copies"] + dry["drops"] + 1))
            for line, layer in zip(lines[1:], dry["layers"]):
                self.assertEqual(line.split(maxsplit=4), [str(layer["layer"]), str(layer["moves"]), f"{layer['before_seconds'] * 1e6:.2f}",
                                                          f"{layer['after_seconds'] * 1e6:.2f}", layer["reason"]])
            self.assertEqual(lines[1 + LAYERS : -1], [f"{c['action']}: expert {c['expert']} of layer {c['layer']}, rank {c['rank']}" for c in dry["changes"]])
            self.assertEqual(lines[-1], f"experts take {dry['step_seconds'] * 1e6:.2f} us of a step; {dry['copies']} copies and {dry['drops']} drops "
                                        f"save {dry['saving_seconds'] * 1e6:.2f} us")
            self.assertEqual(held(show(server, "/placement")), first)
            wanted = changed(first, dry["changes"])
            with server.slowed():
                status, cycle = ask(server, dry_run=False)
                thread, result = server.in_background(BODY)
            self.assertEqual((status, cycle["id"], cycle["changes"]), (202, 1, dry["changes"]))
            thread.join()
            self.assertEqual(result[0][1]["choices"][0]["text"], alone)
            moves = wait_over(server, 1)
            self.assertEqual((moves["copied"], sum(moves["given_up"].values())), (dry["copies"], 0))
            self.assertEqual(held(show(server, "/placement")), wanted)
            self.assertEqual(server.complete(**BODY)["choices"][0]["text"], alone)
            for outcome, count in (("moved", 1), ("stayed", 1), ("refused", 0)):
                self.assertEqual(server.metric("coterie:rebalance_cycles_total", outcome=outcome), count)
            self.assertEqual(server.metric("coterie:rebalance_layers_total"), 2 * LAYERS)
            self.assertEqual(server.metric("coterie:rebalance_layers_total", reason="experts move"), sum(layer["reason"] == "experts move" for layer in dry["layers"]))
            self.assertEqual(server.metric("coterie:rebalance_replicas_total", action="copy"), dry["copies"])
            self.assertEqual(server.metric("coterie:rebalance_replicas_total", action="drop"), dry["drops"])
            self.assertAlmostEqual(server.metric("coterie:rebalance_saving_seconds"), dry["saving_seconds"], delta=1e-9)
            self.assertGreater(server.metric("coterie:rebalance_since_seconds"), 0)
            self.assertEqual(server.metric("coterie:rebalance_given_up_total"), 0)
            told = show(server, "/experts")["rebalancing"]
            self.assertEqual([told[name] for name in ("mode", "moved", "stayed", "refused", "given_up", "turns")], ["load", 1, 1, 0, 0, 0])
            self.assertEqual(told["layers"], dict(collections.Counter(layer["reason"] for layer in dry["layers"])))
            self.assertAlmostEqual(told["saving_seconds"], dry["saving_seconds"], delta=1e-9)
            end = time.monotonic() + serving.SECONDS
            while not (compared := show(server, "/experts")["rebalancing"]["compared"]):  # 300 steps were before them
                assert time.monotonic() < end
                server.complete(**BODY)
            self.assertAlmostEqual(compared["foreseen_seconds"], dry["saving_seconds"], delta=1e-9)
            for name in ("foreseen", "realised"):
                self.assertAlmostEqual(server.metric("coterie:rebalance_compared_saving_seconds", saving=name), compared[f"{name}_seconds"], delta=1e-9)

    def test_hot_experts_move_while_a_client_streams(self):
        """They begin on one rank, and nobody asks for anything but text, which stays the same."""
        with serving.Server(*REBALANCES, "--rebalance-interval", NEVER) as server:
            alone = server.complete(**BODY)["choices"][0]["text"]
            seen, end = show(server, "/popularity"), time.monotonic() + serving.SECONDS
            while not sum(map(sum, seen["counts"])):  # it is gathered once a second
                assert time.monotonic() < end
                time.sleep(0.05)
                seen = show(server, "/popularity")
        rows = [sorted(range(EXPERTS), key=lambda e: -counts[e]) for counts in seen["counts"]]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "hot.json"
            path.write_text(json.dumps({"physical_to_logical_map": rows}))
            with serving.Server(*REBALANCES, "--rebalance-interval", "32steps,1000000s", "--placement", path) as server:
                hot = held(show(server, "/placement"))
                self.assertEqual(hot[0, 0], set(rows[0][: EXPERTS // RANKS]))
                end = time.monotonic() + serving.SECONDS
                while not server.metric("coterie:rebalance_cycles_total", outcome="moved"):
                    assert time.monotonic() < end
                    self.assertEqual(server.complete(**BODY)["choices"][0]["text"], alone)
                moves = wait_over(server, 1)
                self.assertGreater(moves["copied"], 0)
                self.assertEqual(server.complete(**BODY)["choices"][0]["text"], alone)
                self.assertNotEqual(held(show(server, "/placement")), hot)
                self.assertGreater(server.metric("coterie:placement_epoch"), 0)
                self.assertGreaterEqual(server.metric("coterie:rebalance_replicas_total", action="copy"), moves["copies"])
                self.assertGreaterEqual(show(server, "/experts")["moves"]["id"], 1)

    def test_one_at_a_time_and_what_is_not_understood(self):
        with serving.Server(*STEERED, "--rebalance-interval", NEVER, "--migration-bandwidth", 1) as server:
            for body, status, why in (({"dry": True}, 400, "unknown field 'dry' (dry_run)"), ({"dry_run": 1}, 400, "dry_run is not true or false"),
                                      ({"dry_run": None}, 400, "dry_run is not true or false")):
                answer = server.post("/rebalance", body)
                self.assertEqual((answer[0], answer[1]["error"]["message"]), (status, why))
            for text in (b"", b"[]", b"{", b"\xff"):
                self.assertEqual(server.send("POST", "/rebalance", text, {"Content-Type": "application/json"})[0], 400)
            self.assertEqual(server.send("POST", "/rebalance", b"{}", {"Content-Type": "text/plain"})[0], 415)
            status, answer = server.post("/rebalance?dry_run=true", {})
            self.assertEqual((status, answer["error"]["message"]), (400, "unknown member 'dry_run' in the query of '/rebalance', which takes none"))
            status, _, answer = server.send("GET", "/rebalance")
            self.assertEqual((status, json.loads(answer)["error"]["message"]), (405, "'/rebalance' takes POST"))
            self.assertEqual(server.metric("coterie:rebalance_cycles_total"), 0)
            server.complete(**BODY)
            done = serving.run("rebalance", f"http://{server.host}:{server.port}")
            self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, "experts move: GET /rebalance/1 says how far"), done.stderr)
            for fields in ({}, {"dry_run": True}):
                status, answer = ask(server, **fields)
                self.assertEqual((status, "GET /rebalance/1" in answer["error"]["message"]), (409, True), answer)
            done = serving.run("rebalance", f"http://{server.host}:{server.port}")
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n"), "GET /rebalance/1" in done.stderr), (1, "", 1, True), done.stderr)
            self.assertEqual(server.send("DELETE", "/rebalance/1")[0], 202)
            wait_over(server, 1)
            self.assertEqual(ask(server, dry_run=True)[0], 200)

    def test_who_may_and_when(self):
        with serving.Server("--ranks", RANKS, "--movable", env={"COTERIE_API_KEY": "secret"}) as server:
            self.assertEqual(ask(server)[0], 401)
            status, answer = server.post("/rebalance", {}, Authorization="Bearer secret")
            self.assertEqual((status, answer["error"]["message"]), (400, "rebalancing is off (--rebalance load or joint turns it on)"))
            self.assertNotIn(b"coterie:rebalance", server.get("/metrics", Authorization="Bearer secret")[1])
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads((serving.MODEL / "config.json").read_text())
            config = config | {"mlp_only_layers": list(range(config["num_hidden_layers"])), "intermediate_size": 64}
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            dense = ("--load-format", "dummy", "--tokenizer", serving.MODEL)
            with serving.Server(*dense, model=folder) as server:
                status, answer = ask(server)
                self.assertEqual((status, answer["error"]["message"]), (404, "the model has no experts"))
            done = serving.run("serve", folder, "--port", "0", *map(str, dense), "--rebalance", "load")
            self.assertEqual((done.returncode, "rebalance 'load': the model has no experts" in done.stderr), (2, True), done.stderr)
        with serving.mock({}) as server:
            self.assertEqual(ask(server)[0], 404)
            for url, why in ((f"http://{server.host}:{server.port}", "nothing is at '/rebalance'"), ("nowhere", "nowhere")):
                done = serving.run("rebalance", url, "--dry-run")
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n"), why in done.stderr), (1, "", 1, True), done.stderr)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "matrix.json"
            path.write_text(json.dumps([[abs(a - b) for b in range(3)] for a in range(3)]))
            done = serving.run("serve", serving.MODEL, "--port", "0", "--ranks", str(RANKS), "--rebalance", "joint", "--topology", str(path))
            self.assertEqual((done.returncode, f"topology '{path}' has 3 ranks, expected 4" in done.stderr), (2, True), done.stderr)
            done = serving.run("serve", serving.MODEL, "--port", "0", "--ranks", str(RANKS), "--rebalance", "joint", "--topology", folder + "/none")
            self.assertEqual((done.returncode, f"cannot open '{folder}/none'" in done.stderr, done.stderr.count("\n")), (1, True, 1), done.stderr)
            path.write_text(json.dumps([[abs(a - b) for b in range(RANKS)] for a in range(RANKS)]))
            with serving.Server("--ranks", RANKS, "--rebalance", "joint", "--topology", path) as server:
                self.assertEqual(ask(server, dry_run=True)[1]["mode"], "joint")
        for options, why in ((("--rebalance", "load", "--attention", "tp", "--pipeline", "s-moe"), "rebalance 'load' does not go with pipeline s-moe"),
                             (("--rebalance-interval", "0s"), "'0s' is no interval to rebalance"),
                             (("--rebalance", "both"), "--rebalance"), (("--moves-a-cycle", "0"), "--moves-a-cycle takes "),
                             (("--rebalance", "joint", "--topology", "fattree:ranks=8"), "topology 'fattree:ranks=8' has 8 ranks, expected 4"),
                             (("--rebalance", "joint", "--topology", "nonsense"), "nonsense"),
                             (("--rebalance", "load", "--topology", "fattree:ranks=4"), "distances of ranks: rebalance is not joint"),
                             (("--moves-a-cycle", "64"), "moves a cycle: rebalance is off"),
                             (("--rebalance", "off", "--rebalance-interval", "60s"), "rebalance interval: rebalance is off")):
            done = serving.run("serve", serving.MODEL, "--port", "0", "--ranks", str(RANKS), *options)
            self.assertEqual((done.returncode, why in done.stderr, done.stderr.count("\n")), (2, True, 1), done.stderr)


if __name__ == "__main__":
    unittest.main()
