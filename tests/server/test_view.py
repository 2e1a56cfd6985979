"""What the server shows of its engine: GET /experts and GET /live."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import threading
import time
import unittest

import serving

BODY = {"model": "tiny", "prompt": list(range(40, 180)), "max_tokens": 300, "ignore_eos": True, "temperature": 0}


def get(server, path):
    status, body = server.get(path)
    assert status == 200, (status, body)
    return json.loads(body)


class View(unittest.TestCase):
    def test_calls_are_counted(self):
        for options in ((), ("--ranks", 3), ("--ranks", 2, "--attention", "tp", "--fabric", "processes")):
            with self.subTest(options), serving.Server(*options, "--no-enable-prefix-caching") as server:
                before = get(server, "/experts")
                self.assertEqual((before["layers"], before["experts"], before["top_k"]), ([0, 1, 2, 3, 4, 5], 32, 4))
                ranks = options[1] if options else 1
                self.assertEqual(before["ranks"], ranks)
                # consecutive experts, as docs say of a run without a placement
                owners = [next(r for r in range(ranks) if (r + 1) * 32 // ranks > e) for e in range(32)]
                self.assertEqual(before["ranks_of_experts"], [[[r] for r in owners]] * 6)
                self.assertEqual(sum(map(sum, before["calls"])), 0)
                for tokens in (1, 7):
                    server.complete(BODY["prompt"][:30], max_tokens=tokens, ignore_eos=True)
                after = get(server, "/experts")
                # every token but the last one drawn is fed, once
                self.assertEqual([sum(row) for row in after["calls"]], [4 * (30 + 30 + 6)] * 6)
                live = get(server, "/live")
                self.assertEqual((live["sequences"], live["sequence_count"], live["steps"]), ([], 0, 1 + 7))
                self.assertEqual(live["prefill_tokens"] + live["decode_tokens"], 66)
                self.assertEqual(live["bytes"]["dispatch"] > 0, ranks > 1)
                self.assertEqual(live["lar"] == 1, ranks == 1)
                self.assertEqual(server.send("HEAD", "/experts")[0], 200)
                self.assertEqual(server.send("POST", "/live", {})[0], 405)

    def test_replicas_have_several_ranks(self):
        path = pathlib.Path(os.environ["COT_BUILD"]) / f"view-{os.getpid()}.json"
        experts = list(range(16)) + [5, 31] + list(range(16, 32)) + [5, 0]
        self.addCleanup(path.unlink)
        owners = [[slot // 18 for slot, held in enumerate(experts) if held == e] for e in range(32)]  # a replica each
        path.write_text(json.dumps({"physical_to_logical_map": [experts] * 6}))
        with serving.Server("--ranks", 2, "--placement", path) as server:
            self.assertEqual(get(server, "/experts")["ranks_of_experts"], [owners] * 6)

    def caught(self, options, bodies, seen):
        """What a server of these options tells of such requests at a moment that `seen` accepts; who looks too late begins anew."""
        for _ in range(20):
            with serving.Server(*options) as server:
                with server.slowed():
                    threads = [server.in_background(body)[0] for body in bodies]
                    live = get(server, "/live")
                    while live["sequences"] and not seen(live["sequences"]):
                        live = get(server, "/live")
                for thread in threads:
                    thread.join()
            if live["sequences"]:
                return live
        self.fail("over before it was seen")

    def test_sequences_that_run_wait_and_share(self):
        live = self.caught(("--max-num-seqs", 2, "--ranks", 2), [BODY] * 3, lambda sequences: len(sequences) == 3 and min(q["tokens"] for q in sequences[:2]) >= 150)
        first, second, third = live["sequences"]
        self.assertEqual([q["waiting"] for q in live["sequences"]], [False, False, True])
        self.assertEqual([q["prompt_tokens"] for q in live["sequences"]], [140] * 3)
        self.assertEqual((first["shared_pages"], second["shared_pages"], third["shared_pages"]), (2, 2, 0))
        self.assertEqual((first["shared_with"], second["shared_with"]), (second["id"], first["id"]))
        for q in (first, second):
            self.assertTrue(q["tokens"] - 1 <= q["fed"] <= q["tokens"])
            self.assertEqual(q["pages"], -(-q["fed"] // 64))
        self.assertEqual((third["fed"], third["pages"]), (0, 0))
        self.assertEqual(live["kv"]["pages"] - live["kv"]["free"], first["pages"] + second["pages"] - 2)

    def test_choices_share_their_prompt(self):
        """On the rank of the first of them, whatever else there is to do."""
        live = self.caught(("--ranks", 3), [BODY | {"n": 3}], lambda sequences: len(sequences) == 3 and all(q["fed"] for q in sequences))
        self.assertEqual(len({q["home"] for q in live["sequences"]}), 1)
        self.assertEqual([q["shared_pages"] for q in live["sequences"]], [2] * 3)

    def test_many_look_and_leave(self):
        """They are all answered, those who left are forgotten, and what runs comes to its end unchanged."""
        with serving.Server("--ranks", 2) as server:
            alone = server.complete(BODY["prompt"], max_tokens=200, ignore_eos=True, temperature=0)["choices"][0]["text"]
            thread, result = server.in_background(BODY | {"max_tokens": 200})
            seen = []

            def look():
                for i in range(20):
                    with server.raw() as connection:
                        connection.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"/live", b"/experts")[i % 2])
                        if i % 3:
                            seen.append(connection.recv(15))

            lookers = [threading.Thread(target=look) for _ in range(8)]
            for looker in lookers:
                looker.start()
            for looker in lookers:
                looker.join()
            thread.join()
            self.assertEqual(set(seen), {b"HTTP/1.1 200 OK"})
            self.assertEqual(len(seen), 8 * 13)
            self.assertEqual(result[0][1]["choices"][0]["text"], alone)
            get(server, "/live")

    def test_an_engine_that_failed(self):
        """Who waits when a rank dies is answered: of many that look all the time some do."""
        with serving.Server("--ranks", 2, "--fabric", "processes", "--shutdown-timeout", 1, status=1) as server:
            seen, refused = [], threading.Event()

            def look():
                with contextlib.closing(server.connect()) as connection, contextlib.suppress(OSError, http.client.HTTPException):
                    while True:  # until the server ends the connection
                        connection.request("GET", "/live")
                        answer = connection.getresponse()
                        answer.read()
                        seen.append(answer.status)
                        if answer.status == 503:
                            refused.set()

            thread = threading.Thread(target=lambda: server.send("POST", "/v1/completions", BODY | {"max_tokens": 370}))
            thread.start()
            lookers = [threading.Thread(target=look) for _ in range(8)]
            for looker in lookers:
                looker.start()
            while len(seen) < 20:
                time.sleep(0.001)
            pid = server.process.pid
            child = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            os.kill(child, signal.SIGKILL)
            for looker in lookers:
                looker.join()
            thread.join()
            self.assertTrue(refused.is_set())
            self.assertEqual(set(seen), {200, 503})


if __name__ == "__main__":
    unittest.main()
