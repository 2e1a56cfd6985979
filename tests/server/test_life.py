"""How `coterie serve` begins, whom it lets in, how it fails and ends."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

from serving import MODEL, PROGRAM, PROMPTS, SANITIZED, SECONDS, Server, model_without, run, seed, temporary, texts

MODULE = pathlib.Path(PROGRAM).parent / "libcoterie-shmem.so"


class Life(unittest.TestCase):
    """Tests with a server each."""

    def test_queue(self):
        body = {"prompt": "x", "max_tokens": 450, "ignore_eos": True}
        with Server("--max-num-seqs", 1, "--max-queue", 2) as server:
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda _: server.send("POST", "/v1/completions", body), range(8)))
            statuses = [status for status, _, _ in answers]
            self.assertEqual(set(statuses), {200, 429})
            self.assertGreaterEqual(statuses.count(200), 2)
            self.assertTrue(all(0 < int(headers["Retry-After"]) <= 60 for status, headers, _ in answers if status == 429))
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                for _ in range(50):  # one after the other, so that what waits is counted, not what is being read
                    first = pool.submit(server.post, "/v1/completions", body)
                    time.sleep(0.02)
                    second = pool.submit(server.post, "/v1/completions", body | {"n": 2})
                    time.sleep(0.02)
                    third = server.post("/v1/completions", body)
                    if [first.result()[0], second.result()[0], third[0]] == [200, 200, 429]:
                        break
                else:
                    self.fail("no request was one too many")
            self.assertIn("wait already", third[1]["error"]["message"])

    def test_keys(self):
        with temporary() as folder:
            path = folder + "/keys"
            with open(path, "w") as file:
                file.write("sk-one\nsk-two\n")
            with Server("--api-key-file", path, "--host", "0.0.0.0", env={"COTERIE_API_KEY": "sk-env"}) as server:
                server.host = "127.0.0.1"
                self.assertEqual(server.get("/health")[0], 200)
                for key, status in [("sk-one", 200), ("sk-two", 200), ("sk-env", 200), ("sk-on", 401), ("sk-onee", 401), ("", 401)]:
                    self.assertEqual(server.get("/v1/models", Authorization="Bearer " + key)[0], status, key)
                    self.assertEqual(server.get("/metrics", Authorization="Bearer " + key)[0], status, key)
                self.assertEqual(server.get("/v1/models", Authorization="Basic sk-one")[0], 401)
                status, body = server.get("/version")
                self.assertEqual((status, json.loads(body)["error"]["type"]), (401, "authentication_error"))
        refused = run("serve", MODEL, "--host", "0.0.0.0", "--port", "0")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--no-auth", refused.stderr)

    def test_origins(self):
        with Server("--allowed-origins", "http://ok.example", "--allowed-hosts", "box") as server:
            asked = {"Origin": "http://ok.example", "Access-Control-Request-Method": "POST"}
            status, headers, _ = server.send("OPTIONS", "/v1/chat/completions", headers=asked)
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, "http://ok.example"))
            self.assertEqual(server.send("OPTIONS", "/v1/models", headers={"Origin": "http://no.example"})[0], 405)
            self.assertEqual(server.send("GET", "/v1/models", headers={"Host": "box:9"})[0], 200)

    def test_drain(self):
        """SIGTERM: who is served is served to the end, who comes is told."""
        with Server() as server:
            body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "temperature": 0}
            expected = texts(server.complete(**body))
            waiter, result = server.in_background(body | {"n": 4})
            server.tell_to_end()
            try:
                self.assertEqual(server.get("/health")[0], 503)
                self.assertEqual(server.post("/v1/completions", body)[0], 503)
            except ConnectionError:  # it was that fast
                self.assertFalse(waiter.is_alive())
            waiter.join()
            self.assertEqual((result[0][0], texts(result[0][1])), (200, expected * 4))

    def test_hang_up(self):
        """With nothing to read again, SIGHUP ends a server as SIGTERM does; where it is ignored, as under nohup, it stays so."""
        body = {"prompt": "x", "max_tokens": 150, "ignore_eos": True, "temperature": 0}
        with Server() as server:
            waiter, result = server.in_background(body)
            server.process.send_signal(signal.SIGHUP)
            waiter.join()
            self.assertEqual((result[0][0], result[0][1]["usage"]["completion_tokens"]), (200, 150), result)
            server.process.wait(SECONDS)
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with Server() as server:
                server.process.send_signal(signal.SIGHUP)
                self.assertEqual(len(texts(server.complete("x", max_tokens=3))), 1)
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_signal_to_all_processes(self):
        """Ctrl-C in a terminal reaches the ranks' processes too: they finish what is under way all the same."""
        for number in (signal.SIGINT, signal.SIGTERM):
            with Server("--ranks", 3, "--fabric", "processes") as server:
                waiter, result = server.in_background({"prompt": "x", "max_tokens": 150, "ignore_eos": True, "temperature": 0, "n": 4})
                os.killpg(server.process.pid, number)
                waiter.join()
                self.assertEqual((result[0][0], result[0][1]["usage"]["completion_tokens"]), (200, 600), result)

    def test_second_signal(self):
        with Server("--max-num-seqs", 1) as server:
            waiter, result = server.in_background({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "n": 64})
            server.tell_to_end()
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(60)
            waiter.join()
            self.assertEqual([status for status, _ in result], [503])

    def test_rank_that_dies_idle(self):
        """Nobody asks for anything, a rank is killed: the server says so and ends, with a failure."""
        with Server("--ranks", 3, "--fabric", "processes", status=1) as server:
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True)
            os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
            server.process.wait(60)
        self.assertTrue(any("killed by signal 9" in line for line in server.log), server.log)

    def test_health_after_a_loss(self):
        """It says so as soon as a rank is lost, and until the process ends, which waits for a rank that takes a second to end, and
        then for a client that does not leave."""

        def state(process):
            """Z: ended. Its first thread is a zombie before the others have ended, and the process with them, so it stands alone."""
            try:
                state = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
                return state if len(os.listdir(f"/proc/{process}/task")) == 1 else "threads"
            except OSError:
                return "gone"

        with Server("--ranks", 3, "--fabric", "processes", status=1) as server:
            self.assertEqual(server.get("/health")[0], 200)
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True)
            lost, late = map(int, children.stdout.split())
            slow = server.raw()
            slow.sendall(b"GET /health HTTP/1.1\r\n")
            os.kill(late, signal.SIGSTOP)
            os.kill(lost, signal.SIGKILL)
            while state(lost) not in ("Z", "gone"):
                time.sleep(0.001)
            statuses = [server.get("/health")[0]]
            try:
                while True:
                    statuses.append(server.get("/health")[0])
            except (OSError, http.client.HTTPException):
                self.assertEqual(state(late), "gone")
                with contextlib.closing(slow), contextlib.suppress(ConnectionError):
                    slow.settimeout(1)
                    self.assertEqual(slow.recv(1), b"")
            self.assertEqual(set(statuses), {503})
            server.process.wait(60)

    def test_rank_that_dies_under_requests(self):
        """An error ends streams and answers, none is short without one; the server ends, with a failure."""
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
        with Server("--ranks", 3, "--fabric", "processes", status=1) as server, contextlib.ExitStack() as stack:
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True)
            streamed, whole, health = (stack.enter_context(contextlib.closing(server.connect())) for _ in range(3))
            head = {"Content-Type": "application/json"}
            streamed.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), head)
            stream = streamed.getresponse()
            self.assertTrue(stream.readline().startswith(b"data: "))
            whole.request("POST", "/v1/completions", json.dumps(body), head)
            os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
            events = [line[6:] for line in stream.read().decode().splitlines() if line.startswith("data: ")]
            self.assertIn("error", json.loads(events[-1]))
            self.assertNotIn("[DONE]", events)
            self.assertGreaterEqual(whole.getresponse().status, 500)
            try:
                health.request("GET", "/health")
                self.assertEqual(health.getresponse().status, 503)
            except (ConnectionError, http.client.HTTPException):
                pass  # it has ended already
            server.process.wait(60)
        failures = [line for line in server.log if "was killed by signal 9" in line]
        self.assertEqual(len(failures), 1, server.log)
        self.assertIn("engine failed", failures[0])

    def test_no_template(self):
        with model_without("tokenizer_config.json") as folder:
            with Server(model=folder) as server:
                status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
                self.assertEqual(status, 400)
                self.assertIn("--chat-template", answer["error"]["message"])
            template = folder + "/t.jinja"
            with open(template, "w") as file:
                file.write("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")
            with Server("--chat-template", template, model=folder) as server:
                ids = server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})[1]["tokens"]
                self.assertEqual(server.post("/detokenize", {"tokens": ids})[1]["prompt"], "[user] hi\n")
            greedy = ["{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
                      "{% set ns = namespace(s='x') %}{% for i in range(30) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"]  # fmt: skip
            for source in greedy:
                with open(template, "w") as file:
                    file.write(source)
                with Server("--chat-template", template, model=folder) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
                    asked = pool.submit(server.post, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
                    self.assertEqual(len(texts(server.complete("x", max_tokens=3))), 1)  # others feel nothing
                    status, answer = asked.result()
                    self.assertEqual((status, answer["error"]["param"]), (400, "messages"))
                    if not SANITIZED:
                        self.assertLess(server.peak_bytes(), 900 << 20)

    def test_template_that_nobody_waits_for(self):
        """A template's run ends when the client leaves: those behind do not wait for it, and no processor works on it."""
        chat = {"messages": [{"role": "user", "content": "slow"}]}
        with temporary() as folder:
            template = pathlib.Path(folder) / "t.jinja"
            template.write_text("{% if messages[0].content == 'slow' %}{% for i in range(90000) %}{% for j in range(90000) %}"
                                "{% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}")
            body = json.dumps(chat).encode()
            with Server("--chat-template", template) as server:
                def ticks():
                    return server.cpu_ticks()[1]

                began = ticks()
                self.assertEqual(server.post("/v1/chat/completions", chat)[0], 400)
                whole, began = ticks() - began, ticks()  # of a run to the limit of steps
                with server.raw() as connection:
                    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
                    while ticks() < began + whole / 8:  # it runs
                        time.sleep(0.001)
                began = ticks()
                self.assertEqual(server.post("/tokenize", {"messages": [{"role": "user", "content": "fast"}]})[0], 200)
                self.assertLess(ticks() - began, whole / 2)

    def test_special_tokens(self):
        """What the tokenizer puts before a text: before prompts, unless told not to; before conversations where told to."""
        with model_without("tokenizer.json") as folder:
            tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
            first = tokenizer["added_tokens"][0]
            name, bos = first["content"], first["id"]
            tokenizer["post_processor"] = {
                "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [], "special_tokens": {name: {"id": name, "ids": [bos], "tokens": [name]}}}  # fmt: skip
            (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
            with Server(model=folder) as server:
                for path, what, default in [("completions", {"prompt": "hi"}, True), ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, False)]:
                    lists = [server.post("/tokenize", what | more)[1]["tokens"] for more in ({}, {"add_special_tokens": False}, {"add_special_tokens": True})]
                    self.assertEqual(lists[2], [bos] + lists[1])
                    self.assertEqual(lists[0], lists[1 + default])
                    for ids, more in zip(lists, ({}, {"add_special_tokens": False}, {"add_special_tokens": True})):
                        answer = server.post("/v1/" + path, what | more | {"max_tokens": 1, "return_token_ids": True})[1]
                        self.assertEqual(answer["choices"][0]["prompt_token_ids"], ids)

    def test_dummy_weights(self):
        with temporary() as folder:
            (pathlib.Path(folder) / "config.json").symlink_to(MODEL / "config.json")
            with Server("--load-format", "dummy", "--tokenizer", MODEL, model=folder) as server:
                self.assertEqual(server.complete([5, 6, 7], max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"], 4)

    def test_gguf(self):
        """A file, or the first of its parts, is served by its own name, and texts are those that others computed."""
        golden = pathlib.Path(os.environ["COT_SHARED"]) / "golden/gguf"
        if not golden.is_dir():
            self.skipTest(f"there is no '{golden}'")
        rows = [json.loads(line) for line in (golden / "arch/greedy.jsonl").read_text().splitlines()]
        for path, file in (("arch/mixtral.gguf", "mixtral"), ("container/parts-00001-of-00003.gguf", "qwen3moe-yarn-tied")):
            with self.subTest(path), Server("--precision", "fp32", "--ranks", 2, model=golden / path, name=None) as server:
                self.assertEqual([m["id"] for m in json.loads(server.get("/v1/models")[1])["data"]][0], f"tiny {file}")
                mine = [row for row in rows if row["file"] == f"{file}.gguf"]
                self.assertTrue(mine)
                for row in mine:
                    body = {"model": f"tiny {file}", "prompt": row["prompt"], "temperature": 0, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
                    status, answer = server.post("/v1/completions", body)
                    self.assertEqual(status, 200, answer)
                    self.assertEqual((answer["choices"][0]["prompt_token_ids"], answer["choices"][0]["token_ids"]), (row["ids"], row["next"]))

    def test_rank_counts_agree(self):
        """The same bits on every number of ranks, and a fingerprint that says so."""
        body = {"prompt": PROMPTS, "max_tokens": 24, "temperature": 1.2, "seed": 5, "ignore_eos": True}
        seen, prints = [], set()
        for ranks in (1, 3, 4):
            with Server("--ranks", ranks) as server:
                seen.append(texts(server.complete(**body)))
                prints.add(json.loads(server.get("/version")[1])["fingerprint"])
        self.assertEqual(seen[0], seen[1])
        self.assertEqual(seen[0], seen[2])
        self.assertEqual(len(prints), 1)

    @unittest.skipUnless(shutil.which("oshrun") and MODULE.exists() and not SANITIZED, "SKIPPED: no OpenSHMEM to serve over")
    def test_over_openshmem(self):
        """Ranks that oshrun starts agree on the room for keys and values, though each sees other memory free, and answer as threads do.
        Who started them hands on what signals it gets: SIGTERM lets answers end, a second one cuts them off."""
        long = {"prompt": "x", "max_tokens": 150, "ignore_eos": True, "temperature": 0}
        body = {"prompt": PROMPTS, "max_tokens": 12, "temperature": 0}
        with Server("--ranks", 2) as server:
            expected = texts(server.complete(**body))
        restless = "import random\nwhile True: b\"x\" * random.randrange(1 << 26)"
        with subprocess.Popen([sys.executable, "-c", restless]) as other:
            try:
                for signals, status in ((signal.SIGTERM,), 200), ((signal.SIGHUP,), 200), ((signal.SIGTERM, signal.SIGTERM), 503):
                    with Server("--ranks", 2, "--fabric", "shmem") as server:
                        self.assertEqual(texts(server.complete(**body)), expected)
                        waiter, result = server.in_background(long | {"n": 32 if status == 503 else 1})
                        for number in signals:
                            server.tell_to_end(number)
                        waiter.join()
                        self.assertEqual([answer for answer, _ in result], [status], result)
            finally:
                other.kill()

    @unittest.skipUnless(shutil.which("oshrun") and MODULE.exists() and not SANITIZED, "SKIPPED: no OpenSHMEM to serve over")
    def test_memory_over_openshmem(self):
        """Ranks that oshrun starts give no memory back: its split stays, and auto is refused."""
        refused = run("serve", MODEL, "--port", "0", "--ranks", "2", "--fabric", "shmem", "--memory", "auto")
        self.assertEqual((refused.returncode, refused.stderr),
                         (1, "coterie: --memory auto: ranks over OpenSHMEM give no memory back; say how many bytes\n"))
        options = ("--ranks", 2, "--spare-slots", 1, "--rebalance", "load", "--memory", 4_000_000)
        with Server(*options, "--fabric", "shmem") as server:
            self.assertTrue(server.complete(prompt="x", max_tokens=4)["choices"])
            self.assertNotIn("coterie:memory", server.get("/metrics")[1].decode())

    def test_bad_starts(self):
        with Server() as server:
            taken = run("serve", MODEL, "--port", server.port)
            self.assertEqual(taken.returncode, 1)
            self.assertIn("cannot listen", taken.stderr)
        for status, options, word in [(2, ["--max-model-len", "9999"], "max model length"),
                                      (2, ["--state-snapshots", "32"], "snapshots of states: the model's layers all have keys"),
                                      (2, ["--state-snapshots", "1", "--no-enable-prefix-caching"], "there is no prefix cache"), (1, ["--chat-template", "/none"], "/none"),
                                      (1, ["--api-key-file", "/none"], "/none"), (2, ["--block-size", "5"], "block"), (1, ["--host", "no such host"], "host"),
                                      (2, ["--ssl-cert-reqs", "2"], "--ssl-certfile"), (2, ["--host", "0.0.0.0"], "--no-auth"), (1, ["--ssl-certfile", "/none"], "/none")]:  # fmt: skip
            bad = run("serve", MODEL, "--port", "0", *options)
            self.assertEqual(bad.returncode, status, options)
            self.assertIn(word, bad.stderr)
            self.assertEqual(len(bad.stderr.splitlines()), 1, bad.stderr)


if __name__ == "__main__":
    unittest.main()
