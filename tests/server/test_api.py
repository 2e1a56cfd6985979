"""The OpenAI API of `coterie serve`, over real sockets, with nothing but Python's own library."""

import concurrent.futures
import json
import pathlib
import random
import time
import unittest

from serving import GREEDY, MODEL, PROMPTS, Server, Shared, model_without, run, seed, texts


class Answers(Shared):
    """Tests that leave the server as it was."""

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
        for i in range(16):
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
        # ids beyond the vocabulary are other models': they never come, and do not keep the others from ending the text
        beyond = [4096, 200_002, 2**31 - 1, 2**31, 2**63 - 1]
        for more in ({}, {"min_tokens": 3}):
            body = dict(GREEDY, return_token_ids=True, **more)
            choice = self.server.complete(PROMPTS[0], **body, stop_token_ids=beyond)["choices"][0]
            self.assertEqual((choice["token_ids"], choice["finish_reason"], choice["stop_reason"]), (ids, "length", None))
            choice = self.server.complete(PROMPTS[0], **body, stop_token_ids=[*beyond, ids[3]])["choices"][0]
            self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", ids[3]))

    def test_continued(self):
        """A text that is given back in part goes on as it would have, and nothing of it is sent twice."""
        draw = random.Random(seed())
        for _ in range(8):
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

    def test_continued_with_logprobs(self):
        """Chances, and where in the text tokens begin, go on as they would have."""
        for chat in (False, True):
            body = {"max_tokens": 12, "ignore_eos": True, "return_token_ids": True, "temperature": 0}
            body |= {"messages": [{"role": "user", "content": PROMPTS[0]}], "logprobs": True, "top_logprobs": 2} if chat else {"prompt": PROMPTS[1], "logprobs": 2}
            path = "/v1/chat/completions" if chat else "/v1/completions"
            whole = self.server.post(path, body)[1]["choices"][0]
            for cut in (1, 5, 11):
                status, answer = self.server.post(path, body | {"continue_token_ids": [whole["token_ids"][:cut]]})
                self.assertEqual(status, 200, answer)
                rest = answer["choices"][0]
                self.assertEqual(rest["token_ids"], whole["token_ids"][cut:])
                for name, values in rest["logprobs"].items():
                    self.assertEqual(values, whole["logprobs"][name][cut:], (name, cut))

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
        again = self.server.complete(answer["choices"][0]["text"], temperature=0, max_tokens=0, logprobs=0, echo=True)
        self.assertEqual(again["choices"][0]["logprobs"]["token_logprobs"][1:], chances["token_logprobs"][1:])
        body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 2, "logprobs": True, "top_logprobs": 2}
        content = self.server.post("/v1/chat/completions", body)[1]["choices"][0]["logprobs"]["content"]
        self.assertEqual([len(c["top_logprobs"]) for c in content], [2, 2])
        self.assertEqual(bytes(content[0]["bytes"]).decode(), content[0]["token"])
        self.assertEqual(content[0]["top_logprobs"][0]["logprob"], content[0]["logprob"])
        part = self.server.post("/tokenize", {"prompt": "日"})[1]["tokens"][0]  # of a character
        body = {**body, "top_logprobs": 20, "max_tokens": 9, "logit_bias": {part: 100}}
        content = self.server.post("/v1/chat/completions", body)[1]["choices"][0]["logprobs"]["content"]
        for said in content + [top for c in content for top in c["top_logprobs"]]:
            self.assertNotEqual(said["bytes"], list("\ufffd".encode()))
            self.assertEqual(bytes(said["bytes"]).decode(errors="replace"), said["token"])
        self.assertEqual((content[0]["token"], content[0]["bytes"][0]), ("\ufffd", "日".encode()[0]))

    def test_text_offset(self):
        """A token begins with the character of the text that its first byte is of, in what is echoed and in what follows."""
        vocab = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
        lengths = {i: len(text) for text, i in vocab.items()}  # bytes: a character each

        def starts(ids, text):  # without special tokens
            at = [sum(lengths[i] for i in ids[:k]) for k in range(len(ids))]
            data = text.encode()
            return [len(data[:a].decode(errors="ignore")) for a in at]

        prompt = "日本語 é ☃x"
        ids = self.server.post("/tokenize", {"prompt": prompt})[1]["tokens"]
        self.assertGreater(len(ids), len(prompt))  # so some are parts of characters
        wanted = starts(ids, prompt)
        body = {"temperature": 0, "max_tokens": 6, "logprobs": 0, "logit_bias": {str(i): 90 for i in self.server.post("/tokenize", {"prompt": "日"})[1]["tokens"]}}
        for given in (prompt, ids):
            choice = self.server.complete(given, **body, echo=True, return_token_ids=True)["choices"][0]
            offsets, said = choice["logprobs"]["text_offset"], choice["text"][len(prompt) :]
            self.assertEqual(offsets[: len(ids)], wanted)
            alone = self.server.complete(given, **body)["choices"][0]
            self.assertEqual(alone["text"], said)
            self.assertEqual([o + len(prompt) for o in alone["logprobs"]["text_offset"]], offsets[len(ids) :])
            self.assertTrue(all(o <= len(said) for o in alone["logprobs"]["text_offset"]))
            events = self.server.events("/v1/completions", {"prompt": given, **body, "stream": True})
            told = [o for e in events[:-1] for o in e["choices"][0]["logprobs"]["text_offset"]]
            self.assertEqual(told, alone["logprobs"]["text_offset"])
        half = self.server.post("/tokenize", {"prompt": "x日"})[1]["tokens"][:-1]  # what is half a character is shown as one
        choice = self.server.complete(half, max_tokens=1, echo=True, logprobs=0)["choices"][0]
        self.assertEqual((choice["text"][:2], choice["logprobs"]["text_offset"]), ("x\ufffd", [0, 1, 2]))
        # special tokens: as text they are text, as ids they leave none, unless they are wanted
        end = "<|endoftext|>"
        spelled = [f"a{end}é", self.server.post("/tokenize", {"prompt": f"a{end}é"})[1]["tokens"]]
        for given, skip, wanted in [(spelled[0], True, [0, 1, 14]), (spelled[1], True, [0, 1, 1]), (spelled[1], False, [0, 1, 14])]:
            choice = self.server.complete(given, max_tokens=1, echo=True, logprobs=0, skip_special_tokens=skip)["choices"][0]
            self.assertEqual(choice["logprobs"]["text_offset"], [*wanted, wanted[-1] + 1])

    def test_bias(self):
        ids = self.server.complete(PROMPTS[0], **GREEDY, return_token_ids=True)["choices"][0]["token_ids"]
        other = self.server.complete(PROMPTS[0], **GREEDY, return_token_ids=True, logit_bias={str(ids[0]): -100})
        self.assertNotEqual(other["choices"][0]["token_ids"][0], ids[0])
        forced = self.server.complete(PROMPTS[0], **GREEDY, return_token_ids=True, logit_bias={"77": 100})
        self.assertEqual(forced["choices"][0]["token_ids"], [77] * 12)

    # ---- the rest of the API ----

    def test_tokens(self):
        for text in PROMPTS + ["", "ünï ☃ \n\t", "\0", "a\0b\0\0<|endoftext|>\0"]:
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

    def test_nul(self):
        """U+0000 is a character: tokenized, rendered, echoed and counted as any other."""
        text = "Once\0upon \0"
        ids = json.loads(run("tokenize", MODEL, "--jsonl", input=json.dumps({"text": text})).stdout)["ids"]
        answer = self.server.complete(text, temperature=0, max_tokens=1, echo=True, return_token_ids=True)["choices"][0]
        self.assertEqual(answer["prompt_token_ids"], ids)
        self.assertEqual(answer["text"][: len(text)], text)
        for content in (text, [{"type": "text", "text": text}]):
            messages = [{"role": "user", "content": content}]
            line = json.loads(run("tokenize", MODEL, "--messages", "-", "--json", input=json.dumps(messages)).stdout)
            self.assertIn(text, line["text"])
            status, answer = self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "return_token_ids": True})
            self.assertEqual((status, answer["choices"][0]["prompt_token_ids"]), (200, line["ids"]))

    def test_prompt_ids_of_a_conversation(self):
        """They stand at the top of the answer, or of a stream's first event alone, too; of completions in choices alone."""
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "n": 2}
        ids = self.server.post("/tokenize", chat)[1]["tokens"]
        answer = self.server.post("/v1/chat/completions", chat | {"return_token_ids": True})[1]
        self.assertEqual((answer["prompt_token_ids"], [c["prompt_token_ids"] for c in answer["choices"]]), (ids, [ids, ids]))
        self.assertNotIn("prompt_token_ids", self.server.post("/v1/chat/completions", chat)[1])
        for asks in (True, False):
            events = self.server.events("/v1/chat/completions", chat | {"return_token_ids": asks, "stream_options": {"include_usage": True}})[:-1]
            self.assertGreater(len(events), 4)
            self.assertEqual([e.get("prompt_token_ids") for e in events], [ids if asks else None] + [None] * (len(events) - 1))
        self.assertNotIn("prompt_token_ids", self.server.complete("hi", max_tokens=1, return_token_ids=True))

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
        # whatever is answered, it has a name, the client's or one of its own
        seen = set()
        asked = [("GET", "/", None), ("GET", "/metrics", None), ("GET", "/nothing", None), ("PUT", "/v1/models", b""), ("HEAD", "/health", None),
                 ("POST", "/v1/completions", b"{"), ("POST", "/tokenize", {"prompt": "x"}), ("GET", "/health", None), ("POST", "/v1/chat/completions", {})]  # fmt: skip
        for method, path, body in asked:
            self.assertEqual(self.server.send(method, path, body, {"X-Request-Id": "abc-2"})[1].get_all("X-Request-Id"), ["abc-2"], path)
            [name] = self.server.send(method, path, body)[1].get_all("X-Request-Id")
            self.assertRegex(name, r"^[a-z]+-[0-9a-f]{32}$")
            seen.add(name)
            self.assertRegex(self.server.send(method, path, body, {"X-Request-Id": "x" * 129})[1]["X-Request-Id"], r"^[a-z]+-[0-9a-f]{32}$")
        self.assertEqual(len(seen), len(asked))
        with self.server.raw() as connection:  # no request at all
            connection.sendall(b"nonsense\r\n\r\n")
            self.assertRegex(connection.recv(4096).decode(), r"^HTTP/1.1 400 [^\0]*\r\nX-Request-Id: req-[0-9a-f]{32}\r\n")

    def test_tokenizer_info(self):
        """What lm-eval's remote tokenizer reads."""
        status, body = self.server.get("/tokenizer_info")
        info, config = json.loads(body), json.loads((MODEL / "tokenizer_config.json").read_text())
        self.assertEqual(status, 200)
        self.assertEqual({k: info[k] for k in ("eos_token", "bos_token", "pad_token", "chat_template")},
                         {"eos_token": config["eos_token"], "bos_token": None, "pad_token": None, "chat_template": config["chat_template"]})  # fmt: skip
        self.assertEqual((info["model_max_length"], info["vocab_size"]), (512, 4096))
        status, answer = self.server.post("/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False})
        self.assertEqual((answer["tokens"], answer["token_strs"]), ([0], None))

    def test_roles_of_the_template(self):
        """What roles there are the template says; this one takes any for a question."""
        said = [{"role": role, "content": "hi"} for role in ("critic", "user")]
        prompts = [self.server.post("/tokenize", {"messages": [message]})[1]["tokens"] for message in said]
        self.assertEqual(*prompts)
        for role in ("", None, 5):
            self.assertEqual(self.server.post("/tokenize", {"messages": [{"role": role, "content": "hi"}]})[0], 400)

    def test_short_prompts(self):
        """One token is a prompt, none is not."""
        for prompt in ([5], [[5]], "x"):
            self.assertEqual(self.server.complete(prompt, **GREEDY)["usage"]["prompt_tokens"], 1)

    def test_off_is_accepted(self):
        off = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "best_of": 1, "suffix": None, "functions": [],
               "user": "me", "bad_words": [], "use_beam_search": False, "logit_bias": {}, "stop": None, "seed": None, "nobody": "knows"}  # fmt: skip
        self.assertEqual(texts(self.server.complete(PROMPTS[0], **GREEDY, **off)), texts(self.server.complete(PROMPTS[0], **GREEDY)))
        self.server.complete(PROMPTS[0], **GREEDY, nobody=1)
        self.assertEqual(sum("nobody" in line for line in self.server.log), 1)

    # ---- leaving ----

    def test_leaving(self):
        """Clients that leave at random moments leave nothing behind."""
        draw = random.Random(seed())
        descriptors = self.server.descriptors()
        for _ in range(60):
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


class Folders(unittest.TestCase):
    """Models like tiny, with other templates or another tokenizer."""

    # One walks the arguments of tool calls, the other, for tools, prints them.

    DEFAULT = """{% for m in messages %}{{ m.role }}:{{ m.content + ';' if m.content is not none }}{% for c in m.tool_calls or [] %}
{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v }},{% endfor %}){% endfor %}{% endfor %}"""
    TOOL_USE = "T{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '<' + c.function.arguments + '>' }}{% endfor %}{% endfor %}"

    def rendered(self, server, messages, **more):
        status, answer = server.post("/tokenize", {"messages": messages, "add_generation_prompt": False, **more})
        if status != 200:
            return answer["error"]["message"]
        return server.post("/detokenize", {"tokens": answer["tokens"]})[1]["prompt"]

    def test_tool_calls(self):
        def said(*arguments, **more):
            calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": a}} for a in arguments]
            return [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls, **more}]

        with model_without("tokenizer_config.json") as folder:
            config = json.loads((MODEL / "tokenizer_config.json").read_text())
            config["chat_template"] = {"default": self.DEFAULT, "tool_use": self.TOOL_USE}
            (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
            with Server(model=folder) as server:
                for more in ({"content": None}, {}):
                    self.assertEqual(self.rendered(server, said('{"a": 1, "b": "x"}', "{}", **more)), "user:x;assistant:f(a=1,b=x,)f()")
                self.assertEqual(self.rendered(server, said({"a": [1]}, "", content="y")), "user:x;assistant:y;f(a=[1],)f()")
                self.assertIn("the chat template fails on line 2", self.rendered(server, said('{"a": ', content="y")))
                self.assertIn("the chat template fails on line 2", self.rendered(server, said('{"a": 1e999}', content="y")))
                tools = [{"type": "function", "function": {"name": "f"}}]
                self.assertEqual(self.rendered(server, said('{"a":1}', {"a": 1}), tools=tools), 'T<{"a":1}><{"a": 1}>')
                # the same history in a conversation that is answered
                status, answer = server.post("/v1/chat/completions", {"messages": said('{"a": 1}'), "max_tokens": 1, "return_token_ids": True})
                self.assertEqual(status, 200)
                prompt = server.post("/detokenize", {"tokens": answer["choices"][0]["prompt_token_ids"]})[1]["prompt"]
                self.assertEqual(prompt, "user:x;assistant:f(a=1,)")

    def test_text_offset_of_added_tokens(self):
        """A token that the tokenizer puts before a prompt, or behind it, is not in what is echoed; one that the prompt spells is."""
        end = "<|endoftext|>"
        with model_without("tokenizer.json") as folder:
            tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
            special = {"id": end, "ids": [0], "tokens": [end]}
            single = [{"SpecialToken": {"id": end, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
            tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [*single, single[0]], "pair": [], "special_tokens": {end: special}}
            (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
            with Server(model=folder) as server:
                for skip in (True, False):
                    choice = server.complete("aéx", max_tokens=1, echo=True, logprobs=0, skip_special_tokens=skip)["choices"][0]
                    self.assertEqual(choice["logprobs"]["tokens"][0], end)
                    self.assertEqual(choice["logprobs"]["text_offset"], [0, 0, 1, 2, 3, 3])
                    choice = server.complete(f"{end}aé{end}", max_tokens=0, echo=True, logprobs=0, skip_special_tokens=skip)["choices"][0]
                    self.assertEqual(choice["logprobs"]["tokens"], [end, end, "a", "é", end, end])
                    self.assertEqual(choice["logprobs"]["text_offset"], [0, 0, 13, 14, 15, 28])
                alone = {"max_tokens": 0, "echo": True, "logprobs": 0, "add_special_tokens": False}
                choice = server.complete(f"{end}a", **alone)["choices"][0]
                self.assertEqual(choice["logprobs"]["text_offset"], [0, 13])

    def test_text_offset_of_bytes(self):
        """Tokens that stand for one byte each wait for the next that does not: what follows begins behind their characters."""
        vocab = {"<unk>": 0, **{f"<0x{b:02X}>": 1 + b for b in range(256)}, **{chr(c): 160 + c for c in range(97, 123)}}
        end = {"id": 283, "content": "</s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        model = {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": "<unk>"}
        decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
        longer = {"type": "Replace", "pattern": {"String": "q"}, "content": "ab"}
        with model_without("tokenizer.json") as folder:
            (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": [end], "decoder": decoder, "normalizer": longer}))
            with Server(model=folder) as server:
                for prompt, wanted in [("日</s>ab", [0, 0, 0, 1, 5, 6]), ("x</s>ab", [0, 1, 5, 6]), ("日本</s></s>", [0, 0, 0, 1, 1, 1, 2, 6]),
                                       ("a日", [0, 1, 1, 1])]:
                    choice = server.complete(prompt, max_tokens=0, echo=True, logprobs=0)["choices"][0]
                    self.assertEqual(choice["logprobs"]["text_offset"], wanted)
                # what the normaliser made has no place in the prompt: tokens have as many characters as their text, up to its end
                choice = server.complete("aqb", max_tokens=1, echo=True, logprobs=0)["choices"][0]
                self.assertEqual((choice["text"][:3], choice["logprobs"]["text_offset"]), ("aqb", [0, 1, 2, 3, 3]))
                # over the chat API the bytes of a part of a character are its own
                bias = {"logit_bias": {1 + 0xE6: 100}, "temperature": 0, "max_tokens": 1, "logprobs": True}
                body = {"messages": [{"role": "user", "content": "x"}], **bias}
                said = server.post("/v1/chat/completions", body)[1]["choices"][0]["logprobs"]["content"][0]
                self.assertEqual((said["token"], said["bytes"]), ("\ufffd", [0xE6]))
                # a byte that begins a character, an id that the tokenizer has not, in some order
                first, beyond = 1 + 0xE6, 300
                choice = server.complete("x", max_tokens=24, logprobs=0, return_token_ids=True, temperature=0, frequency_penalty=2, logit_bias={first: 100, beyond: 100})["choices"][0]
                ids = choice["token_ids"]
                self.assertEqual(set(ids), {first, beyond})
                self.assertEqual(choice["text"], "\ufffd" * ids.count(first))
                self.assertEqual(choice["logprobs"]["text_offset"], [ids[:k].count(first) for k in range(len(ids))])



if __name__ == "__main__":
    unittest.main()
