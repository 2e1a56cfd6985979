"""The OpenAI API of `coterie serve`, over real sockets, with nothing but Python's own library."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import ssl
import subprocess
import time
import unittest

from serving import MODEL, SANITIZED, SECONDS, Server, model_without, run, seed, temporary

GREEDY = {"temperature": 0, "max_tokens": 12}
PROMPTS = [
    "Question: What is 2 + 3?",
    "Once upon a time",
    "def main():",
    "The capital of France is",
    "A farmer has 12 hens.",
    "x",
]


def texts(answer):
    return [c["text"] for c in sorted(answer["choices"], key=lambda c: c["index"])]


class Shared(unittest.TestCase):
    """Tests that leave the server as it was."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--ranks", 2, "--max-num-seqs", 8, "--max-num-batched-tokens", 64).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)

    # ---- what is answered ----

    def test_same_text_as_run(self):
        for prompt in PROMPTS[:3]:
            plain = run("run", MODEL, "-p", prompt, "--max-tokens", 12, "--attention", "dp", "--ranks", 2)
            self.assertEqual(texts(self.server.complete(prompt, **GREEDY))[0], plain.stdout[:-1])

    def test_shape(self):
        answer = self.server.complete(PROMPTS[0], **GREEDY)
        self.assertTrue(answer["id"].startswith("cmpl-"))
        self.assertEqual(answer["object"], "text_completion")
        self.assertEqual(answer["model"], "tiny")
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        usage = answer["usage"]
        self.assertEqual(usage["completion_tokens"], 12)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 12)
        self.assertIn("cached_tokens", usage["prompt_tokens_details"])
        status, models = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
        self.assertEqual((status, models["object"]), (200, "chat.completion"))
        self.assertEqual(models["choices"][0]["message"]["role"], "assistant")
        self.assertEqual(models["usage"]["completion_tokens"], 3)

    def test_prompts_of_all_kinds(self):
        ids = self.server.post("/tokenize", {"prompt": PROMPTS[1]})[1]["tokens"]
        other = self.server.post("/tokenize", {"prompt": PROMPTS[2]})[1]["tokens"]
        one, two = (texts(self.server.complete(p, **GREEDY))[0] for p in PROMPTS[1:3])
        self.assertEqual(texts(self.server.complete(ids, **GREEDY)), [one])
        self.assertEqual(texts(self.server.complete([ids, other], **GREEDY)), [one, two])
        self.assertEqual(texts(self.server.complete(PROMPTS[1:3], **GREEDY)), [one, two])
        self.assertEqual(texts(self.server.complete(PROMPTS[1:3], **GREEDY, n=2)), [one, one, two, two])

    def test_company_changes_nothing(self):
        """Greedy and seeded texts alone, and all at once in any order."""
        draw = random.Random(seed())
        bodies = []
        for i in range(24):
            body = {"prompt": draw.choice(PROMPTS) * draw.randint(1, 6), "max_tokens": draw.randint(1, 40), "ignore_eos": True}
            body |= {"temperature": 0} if i % 2 else {"temperature": 1.3, "seed": draw.randrange(2**40), "top_p": 0.9, "n": draw.randint(1, 3)}
            bodies.append(body | draw.choice([{}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.7}, {"repetition_penalty": 1.3}]))
        alone = [texts(self.server.complete(**body)) for body in bodies]
        order = list(range(len(bodies)))
        draw.shuffle(order)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            together = dict(zip(order, pool.map(lambda i: texts(self.server.complete(**bodies[i])), order)))
        self.assertEqual([together[i] for i in range(len(bodies))], alone)

    def test_choices_draw_their_own(self):
        answer = self.server.complete(PROMPTS[0], n=3, seed=7, temperature=1, max_tokens=10)
        alone = self.server.complete(PROMPTS[0], n=1, seed=7, temperature=1, max_tokens=10)
        self.assertEqual(texts(answer)[0], texts(alone)[0])
        self.assertEqual(len(set(texts(answer))), 3)
        self.assertNotEqual(*(texts(self.server.complete(PROMPTS[0], temperature=1, max_tokens=20))[0] for _ in range(2)))

    # ---- streams ----

    def test_stream(self):
        """One event a token, the end in the last one's; texts add up."""
        whole = self.server.complete(PROMPTS[0], **GREEDY, return_token_ids=True)
        body = {"prompt": PROMPTS[0], **GREEDY, "return_token_ids": True, "stream_options": {"include_usage": True}}
        events = self.server.events("/v1/completions", body)
        self.assertEqual(events.pop(), "[DONE]")
        usage = events.pop()
        self.assertEqual((usage["choices"], usage["usage"]), ([], whole["usage"]))
        choices = [e["choices"][0] for e in events]
        self.assertEqual(len(choices), 12)
        self.assertEqual("".join(c["text"] for c in choices), texts(whole)[0])
        self.assertEqual([c["finish_reason"] for c in choices], [None] * 11 + ["length"])
        self.assertEqual([i for c in choices for i in c["token_ids"]], whole["choices"][0]["token_ids"])
        self.assertEqual([len(c["token_ids"]) for c in choices], [1] * 12)
        self.assertTrue(all(e["usage"] is None for e in events))
        body["stream_options"]["continuous_usage_stats"] = True
        counted = [e["usage"]["completion_tokens"] for e in self.server.events("/v1/completions", body)[:-1]]
        self.assertEqual(counted, [*range(1, 13), 12])

    def test_stream_of_chat(self):
        body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 6, "n": 2}
        events = self.server.events("/v1/chat/completions", body)
        self.assertEqual(events.pop(), "[DONE]")
        for index in range(2):
            deltas = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
            self.assertEqual(len(deltas), 6)
            self.assertEqual([d["delta"].get("role") for d in deltas], ["assistant"] + [None] * 5)
        self.assertTrue(all(e["object"] == "chat.completion.chunk" and "usage" not in e for e in events))

    def test_stop(self):
        text = texts(self.server.complete(PROMPTS[0], **GREEDY))[0]
        stop = text[4:7]
        at = text.index(stop)
        answer = self.server.complete(PROMPTS[0], **GREEDY, stop=["never this", stop])
        choice = answer["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"], choice["stop_reason"]), (text[:at], "stop", stop))
        choice = self.server.complete(PROMPTS[0], **GREEDY, stop=stop, include_stop_str_in_output=True)["choices"][0]
        self.assertEqual(choice["text"], text[: at + len(stop)])
        # held-back text has its events all the same
        events = self.server.events("/v1/completions", {"prompt": PROMPTS[0], **GREEDY, "stop": text + "beyond"})
        self.assertEqual(len(events), 13)
        self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), text)
        ids = self.server.complete(PROMPTS[0], **GREEDY, return_token_ids=True)["choices"][0]["token_ids"]
        first = ids.index(ids[3])
        choice = self.server.complete(PROMPTS[0], **GREEDY, stop_token_ids=[ids[3]], return_token_ids=True)["choices"][0]
        self.assertEqual((choice["token_ids"], choice["finish_reason"], choice["stop_reason"]), (ids[: first + 1], "stop", ids[3]))
        choice = self.server.complete(PROMPTS[0], **GREEDY, stop_token_ids=[ids[3]], min_tokens=12)["choices"][0]
        self.assertEqual(choice["finish_reason"], "length")

    def test_continued(self):
        """A text that is given back in part goes on as it would have, and nothing of it is sent twice."""
        draw = random.Random(seed())
        for _ in range(12):
            body = {"prompt": draw.choice(PROMPTS), "max_tokens": 20, "ignore_eos": True, "return_token_ids": True}
            body |= draw.choice([{"temperature": 0}, {"temperature": 1.1, "seed": draw.randrange(2**30)}])
            body |= draw.choice([{}, {"presence_penalty": 1}, {"frequency_penalty": 1, "repetition_penalty": 1.2}])
            whole = self.server.complete(**body)["choices"][0]
            events = self.server.events("/v1/completions", body)[:-1]
            cut = draw.randint(1, 19)
            sent = "".join(e["choices"][0]["text"] for e in events[:cut])
            answer = self.server.complete(**body, continue_token_ids=[whole["token_ids"][:cut]])
            self.assertEqual(sent + texts(answer)[0], whole["text"])
            self.assertEqual(answer["choices"][0]["token_ids"], whole["token_ids"][cut:])
            self.assertEqual(answer["usage"]["completion_tokens"], 20)
        gaps = "vllm:request_time_per_output_token_seconds_count"
        before = self.server.metric(gaps)
        self.server.complete(**body, continue_token_ids=[whole["token_ids"][:19]])  # one token has no time between
        self.assertEqual(self.server.metric(gaps), before)
        done = self.server.complete(**body, continue_token_ids=[whole["token_ids"]])
        self.assertEqual((done["choices"][0]["token_ids"], done["choices"][0]["finish_reason"]), ([], "length"))
        events = self.server.events("/v1/completions", body | {"continue_token_ids": [whole["token_ids"]]})
        self.assertEqual((len(events), events[0]["choices"][0]["finish_reason"]), (2, "length"))

    # ---- chances ----

    def test_logprobs(self):
        answer = self.server.complete(PROMPTS[3], temperature=0, max_tokens=5, logprobs=3, echo=True)
        chances, n = answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens"]
        self.assertEqual("".join(chances["tokens"]), answer["choices"][0]["text"])
        self.assertEqual(len(chances["tokens"]), n + 5)
        self.assertIsNone(chances["token_logprobs"][0])
        for i in range(1, n + 5):
            top = chances["top_logprobs"][i]
            self.assertIn(len(top), (3, 4))
            self.assertEqual(top[chances["tokens"][i]], chances["token_logprobs"][i])
            self.assertLessEqual(chances["token_logprobs"][i], max(top.values()))
            if i >= n:
                self.assertEqual(max(top.values()), chances["token_logprobs"][i])
        self.assertEqual(chances["text_offset"][:2], [0, len(chances["tokens"][0])])
        again = self.server.complete(answer["choices"][0]["text"], temperature=0, max_tokens=0, logprobs=0, echo=True)
        self.assertEqual(again["choices"][0]["logprobs"]["token_logprobs"][1:], chances["token_logprobs"][1:])
        body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 2, "logprobs": True, "top_logprobs": 2}
        content = self.server.post("/v1/chat/completions", body)[1]["choices"][0]["logprobs"]["content"]
        self.assertEqual([len(c["top_logprobs"]) for c in content], [2, 2])
        self.assertEqual(bytes(content[0]["bytes"]).decode(), content[0]["token"])
        self.assertEqual(content[0]["top_logprobs"][0]["logprob"], content[0]["logprob"])

    def test_bias(self):
        ids = self.server.complete(PROMPTS[0], **GREEDY, return_token_ids=True)["choices"][0]["token_ids"]
        other = self.server.complete(PROMPTS[0], **GREEDY, return_token_ids=True, logit_bias={str(ids[0]): -100})
        self.assertNotEqual(other["choices"][0]["token_ids"][0], ids[0])
        forced = self.server.complete(PROMPTS[0], **GREEDY, return_token_ids=True, logit_bias={"77": 100})
        self.assertEqual(forced["choices"][0]["token_ids"], [77] * 12)

    # ---- the rest of the API ----

    def test_tokens(self):
        for text in PROMPTS + ["", "ünï ☃ \n\t"]:
            answer = self.server.post("/tokenize", {"prompt": text})[1]
            self.assertEqual(answer["count"], len(answer["tokens"]))
            self.assertEqual(self.server.post("/detokenize", {"tokens": answer["tokens"]})[1], {"prompt": text})
        size = len(json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"])
        self.assertEqual(self.server.post("/detokenize", {"tokens": [size - 1]})[0], 200)
        for token in (-1, size, 2**31 - 1, 2**40):
            status, answer = self.server.post("/detokenize", {"tokens": [5, token]})
            self.assertEqual((status, answer["error"]["param"]), (400, "tokens"))
            self.assertIn(f"token 1 is {token}, the vocabulary has {size}", answer["error"]["message"])
        status, answer = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
        self.assertEqual(status, 200)
        chat = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})[1]
        self.assertEqual(chat["usage"]["prompt_tokens"], answer["count"])

    def test_other_paths(self):
        self.assertEqual(self.server.get("/health"), (200, b""))
        version = json.loads(self.server.get("/version")[1])
        models = json.loads(self.server.get("/v1/models")[1])["data"]
        self.assertEqual([m["id"] for m in models], ["tiny"])
        self.assertEqual(models[0]["max_model_len"], 512)
        self.assertRegex(version["fingerprint"], "^fp_[0-9a-f]{16}$")
        self.assertEqual(models[0]["fingerprint"], version["fingerprint"])
        self.assertEqual(json.loads(self.server.get("/v1/models/tiny")[1]), models[0])
        self.assertEqual(self.server.get("/v1/models/other")[0], 404)
        status, headers, body = self.server.send("HEAD", "/v1/models")
        self.assertEqual((status, body), (200, b""))

    def test_request_id(self):
        _, headers, _ = self.server.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, {"X-Request-Id": "abc-1"})
        self.assertEqual(headers["X-Request-Id"], "abc-1")

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

    # ---- what is refused ----

    def test_refused(self):
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        deep = b'{"prompt":"x","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        table = [
            (400, b"", "empty"),
            (400, b"{", "JSON"),
            (400, b"[1]", "object"),
            (400, b'"x"', "object"),
            (400, b'{"prompt":"\xff"}', "UTF-8"),
            (400, b'{"prompt":"\\ud800"}', "ud800"),
            (400, b'{"prompt":"a\\u0000b"}', "U+0000"),
            (400, b'{"prompt":"a","x\\u0000y":1}', "U+0000"),
            (400, {"prompt": "x", "stop_token_ids": [-1]}, "ids are in [0, 2147483646]"),
            (400, b'{"prompt":"a","prompt":"b"}', "duplicate"),
            (400, b'{"prompt":"a","temperature":1e400}', "JSON"),
            (400, b'{"prompt":"a","seed":99999999999999999999}', "JSON"),
            (400, deep, "deeper"),
            (400, {}, "prompt"),
            (400, {"prompt": None}, "prompt"),
            (400, {"prompt": ""}, "no tokens"),
            (400, {"prompt": []}, "empty"),
            (400, {"prompt": [[]]}, "no tokens"),
            (400, {"prompt": {}}, "object"),
            (400, {"prompt": [1, "x"]}, "token id"),
            (400, {"prompt": ["x", 1]}, "whole number"),
            (400, {"prompt": [4096]}, "vocabulary"),
            (400, {"prompt": [-1]}, "vocabulary"),
            (400, {"prompt": [1.5]}, "number"),
            (400, {"prompt": [1] * 512, "max_tokens": 1}, "512"),
            (400, {"prompt": "x", "max_tokens": 512}, "512"),
            (400, {"prompt": "x", "max_tokens": -1}, "max_tokens"),
            (400, {"prompt": "x", "n": -1}, "'n'"),
            (400, {"prompt": "x", "n": 0}, "'n'"),
            (400, {"prompt": "x", "n": 1.5}, "'n'"),
            (400, {"prompt": "x", "n": "1"}, "'n'"),
            (400, {"prompt": "x", "n": 10**6}, "'n'"),
            (400, {"prompt": ["x"] * 2000}, "choices"),
            (400, {"prompt": "x", "temperature": -0.1}, "temperature"),
            (400, {"prompt": "x", "temperature": "hot"}, "temperature"),
            (400, {"prompt": "x", "top_p": 0}, "top_p"),
            (400, {"prompt": "x", "top_p": 1.1}, "top_p"),
            (400, {"prompt": "x", "top_k": -2}, "top_k"),
            (400, {"prompt": "x", "presence_penalty": 3}, "presence_penalty"),
            (400, {"prompt": "x", "stop": ["s"] * 10_000}, "stop"),
            (400, {"prompt": "x", "stop": [""]}, "empty"),
            (400, {"prompt": "x", "stop": 5}, "stop"),
            (400, {"prompt": "x", "stop": "s" * 5000}, "stop"),
            (400, {"prompt": "x", "logprobs": 21}, "logprobs"),
            (400, {"prompt": "x", "logit_bias": {"x": 1}}, "token id"),
            (400, {"prompt": "x", "logit_bias": {"4096": 1}}, "token id"),
            *((400, {"prompt": "x", "logit_bias": {key: 1}}, "token id") for key in (" 5", "+5", "05", "5 ", "-0", "", "5.0", "0x5", "9" * 10, "9" * 30)),
            (400, {"prompt": "x", "logit_bias": {"1": 101}}, "101"),
            (400, {"prompt": "x", "logit_bias": {str(i): 1 for i in range(2000)}}, "2000"),
            (400, {"prompt": "x", "min_tokens": 20, "max_tokens": 5}, "min_tokens"),
            (400, {"prompt": "x", "stream_options": {"include_usage": True}}, "stream"),
            (400, {"prompt": "x", "continue_token_ids": [[1], [2]]}, "continue_token_ids"),
            (400, {"prompt": "x", "continue_token_ids": [[1] * 20], "max_tokens": 5}, "continue_token_ids"),
            (404, {"prompt": "x", "model": "other"}, "other"),
        ]
        refused = ["best_of", "suffix", "use_beam_search", "response_format", "tools", "tool_choice", "functions", "prompt_embeds",
                   "structured_outputs", "guided_json", "guided_regex", "allowed_token_ids", "bad_words", "prompt_logprobs"]  # fmt: skip
        table += [(400, {"prompt": "x", name: ["y"]}, name) for name in refused]
        for status, body, word in table:
            with self.subTest(body=str(body)[:60]):
                got, answer = self.server.post("/v1/completions", body)
                self.assertEqual(got, status, answer)
                self.assertIn(word, answer["error"]["message"])
                self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
                self.assertIsInstance(answer["error"]["code"], str)
        for status, body, word in [
            (400, {}, "messages"),
            (400, {"messages": []}, "empty"),
            (400, {"messages": "hi"}, "list"),
            (400, {"messages": [5]}, "object"),
            (400, {"messages": [{"content": "x"}]}, "messages[0] has no 'role'"),
            (400, {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 5}]}, "'content' of messages[1]"),
            (400, {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0] has a part"),
            (400, {"messages": [{"role": "wizard", "content": "x"}]}, "wizard"),
            (400, {"messages": [{"role": "user"}]}, "content"),
            (400, {"messages": [{"role": "user", "content": 5}]}, "content"),
            (400, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
            (400, chat | {"top_logprobs": 2}, "logprobs"),
            (400, chat | {"max_tokens": 0}, "max_tokens"),
            (400, chat | {"add_generation_prompt": True, "continue_final_message": True}, "exclude"),
            (400, chat | {"echo": True}, "echo"),
        ]:
            with self.subTest(body=str(body)[:60]):
                got, answer = self.server.post("/v1/chat/completions", body)
                self.assertEqual(got, status, answer)
                self.assertIn(word, answer["error"]["message"])

    def test_short_prompts(self):
        """One token is a prompt, none is not."""
        for prompt in ([5], [[5]], "x"):
            self.assertEqual(self.server.complete(prompt, **GREEDY)["usage"]["prompt_tokens"], 1)

    def exchange(self, *pieces, half=False):
        """All that is answered to these bytes until the server ends the connection."""
        with contextlib.closing(self.server.raw()) as connection:
            answered = b""
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                for piece in pieces:
                    connection.sendall(piece)
                if half:
                    connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    answered += piece
            return answered

    def test_odd_connections(self):
        """Bodies that are shorter or longer than they say, requests in a row, half a close, TLS: as each has earned."""
        def request(body, length=None, more=""):
            return (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
                    f"Content-Length: {len(body) if length is None else length}\r\n\r\n").encode() + body  # fmt: skip

        def statuses(answered):
            return [int(status) for status in re.findall(rb"(?:^|\n|})HTTP/1.1 (\d+) ", answered)]

        body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
        last = request(body, more="Connection: close\r\n")
        self.assertEqual(statuses(self.exchange(last)), [200])
        self.assertEqual(statuses(self.exchange(request(body) + request(body), last)), [200, 200, 200])
        ended = self.server.metric("vllm:request_success_total")
        self.assertEqual(self.exchange(request(body, len(body) + 5), half=True), b"")  # the rest never comes
        self.assertEqual(self.server.metric("vllm:request_success_total"), ended)
        self.assertEqual(statuses(self.exchange(request(body + b"more\r\n\r\n", len(body)))), [200, 400])  # no request begins so
        self.assertEqual(self.exchange(request(json.dumps({"prompt": "x", "max_tokens": 400, "ignore_eos": True}).encode()), half=True), b"")
        self.server.wait_idle()
        with contextlib.closing(self.server.raw()) as connection, self.assertRaises(ssl.SSLError):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.wrap_socket(connection)
        self.assertEqual(len(texts(self.server.complete("x", max_tokens=2))), 1)

    def test_client_that_never_reads(self):
        """It is cut when too much waits for it, and its sequences end; others are served meanwhile."""
        aborted = self.server.metric("vllm:request_success_total", finished_reason="abort")
        body = json.dumps({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "n": 16, "stream": True, "logprobs": 20}).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the system keeps less for it
        connection.connect((self.server.host, self.server.port))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.assertEqual(len(texts(self.server.complete("x", max_tokens=2))), 1)
        self.server.wait_idle()
        self.assertGreater(self.server.metric("vllm:request_success_total", finished_reason="abort"), aborted)
        connection.close()

    def test_too_long_says_both(self):
        _, answer = self.server.post("/v1/completions", {"prompt": [1] * 500, "max_tokens": 20})
        self.assertEqual(answer["error"]["code"], "context_length_exceeded")
        self.assertIn("512", answer["error"]["message"])
        self.assertIn("520", answer["error"]["message"])
        answer = self.server.complete([1] * 600, max_tokens=5, truncate_prompt_tokens=7)
        self.assertEqual(answer["usage"]["prompt_tokens"], 7)
        answer = self.server.complete([1] * 600, max_tokens=5, truncate_prompt_tokens=-1)  # as many as fit
        self.assertEqual(answer["usage"]["prompt_tokens"], 507)

    def test_off_is_accepted(self):
        off = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "best_of": 1, "suffix": None, "functions": [],
               "user": "me", "bad_words": [], "use_beam_search": False, "logit_bias": {}, "stop": None, "seed": None, "nobody": "knows"}  # fmt: skip
        self.assertEqual(texts(self.server.complete(PROMPTS[0], **GREEDY, **off)), texts(self.server.complete(PROMPTS[0], **GREEDY)))
        self.server.complete(PROMPTS[0], **GREEDY, nobody=1)
        self.assertEqual(sum("nobody" in line for line in self.server.log), 1)

    def test_methods_and_types(self):
        for method, path, status in [("GET", "/v1/completions", 405), ("POST", "/health", 405), ("GET", "/v1", 404),
                                     ("DELETE", "/v1/models", 405), ("GET", "/v1/models/../../etc/passwd", 404)]:  # fmt: skip
            self.assertEqual(self.server.send(method, path)[0], status, (method, path))
        self.assertIn(b"/v1/chat/completions", self.server.get("/chat/completions")[1])  # what was meant
        status, _, body = self.server.send("POST", "/v1/completions", b'{"prompt":"x"}', {"Content-Type": "text/plain"})
        self.assertEqual((status, json.loads(body)["error"]["param"]), (415, "Content-Type"))

    def test_names_of_hosts(self):
        for host, status in [("evil.example", 403), ("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:5", 200), ("localhost.evil.example", 403)]:
            self.assertEqual(self.server.send("GET", "/v1/models", headers={"Host": host})[0], status, host)
        _, headers, _ = self.server.send("GET", "/v1/models", headers={"Origin": "http://evil.example"})
        self.assertIsNone(headers["Access-Control-Allow-Origin"])

    # ---- leaving ----

    def test_leaving(self):
        """Clients that leave at random moments leave nothing behind."""
        draw = random.Random(seed())
        descriptors = self.server.descriptors()
        for _ in range(100):
            body = json.dumps({"prompt": draw.choice(PROMPTS), "max_tokens": 400, "ignore_eos": True, "stream": draw.random() < 0.6, "n": draw.randint(1, 3)}).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            connection = self.server.raw()
            connection.sendall((head + body)[: draw.choice([None, None, None, len(head), 20])])
            if draw.random() < 0.7:
                time.sleep(draw.random() * 0.03)
            if draw.random() < 0.3:
                connection.shutdown(1)  # half a close
            connection.close()
        self.server.wait_idle()
        self.assertLessEqual(self.server.descriptors(), descriptors + 2)
        self.assertEqual(texts(self.server.complete(PROMPTS[0], **GREEDY)), texts(self.server.complete(PROMPTS[0], **GREEDY)))


class Own(unittest.TestCase):
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
        self.assertEqual(refused.returncode, 1)
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

    def test_signal_to_all_processes(self):
        """Ctrl-C in a terminal reaches the ranks' processes too: they finish what is under way all the same."""
        for number in (signal.SIGINT, signal.SIGTERM):
            with Server("--ranks", 3, "--fabric", "processes") as server:
                waiter, result = server.in_background({"prompt": "x", "max_tokens": 400, "ignore_eos": True, "temperature": 0, "n": 4})
                os.killpg(server.process.pid, number)
                waiter.join()
                self.assertEqual((result[0][0], result[0][1]["usage"]["completion_tokens"]), (200, 1600), result)

    def test_second_signal(self):
        with Server("--max-num-seqs", 1) as server:
            waiter, result = server.in_background({"prompt": "x", "max_tokens": 500, "ignore_eos": True, "n": 64})
            server.tell_to_end()
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(60)
            waiter.join()
            self.assertEqual([status for status, _ in result], [503])

    def test_giant_bodies_are_others_work(self):
        """The loop neither writes what is as long as a giant body nor frees it, and its memory does not stay taken."""
        giants = [
            ("/tokenize", b'{"prompt": "%s"}' % (b"hello world " * 500000), 200),
            ("/detokenize", b'{"tokens": [%s1]}' % (b"1," * 3000000), 200),
            ("/v1/completions", b'{"prompt": "x", "max_tokens": 1, "unknown": [%s1]}' % (b"[]," * 2000000), 200),
            ("/v1/completions", b'{"prompt": [%s1], "max_tokens": 1}' % (b"1," * 3000000), 400),
        ]
        with Server() as server:
            for path, body, expected in giants:
                loop, whole = server.cpu_ticks()
                status, _, answer = server.send("POST", path, body, {})
                self.assertEqual(status, expected, answer[:200])
                now = server.cpu_ticks()
                self.assertLess(now[0] - loop, 0.3 * (now[1] - whole), path)
            if not SANITIZED:  # sanitizers keep what is freed for a while
                self.assertLess(server.resident_bytes(), 400 << 20)

    def test_ignored_fields_are_logged_once(self):
        with Server() as server:
            body = {"prompt": "x", "max_tokens": 1}
            server.complete(**body, sweet=1, sour=1)
            server.complete(**body, sour=1, salty=1)
            server.complete(**body, salt=1)  # a part of another's name
            server.complete(**body, **{"\x1b[31m\n": 1})  # nothing that a terminal obeys
            for i in range(300):
                server.complete(**body, **{f"field{i}": 1})
        lines = "".join(server.log).split("\n")
        for name in ("sweet", "sour", "salty", "salt", "?[31m?"):
            found = [line for line in lines if line.endswith(f"is ignored: {name}")]
            self.assertEqual(len(found), 1, lines[:20])
        self.assertLess(len(lines), 200)  # and no end of names does not make an endless log

    def ask_for_long_work(self, server, count=1):
        """Connections on which many seconds of tokenising were asked for, the first of which has begun."""
        loop, whole = server.cpu_ticks()
        began = whole - loop
        connections = [server.connect() for _ in range(count)]
        for connection in connections:
            connection.request("POST", "/tokenize", b'{"prompt": "%s"}' % (b" " * (16 << 20)), {"Content-Type": "application/json"})
        while whole - loop < began + 100:
            loop, whole = server.cpu_ticks()
        return connections

    def test_nobody_prepares_for_those_who_left(self):
        """Minutes of work are asked for, and all who did so leave: who comes behind them is served at once."""
        with Server() as server:
            for connection in self.ask_for_long_work(server, 12):
                connection.close()
            status, answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "user": "u" * 40000})
            self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 1))

    def test_what_cannot_fit_is_not_tokenised(self):
        """A text that is too long by far costs a few copies of it, as whichever kind of request it comes."""
        many = 100000 if SANITIZED else 400000  # sanitizers take ten times as long
        texts = [b" " * 30 * many, b"7" * 30 * many, b"hello " * 5 * many, b"<|endoftext|>" * 2 * many]
        with Server() as server:
            for path, form in [("completions", b'{"prompt": "%s"}'), ("chat/completions", b'{"messages": [{"role": "user", "content": "%s"}]}')]:
                for text in texts:
                    status, _, answer = server.send("POST", f"/v1/{path}", form % text, {})
                    self.assertEqual((status, json.loads(answer)["error"]["code"]), (400, "context_length_exceeded"))
            if not SANITIZED:
                self.assertLess(server.peak_bytes(), 320 << 20)

    def test_memory_of_bodies(self):
        """What would take too much memory to read is refused before it does."""
        with Server() as server:
            idle = server.peak_bytes()
            for form, piece in [(b'{"x": [%s1]}', b"[],"), (b'{"x": [%s1]}', b"{},"), (b'{"x": [%s1]}', b'{"":[]},'), (b'{"x": [%s1]}', b'1,')]:
                status, _, answer = server.send("POST", "/v1/completions", form % (piece * (30000000 // len(piece))), {})
                self.assertEqual((status, json.loads(answer)["error"]["code"]), (413, "request_too_large"))
            status, _, answer = server.send("POST", "/tokenize", b'{"prompt": "%s"}' % (b"7" * (17 << 20)), {})
            self.assertEqual((status, json.loads(answer)["error"]["code"]), (413, "request_too_large"))
            if not SANITIZED:
                self.assertLess(server.peak_bytes() - idle, 300 << 20)
            body = b'{"x": [%s1]}' % (b"[]," * 20000000)
            for _ in range(19):  # more than a GiB in all, and each is given back
                status, _, answer = server.send("POST", "/v1/completions", body, {})
                self.assertEqual((status, json.loads(answer)["error"]["code"]), (413, "request_too_large"))

    def test_second_signal_waits_for_no_tokenising(self):
        """What takes many seconds does not keep a server that is told twice to end."""
        with Server() as server:
            (connection,) = self.ask_for_long_work(server)
            server.tell_to_end()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(connection.getresponse().status, 503)
            self.assertEqual(server.process.wait(SECONDS), 0)
            connection.close()

    def test_rank_that_dies_idle(self):
        """Nobody asks for anything, a rank is killed: the server says so and ends, with a failure."""
        with Server("--ranks", 3, "--fabric", "processes", status=1) as server:
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True)
            os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
            server.process.wait(60)
        self.assertTrue(any("killed by signal 9" in line for line in server.log), server.log)

    def test_rank_that_dies_under_requests(self):
        """An error ends streams and answers, none is short without one; the server ends, with a failure."""
        body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True}
        with Server("--ranks", 3, "--fabric", "processes", status=1) as server, contextlib.ExitStack() as stack:
            streamed, whole, health = (stack.enter_context(contextlib.closing(server.connect())) for _ in range(3))
            head = {"Content-Type": "application/json"}
            streamed.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), head)
            stream = streamed.getresponse()
            self.assertTrue(stream.readline().startswith(b"data: "))
            whole.request("POST", "/v1/completions", json.dumps(body), head)
            children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True)
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
        self.assertTrue(any("engine failed" in line for line in server.log), server.log)

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
            greedy = ["{% for i in range(1000000) %}{% for j in range(1000000) %}{% endfor %}{% endfor %}",
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

    def test_bad_starts(self):
        with Server() as server:
            taken = run("serve", MODEL, "--port", server.port)
            self.assertEqual(taken.returncode, 1)
            self.assertIn("cannot listen", taken.stderr)
        for options, word in [(["--max-model-len", "9999"], "max model length"), (["--chat-template", "/none"], "/none"),
                              (["--api-key-file", "/none"], "/none"), (["--block-size", "5"], "block"), (["--host", "no such host"], "host")]:  # fmt: skip
            bad = run("serve", MODEL, "--port", "0", *options)
            self.assertEqual(bad.returncode, 1, options)
            self.assertIn(word, bad.stderr)
            self.assertEqual(len(bad.stderr.splitlines()), 1, bad.stderr)


if __name__ == "__main__":
    unittest.main()
