"""Fields of other servers' APIs: what is the same under another name, what is refused by name, and what asks for nothing; and how requests come."""

import http.client
import json
import unittest

from serving import Server, Shared

SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
# name, values that ask for something, values that do not
REFUSED = [
    ("repetition_detection", [{"min_count": 2}], [{}]), ("vllm_xargs", [{"a": 1}], [{}]),
    ("n_probs", [3, -1], [0]), ("typical_p", [0.5, "1"], [1, 1.0]), ("mirostat", [1, 2], [0]), ("dry_multiplier", [0.8], [0, 0.0]),
    ("xtc_probability", [0.5], [0]), ("dynatemp_range", [0.5], [0]), ("top_n_sigma", [1.5], [-1, 0]),
    ("samplers", [["temperature", "penalties"], ["top_p", "temperature", "min_p"], ["temperature", "top_k", "temperature"], ["top_p", "top_k"],
                  ["top_k", "top_k"], ["top_k", "other"], ["other", "top_k"], "kt", [1]],
     [SAMPLERS, ["top_k", "temperature"], ["temperature", "top_k"], ["penalties", "temperature", "top_k", "top_p"], ["temperature"]]),
    ("lora", [[{"id": 0, "scale": 1}]], [[]]), ("stop_regex", ["a+"], [""]), ("custom_logit_processor", ["x"], [""]),
    ("custom_params", [{"a": 1}], [{}]), ("lora_path", ["x"], [""]), ("return_hidden_states", [True], [False]),
    ("reasoning", [{"effort": "high"}], [{}]),
]  # fmt: skip
HINTS = {"verbosity": "low", "mirostat_tau": 5, "mirostat_eta": 0.1, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
         "dry_sequence_breakers": ["\n"], "xtc_threshold": 0.1, "dynatemp_exponent": 1, "repeat_last_n": 64, "repeat_penalty": 1}  # fmt: skip
ASK = {"prompt": "The cat", "max_tokens": 12, "temperature": 0, "return_token_ids": True}


class Fields(Shared):
    def ids(self, **fields):
        status, answer = self.server.post("/v1/completions", ASK | fields)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["token_ids"]

    def refused(self, word, path="/v1/completions", **fields):
        body = ASK if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
        status, answer = self.server.post(path, body | fields)
        self.assertEqual(status, 400, answer)
        self.assertIn(f"'{word}'", answer["error"]["message"])

    def test_refused_by_name_unless_they_ask_for_nothing(self):
        plain = self.ids()
        for name, asking, neutral in REFUSED:
            with self.subTest(name):
                for value in asking:
                    self.refused(name, **{name: value})
                    self.refused(name, "/v1/chat/completions", **{name: value})
                for value in [*neutral, None]:
                    self.assertEqual(self.ids(**{name: value}), plain)
        self.assertEqual(self.ids(**HINTS, **{name: neutral[0] for name, _, neutral in REFUSED}), plain)

    def test_samplers_that_a_list_leaves_out(self):
        """They have no effect, as in llama.cpp; those of the list have theirs."""
        plain = {"temperature": 1, "top_k": 0, "top_p": 1, "seed": 3, "max_tokens": 40, "prompt": "a a a a a a a a"}
        asked = {"penalties": [{"repeat_penalty": 1.7}, {"repetition_penalty": 1.7}, {"presence_penalty": 2}, {"frequency_penalty": 2}],
                 "top_k": [{"top_k": 2}], "top_p": [{"top_p": 0.3}], "min_p": [{"min_p": 0.5}], "temperature": [{"temperature": 0}, {"temperature": 0.3}]}  # fmt: skip
        free = self.ids(**plain)
        for name, fields in asked.items():
            others = [sampler for sampler in SAMPLERS if sampler != name]
            for field in fields:
                with self.subTest(field):
                    narrow = self.ids(**plain | field)
                    self.assertNotEqual(narrow, free)
                    self.assertEqual(self.ids(**plain | field, samplers=others), free)
                    self.assertEqual(self.ids(**plain | field, samplers=[]), free)
                    self.assertEqual(self.ids(**plain | field, samplers=[name, *(["temperature"] if name != "temperature" else [])]), narrow)

    def test_where_temperature_stands_in_a_list(self):
        """Behind top_p and min_p, as llama.cpp has it, these cut by the chances of temperature 1; before them it is as without a list."""
        plain = {"top_k": 0, "top_p": 1, "seed": 3, "max_tokens": 40, "prompt": "a a a a a a a a"}
        for cut in ({"top_p": 0.3}, {"min_p": 0.5}):
            [name] = cut
            hot = plain | cut | {"temperature": 50}
            first = self.ids(**hot)
            self.assertEqual(self.ids(**hot, samplers=["temperature", name]), first)
            last = self.ids(**hot, samplers=[name, "temperature"])
            self.assertEqual(self.ids(**hot, samplers=SAMPLERS), last)
            self.assertNotEqual(last, first)
            cuts = {"top_p": 1e-6} if name == "top_p" else {"min_p": 1}  # the likeliest alone is left, however hot the rest is
            self.assertEqual(self.ids(**plain | cuts | {"temperature": 50}, samplers=[name, "temperature"]), self.ids(**plain, temperature=0))

    def test_chances_of_given_tokens(self):
        """They stand in place of the likeliest, in the order asked for; what is drawn stays the same."""
        ids, chat = [7, 300, 0], {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "temperature": 0, "logprobs": True, "return_tokens_as_token_ids": True}
        plain = self.server.post("/v1/chat/completions", chat | {"top_logprobs": 20})[1]["choices"][0]["logprobs"]["content"]
        for stream in (False, True):
            if stream:
                events = self.server.events("/v1/chat/completions", chat | {"logprob_token_ids": ids})[:-1]
                content = [c for e in events if e["choices"] and e["choices"][0]["logprobs"] for c in e["choices"][0]["logprobs"]["content"]]
            else:
                content = self.server.post("/v1/chat/completions", chat | {"logprob_token_ids": ids})[1]["choices"][0]["logprobs"]["content"]
            self.assertEqual([(c["token"], c["logprob"]) for c in content], [(c["token"], c["logprob"]) for c in plain])
            for c in content:
                self.assertEqual([t["token"] for t in c["top_logprobs"]], [f"token_id:{i}" for i in ids])
        likeliest = {t["token"]: t["logprob"] for t in plain[0]["top_logprobs"]}
        known = [int(token.split(":")[1]) for token in likeliest][::-1]
        told = self.server.post("/v1/chat/completions", chat | {"logprob_token_ids": known, "top_logprobs": 1})[1]["choices"][0]["logprobs"]["content"][0]
        self.assertEqual({t["token"]: t["logprob"] for t in told["top_logprobs"]}, likeliest)
        echoed = self.server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 1, "echo": True, "logprobs": 0, "logprob_token_ids": [9],
                                                      "return_tokens_as_token_ids": True})[1]["choices"][0]["logprobs"]  # fmt: skip
        self.assertEqual([set(top or ()) for top in echoed["top_logprobs"]], [set()] + [{"token_id:9", token} for token in echoed["tokens"][1:]])
        self.assertEqual(self.ids(logprob_token_ids=[]), self.ids())
        self.assertEqual(self.ids(logprob_token_ids=[1] * 128, logprobs=0), self.ids())  # as many as may be
        self.refused("logprob_token_ids", logprob_token_ids=[1])
        for wrong in ([-1], [10**9], ["1"], [True], 3, [1] * 129):
            self.refused("logprob_token_ids", logprob_token_ids=wrong, logprobs=1)
            self.refused("logprob_token_ids", "/v1/chat/completions", logprob_token_ids=wrong, logprobs=True)

    def test_other_names(self):
        self.assertEqual(len(self.ids(max_tokens=None, n_predict=5)), 5)
        self.assertEqual(len(self.ids(n_predict=12)), 12)  # max_tokens says the same
        self.assertEqual(len(self.ids(n_predict=-1)), 12)  # which bounds nothing
        for chat in ({}, {"path": "/v1/chat/completions"}):
            self.refused("n_predict", **chat, n_predict=5)
            self.refused("repeat_penalty", **chat, repeat_penalty=1.1, repetition_penalty=1.7)
            self.refused("repeat_penalty", **chat, repeat_penalty=1, repetition_penalty=1.7)
        self.refused("n_predict", "/v1/chat/completions", n_predict=5, max_tokens=None, max_completion_tokens=6)
        for both in (2, 4):  # max_tokens is 3
            self.refused("max_tokens", "/v1/chat/completions", max_completion_tokens=both)
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "ignore_eos": True}
        for one in ({"max_tokens": None, "max_completion_tokens": 3}, {"max_completion_tokens": 3}, {"max_completion_tokens": None}):
            status, answer = self.server.post("/v1/chat/completions", chat | one)
            self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 3))
        self.assertEqual(len(self.ids(max_completion_tokens=5)), 12)  # a field of conversations alone
        self.assertEqual(len(self.ids(n_predict=0, max_tokens=0)), 0)
        self.refused("n_predict", n_predict=0)
        self.assertEqual(self.ids(max_tokens=None, n_predict=-1), self.ids(max_tokens=None))
        self.refused("n_predict", n_predict=-3)
        self.refused("n_predict", "/v1/chat/completions", n_predict=0, max_tokens=None)
        text = {"prompt": "a a a a a a a a", "max_tokens": 20}
        self.assertEqual(self.ids(**text, repeat_penalty=1.7), self.ids(**text, repetition_penalty=1.7))
        self.assertEqual(self.ids(**text, repeat_penalty=1.7, repetition_penalty=1.7), self.ids(**text, repetition_penalty=1.7))
        self.assertNotEqual(self.ids(**text, repeat_penalty=1.7), self.ids(**text))
        self.assertEqual(self.ids(**text, repeat_penalty=1.7, repeat_last_n=-1), self.ids(**text, repeat_penalty=1.7))
        self.refused("repeat_last_n", repeat_penalty=1.7, repeat_last_n=64)
        # it bounds llama.cpp's penalty alone
        self.assertEqual(self.ids(**text, repetition_penalty=1.7, repeat_last_n=64), self.ids(**text, repetition_penalty=1.7))
        tokens = self.server.post("/tokenize", {"prompt": "The cat"})[1]["tokens"]
        for ids in (tokens, [tokens]):
            self.assertEqual(self.ids(prompt=None, input_ids=ids), self.ids())
        self.refused("input_ids", input_ids=tokens)
        for bad in ("x", [], ["x"], [[]]):
            self.refused("input_ids", prompt=None, input_ids=bad)
        self.refused("input_ids", "/v1/chat/completions", input_ids=tokens)

    def test_refusals_in_messages(self):
        """They are text of what was said, as a part and as a member beside no content."""
        def prompt(**said):
            messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", **said}, {"role": "user", "content": "Why?"}]
            status, answer = self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "return_token_ids": True})
            self.assertEqual(status, 200, answer)
            tokenized = self.server.post("/tokenize", {"messages": messages})[1]["tokens"]
            self.assertEqual(answer["prompt_token_ids"], tokenized)
            return tokenized

        def part(text, kind="text"):
            return {"type": kind, kind: text}

        plain = prompt(content="I will not.")
        self.assertNotEqual(plain, prompt(content=None))
        self.assertEqual(prompt(content=[part("I will not.", "refusal")]), plain)
        self.assertEqual(prompt(content=[part("I will"), part(" not.", "refusal")]), prompt(content=[part("I will"), part(" not.")]))
        for nothing in ({"content": None}, {}):
            self.assertEqual(prompt(**nothing, refusal="I will not."), plain)
        self.assertEqual(prompt(content="I will not.", refusal=None), plain)
        self.assertEqual(prompt(content="I will not.", refusal="No."), plain)
        for wrong in (None, 5, ["no"]):
            body = {"messages": [{"role": "assistant", "content": [part(wrong, "refusal")]}]}
            status, answer = self.server.post("/v1/chat/completions", body)
            self.assertEqual((status, answer["error"]["param"]), (400, "messages"))
            self.assertIn("'refusal'", answer["error"]["message"])

    def test_sides_of_truncation(self):
        tokens = self.server.post("/tokenize", {"prompt": "One two three four five six seven"})[1]["tokens"]
        for side, kept in ((None, tokens[-4:]), ("left", tokens[-4:]), ("right", tokens[:4])):
            fields = {"prompt": tokens, "truncate_prompt_tokens": 4} | ({"truncation_side": side} if side else {})
            self.assertEqual(self.ids(**fields), self.ids(prompt=kept))
        self.refused("truncation_side", truncation_side="up")

    def test_tokens_as_ids(self):
        _, answer = self.server.post("/v1/completions", ASK | {"logprobs": 2, "return_tokens_as_token_ids": True})
        choice = answer["choices"][0]
        self.assertEqual(choice["logprobs"]["tokens"], [f"token_id:{i}" for i in choice["token_ids"]])
        for token, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True):
            self.assertIn(token, top)
            self.assertTrue(all(name.startswith("token_id:") for name in top))
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "return_token_ids": True,
                "return_tokens_as_token_ids": True}  # fmt: skip
        choice = self.server.post("/v1/chat/completions", body)[1]["choices"][0]
        self.assertEqual([t["token"] for t in choice["logprobs"]["content"]], [f"token_id:{i}" for i in choice["token_ids"]])
        self.assertTrue(all(t["token"].startswith("token_id:") for e in choice["logprobs"]["content"] for t in e["top_logprobs"]))


class Requests(unittest.TestCase):
    def ask(self, server, path, **headers):
        connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
        connection.request("POST", path, json.dumps({"prompt": "x", "max_tokens": 1}), {"Content-Type": "application/json"} | headers)
        answer = connection.getresponse()
        body = json.load(answer)
        connection.close()
        return answer.status, body

    def test_how_requests_come(self):
        with Server("--api-key", "secret") as server:
            key = {"X-Api-Key": "secret"}
            self.assertEqual(self.ask(server, "/v1/completions/", **key)[0], 200)
            self.assertEqual(self.ask(server, "/v1/completions//", **key)[0], 404)
            self.assertEqual(self.ask(server, "/v1/completionsx", **key)[0], 404)
            for headers in ({"X-Api-Key": "other"}, {"X-Api-Key": ""}, {}, {"Authorization": "Basic secret", **key}, {"Authorization": "Bearer other", **key}):
                self.assertEqual(self.ask(server, "/v1/completions", **headers)[0], 401, headers)
            status, answer = self.ask(server, "/v1/completions", **key, **{"Content-Encoding": "gzip"})
            self.assertEqual((status, answer["error"]["param"]), (415, "Content-Encoding"))
            self.assertEqual(self.ask(server, "/v1/completions", **key, **{"Content-Encoding": "identity"})[0], 200)


if __name__ == "__main__":
    unittest.main()
