"""Experts that move while a server serves: PUT /placement, GET /placement, /rebalance/ID."""

import json
import os
import pathlib
import random
import signal
import socket
import tempfile
import threading
import time
import unittest

import serving

RANKS, EXPERTS, LAYERS, SPARE = 4, 32, 6, 2
SLOTS = EXPERTS // RANKS + SPARE
MOVABLE = ("--ranks", RANKS, "--movable", "--spare-slots", SPARE)
STALLED = (*MOVABLE, "--migration-bandwidth", 1)  # a chunk, and nothing more for hours
BODY = {"model": "tiny", "prompt": list(range(40, 60)), "max_tokens": 200, "ignore_eos": True, "temperature": 0}


def placement(server):
    status, body = server.get("/placement")
    assert status == 200, body
    return json.loads(body)


def put(server, wanted, **headers):
    status, _, answer = server.send("PUT", "/placement", wanted if isinstance(wanted, bytes) else json.dumps(wanted).encode(), headers)
    return status, json.loads(answer)


def rebalance(server, number):
    status, body = server.get(f"/rebalance/{number}")
    assert status == 200, body
    return json.loads(body)


def wait_over(server, number):
    end = time.monotonic() + serving.SECONDS
    while not (moves := rebalance(server, number))["over"]:
        assert time.monotonic() < end, moves
        time.sleep(0.005)
    return moves


def dealt_anew(now, draw):
    """Every expert somewhere else, as likely as not, and replicas in some of the spare slots."""
    rows = []
    for _ in now["layers"]:
        experts = draw.sample(range(EXPERTS), EXPERTS)
        ranks = [experts[r::RANKS] for r in range(RANKS)]
        for held in ranks:
            more = draw.sample([e for e in range(EXPERTS) if e not in held], draw.randrange(SPARE + 1))
            held += more + [-1] * (SLOTS - len(held) - len(more))
            draw.shuffle(held)
        rows.append(sum(ranks, []))
    return now | {"slots_per_rank": SLOTS, "physical_to_logical_map": rows}


def held(placed):
    """Of each layer and rank the experts."""
    return [[sorted(e for e in row[r * placed["slots_per_rank"] : (r + 1) * placed["slots_per_rank"]] if e >= 0) for r in range(RANKS)]
            for row in placed["physical_to_logical_map"]]


class Moves(unittest.TestCase):
    def test_experts_move_while_a_client_streams(self):
        """The text is that of a run without; experts are where they were to go, and what is told agrees with it."""
        draw = random.Random(serving.seed())
        with serving.Server(*MOVABLE, "--migration-share", 0.5, "--no-enable-prefix-caching") as server:
            body = BODY | {"max_tokens": 400}
            alone = server.complete(**body)["choices"][0]["text"]
            first = placement(server)
            self.assertEqual(held(first), [[list(range(8 * r, 8 * r + 8)) for r in range(RANKS)]] * LAYERS)
            self.assertEqual((first["slots_per_rank"], first["layers"]), (SLOTS, list(range(LAYERS))))
            self.assertEqual(server.metric("coterie:expert_slots"), RANKS * (LAYERS * SLOTS + 1))  # with the one for copies
            copied = dropped = while_streaming = 0
            for number in range(1, 20):
                wanted = dealt_anew(first, draw)
                now = held(placement(server))
                copies = sum(len(set(w) - set(h)) for ws, hs in zip(held(wanted), now) for w, h in zip(ws, hs))
                drops = sum(len(set(h) - set(w)) for ws, hs in zip(held(wanted), now) for w, h in zip(ws, hs))
                with server.slowed():
                    thread, result = server.in_background(body)
                    self.assertEqual(put(server, wanted), (202, {"id": number}))
                    while thread.is_alive():
                        while_streaming += rebalance(server, number)["copied"] > 0 and thread.is_alive()
                        time.sleep(0.01)
                thread.join()
                self.assertEqual(result[0][1]["choices"][0]["text"], alone)
                moves = wait_over(server, number)
                self.assertEqual((moves["copies"], moves["copied"], moves["drops"], moves["dropped"]), (copies, copies, drops, drops))
                self.assertEqual((sum(moves["given_up"].values()), moves["copying"]), (0, []))
                self.assertEqual(held(placement(server)), held(wanted))
                copied, dropped = copied + copies, dropped + drops
                self.assertEqual(server.complete(**body)["choices"][0]["text"], alone)
                if number > 1 and while_streaming:  # who looks too late begins anew
                    break
            self.assertGreater(while_streaming, 0)
            self.assertEqual(server.metric("coterie:expert_moves_total", action="copy", outcome="done"), copied)
            self.assertEqual(server.metric("coterie:expert_moves_total", action="drop", outcome="done"), dropped)
            self.assertEqual(server.metric("coterie:expert_moves_total"), copied + dropped)
            self.assertEqual(server.metric("coterie:expert_move_bytes_total"), copied * moves["bytes"] / moves["copied"])
            self.assertGreater(server.metric("coterie:expert_move_seconds_total", state="copying"), 0)
            self.assertGreater(server.metric("coterie:expert_move_seconds_total", state="placing"), 0)
            self.assertEqual(server.metric("coterie:expert_moves_under_way"), 0)
            self.assertEqual(server.metric("coterie:expert_slots_used"), sum(len(h) for row in held(wanted) for h in row))
            worker = json.loads(server.get("/worker")[1])
            self.assertEqual(server.metric("coterie:placement_epoch"), worker["epoch"])
            shown = json.loads(server.get("/experts")[1])
            self.assertEqual((shown["slots"], shown["own_slots"], shown["epoch"], shown["moves"]["id"]), (SLOTS + 1, SLOTS, worker["epoch"], number))
            for layer in range(LAYERS):
                places = [place for e in range(EXPERTS) for place in zip(shown["ranks_of_experts"][layer][e], shown["slots_of_experts"][layer][e])]
                self.assertEqual(len(set(places)), len(places))
                self.assertEqual([sorted(e for e in range(EXPERTS) if r in shown["ranks_of_experts"][layer][e]) for r in range(RANKS)], held(wanted)[layer])

    def test_what_is_shown_can_be_given(self):
        """To a server at its start, and back to the same one, where nothing is then to be moved; engines' formats move experts, too."""
        draw = random.Random(serving.seed())
        with serving.temporary() as folder, serving.Server(*MOVABLE) as server:
            wanted = dealt_anew(placement(server), draw)
            server.complete("x", max_tokens=2)  # figures begin with the first step
            self.assertEqual(put(server, {"physical_to_logical_map": full(wanted)})[0], 202)  # SGLang's
            moves, end = wait_over(server, 1), time.monotonic() + serving.SECONDS
            while server.metric("coterie:sent_bytes_total", phase="migration") != moves["bytes"] + 8 * moves["chunks"]:  # with checksums
                assert time.monotonic() < end, moves
                time.sleep(0.05)
            path = pathlib.Path(folder) / "placement.json"
            path.write_bytes(server.get("/placement")[1])
            again = dict(placement(server))
            self.assertEqual(put(server, again)[0], 202)
            moves = wait_over(server, 2)
            self.assertEqual((moves["copies"], moves["drops"], moves["epochs"]), (0, 0, 0))
            with serving.Server("--ranks", RANKS, "--placement", path) as other:
                self.assertEqual(held(placement(other)), held(again))
                self.assertEqual(other.complete(**BODY)["choices"][0]["text"], server.complete(**BODY)["choices"][0]["text"])
            wanted = dealt_anew(again, draw)
            mapping = {"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": RANKS * SLOTS - EXPERTS, "num_slots": RANKS * SLOTS,
                       "initial_global_assignments": {str(layer): row for layer, row in enumerate(full(wanted))}}
            self.assertEqual(put(server, mapping)[0], 202)  # vLLM's
            wait_over(server, 3)
            self.assertEqual(held(placement(server)), held(wanted))

    def test_bad_placements_are_refused(self):
        with serving.Server(*MOVABLE) as server:
            text = server.complete(**BODY)["choices"][0]["text"]
            good = placement(server)
            rows = good["physical_to_logical_map"]
            for wrong, status, why in (
                (good | {"model_hash": "0123456789abcdef"}, 400, "another model"),
                (good | {"physical_to_logical_map": [[-1 if e == 5 else e for e in row] for row in rows]}, 400, "expert 5"),
                (good | {"physical_to_logical_map": rows[:-1], "layers": good["layers"][:-1]}, 400, "layer"),
                (good | {"slots_per_rank": 11, "physical_to_logical_map": [(list(range(11)) + list(range(11, 22)) + list(range(21, 32)) + list(range(11)))] * LAYERS},
                 400, "11 slots"),
                (good | {"ranks": 2, "slots_per_rank": 2 * SLOTS}, 400, "ranks"),
                (json.dumps(good).encode()[:700], 400, "no JSON"),
                (b"", 400, "placement"),
                (b"\0" * 100, 400, "placement"),
                ([1, 2], 400, "placement"),
                (b" " * (9 << 20), 413, "8 MiB"),
            ):
                answer = put(server, wrong)
                self.assertEqual(answer[0], status, (str(wrong)[:100], answer))
                self.assertIn(why, answer[1]["error"]["message"])
            for head, rest in ((b"Content-Length: 1073741824", b"x" * 1000), (b"Content-Length: 9437184", b""), (b"Content-Length: 1000", b"{" * 500),
                               (b"Transfer-Encoding: chunked", b"900000\r\n" + b" " * 0x900000 + b"\r\n0\r\n\r\n")):
                with server.raw() as connection:
                    connection.sendall(b"PUT /placement HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
                    try:
                        connection.sendall(rest)
                        if b"1000\r" not in head + b"\r":  # half of what was said, and then nothing
                            self.assertIn(b" 413 ", connection.recv(100))
                    except ConnectionError:
                        pass  # it does not listen to more
            for method, path, status, why in (
                ("GET", "/rebalance/1", 404, "none were asked for"),
                ("DELETE", "/rebalance/1", 404, "none were asked for"),
                ("GET", "/rebalance/", 404, "no moves"),
                ("GET", "/rebalance/one", 404, "no moves 'one'"),
                ("GET", "/placement?format=coterie", 400, "unknown member 'format' in the query of '/placement', which takes none"),
                ("PUT", "/placement?dry_run", 400, "unknown member 'dry_run' in the query of '/placement', which takes none"),
                ("PUT", "/placement?&a=1", 400, "unknown member '' in the query"),
                ("GET", "/rebalance/1?wait=1&more", 400, "unknown member 'wait' in the query of '/rebalance/1'"),
                ("POST", "/placement", 405, "'/placement' takes GET and PUT"),
                ("PUT", "/rebalance/1", 405, "takes GET and DELETE"),
                ("DELETE", "/placement", 405, "takes GET and PUT"),
            ):
                answer = server.send(method, path, b"" if method in ("PUT", "POST") else None)
                self.assertEqual((answer[0], why in json.loads(answer[2])["error"]["message"]), (status, True), answer)
            self.assertEqual(json.loads(server.get("/experts")[1])["moves"], None)
            self.assertEqual(placement(server), good)
            self.assertEqual(server.metric("coterie:placement_epoch"), 0)
            self.assertEqual(server.complete(**BODY)["choices"][0]["text"], text)

    def test_who_may_and_when(self):
        with serving.Server("--ranks", RANKS) as server:
            status, answer = put(server, placement(server))
            self.assertEqual((status, answer["error"]["message"]), (400, "experts stay where they are (--movable lets them move)"))
        with serving.Server(*MOVABLE, env={"COTERIE_API_KEY": "secret"}) as server:
            for method, path in (("GET", "/placement"), ("PUT", "/placement"), ("GET", "/rebalance/1"), ("DELETE", "/rebalance/1")):
                self.assertEqual(server.send(method, path, b"{}" if method == "PUT" else None)[0], 401)
            self.assertEqual(server.get("/placement", Authorization="Bearer secret")[0], 200)
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads((serving.MODEL / "config.json").read_text())
            config = config | {"mlp_only_layers": list(range(config["num_hidden_layers"])), "intermediate_size": 64}
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            with serving.Server("--load-format", "dummy", "--tokenizer", serving.MODEL, model=folder) as server:
                for method in ("GET", "PUT"):
                    status, _, answer = server.send(method, "/placement", b"{}" if method == "PUT" else None)
                    self.assertEqual((status, json.loads(answer)["error"]["message"]), (404, "the model has no experts"))
        with serving.mock({}) as server:
            for method, path in (("GET", "/placement"), ("PUT", "/placement"), ("GET", "/rebalance/1")):
                self.assertEqual(server.send(method, path, b"{}" if method == "PUT" else None)[0], 404)
        for options, why in ((("--migration-bandwidth", "-1"), "--migration-bandwidth takes "), (("--migration-share", "0"), "--migration-share takes "),
                             (("--spare-slots", "1", "--expert-slots", "40"), "expert slots 40 and spare slots 1"),
                             (("--ranks", "4", "--movable", "--spare-slots", "65535"), "'spare-slots' uses 65544 slots of a rank, at most 16383 can be on 4 ranks"),
                             (("--spare-slots", "1"), "spare slots: experts do not move (movable, or rebalance), and nothing would fill them"),
                             (("--migration-share", "0.02"), "migration share: experts do not move (movable, or rebalance)"),
                             (("--migration-bandwidth", "1"), "migration bandwidth: experts do not move"),
                             (("--movable", "--migration-share", "0.5", "--migration-bandwidth", "1"), "one of them says how fast experts move")):
            done = serving.run("serve", serving.MODEL, "--port", "0", *options)
            self.assertEqual((done.returncode, why in done.stderr, done.stderr.count("\n")), (2, True, 1), done.stderr)

    def test_one_at_a_time_and_no_longer_than_wanted(self):
        draw = random.Random(serving.seed())
        with serving.Server(*STALLED) as server:
            first = placement(server)
            self.assertEqual(put(server, dealt_anew(first, draw)), (202, {"id": 1}))
            for name in ("a/b/1", "001", "01", "1/", "+1", "1x", "0", "-1", "18446744073709551617", "%31%20"):
                for method in ("GET", "DELETE"):
                    status, _, answer = server.send(method, "/rebalance/" + name)
                    self.assertEqual((status, "no moves '" in json.loads(answer)["error"]["message"]), (404, True), (name, answer))
            self.assertEqual(server.send("GET", "/rebalance/%31")[0], 200)
            status, answer = put(server, first)
            self.assertEqual((status, "GET /rebalance/1" in answer["error"]["message"]), (409, True), answer)
            while not (moves := rebalance(server, 1))["copying"]:
                time.sleep(0.005)
            self.assertEqual((moves["over"], moves["copied"], moves["epochs"]), (False, 0, 0))
            self.assertEqual(server.metric("coterie:expert_moves_under_way"), 1)
            for copy in moves["copying"]:
                self.assertIn(copy["expert"], held(first)[copy["layer"]][copy["from"]])
                self.assertNotIn(copy["expert"], held(first)[copy["layer"]][copy["to"]])
                self.assertTrue(0 < copy["bytes"] < copy["of_bytes"], copy)
            before = server.cpu_ticks()[1]
            time.sleep(0.5)
            self.assertLess(server.cpu_ticks()[1] - before, 25)  # what waits for its turn does not turn in circles
            server.complete(**BODY)
            self.assertEqual(server.send("DELETE", "/rebalance/2")[0], 404)
            status, _, answer = server.send("DELETE", "/rebalance/1")
            self.assertEqual(status, 202, answer)
            moves = wait_over(server, 1)
            self.assertEqual((moves["copied"], moves["given_up"]["cancelled"]), (0, moves["copies"]))
            self.assertEqual(server.send("DELETE", "/rebalance/1")[0], 200)  # there is nothing left to end
            self.assertEqual(placement(server), first)
            self.assertEqual(put(server, dealt_anew(first, draw)), (202, {"id": 2}))
            self.assertEqual(rebalance(server, 1), moves)  # as they ended
            self.assertEqual(server.metric("coterie:expert_moves_total", outcome="cancelled"), moves["copies"])

    def test_the_last_64_are_known(self):
        with serving.Server(*MOVABLE) as server:
            first = placement(server)
            for number in range(1, 67):
                self.assertEqual(put(server, first), (202, {"id": number}))
                wait_over(server, number)
            for number in (1, 2):
                status, body = server.get(f"/rebalance/{number}")
                self.assertEqual((status, json.loads(body)["error"]["message"]),
                                 (404, f"moves '{number}' are forgotten: the last are 66, and 64 are known"))
            for number in range(3, 67):
                self.assertEqual((rebalance(server, number)["id"], rebalance(server, number)["over"]), (number, True))
            for name in ("0", "67", "-3", "3x"):
                self.assertEqual(json.loads(server.get(f"/rebalance/{name}")[1])["error"]["message"], f"there are no moves '{name}'; the last are 66")

    def test_many_ask_at_once_and_leave(self):
        """One of them is heard, those that left too; then the server moves experts as before."""
        draw = random.Random(serving.seed())
        with serving.Server(*MOVABLE) as server:
            wanted = dealt_anew(placement(server), draw)
            body, seen = json.dumps(wanted).encode(), []

            def ask(stays):
                with socket.create_connection((server.host, server.port), timeout=serving.SECONDS) as connection:
                    connection.sendall(b"PUT /placement HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    if stays:
                        seen.append(connection.recv(12))

            threads = [threading.Thread(target=ask, args=(i % 3,)) for i in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertLessEqual(set(seen), {b"HTTP/1.1 202", b"HTTP/1.1 409"})
            end = time.monotonic() + serving.SECONDS
            while held(placement(server)) != held(wanted):
                assert time.monotonic() < end
                time.sleep(0.01)
            server.complete(**BODY)

    def test_a_rank_that_is_killed_in_a_copy(self):
        """The server names the rank, and the copy that was under way."""
        with serving.Server(*STALLED, "--fabric", "processes", "--shutdown-timeout", 1, status=1) as server:
            wanted = placement(server)
            for row in wanted["physical_to_logical_map"]:
                row[SLOTS], row[3 * SLOTS] = row[3 * SLOTS], row[SLOTS]  # of rank 1 and rank 3
            self.assertEqual(put(server, wanted)[0], 202)
            while not (copying := rebalance(server, 1)["copying"]):
                time.sleep(0.005)
            copy = copying[0]
            pid = server.process.pid
            children = sorted(int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split())
            self.assertEqual(len(children), RANKS - 1)
            os.kill(children[copy["from"] - 1], signal.SIGKILL)
            server.process.wait(serving.SECONDS)
        said = "".join(server.log)
        self.assertIn(f"the engine failed: rank {copy['from']} was killed by signal 9", said)
        self.assertIn(f"expert {copy['expert']} of layer {copy['layer']} was being copied from rank {copy['from']} to rank {copy['to']}", said)


def full(placed):
    """Rows without empty slots: what is spare holds the rank's first expert once more."""
    slots = placed["slots_per_rank"]
    rows = []
    for row in placed["physical_to_logical_map"]:
        ranks = [row[r * slots : (r + 1) * slots] for r in range(RANKS)]
        rows.append([next(e for e in one if e >= 0) if expert < 0 else expert for one in ranks for expert in one])
    return rows


if __name__ == "__main__":
    unittest.main()
