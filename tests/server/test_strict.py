"""Strict tools under `auto` over HTTP: text is free, or has a format, and a call that has begun keeps to its schema. Needs llguidance
(tools/get-llguidance)."""

import json
import pathlib
import unittest

from serving import SOURCE, Constrained, model_with_tokens, temporary

SCHEMA = {"type": "object", "properties": {"port": {"enum": ["Brest", "Ys"]}, "day": {"type": "integer", "minimum": 0, "maximum": 9}},
          "required": ["port", "day"], "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "tide", "strict": True, "parameters": SCHEMA}}]
LOOSE = [{"type": "function", "function": {"name": "tide", "parameters": SCHEMA}}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}  # fmt: skip
ASK = {"messages": [{"role": "user", "content": "When?"}], "tools": TOOLS, "max_tokens": 300, "seed": 1}


class Strict(Constrained):
    options = ("--chat-template", SOURCE / "examples/tools.jinja", "--reasoning-parser", "think")

    def begun(self, text, **fields):
        """What goes on behind a text."""
        status, ids = self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        self.assertEqual(status, 200)
        status, answer = self.server.post("/v1/chat/completions", ASK | {"continue_token_ids": [ids["tokens"]]} | fields)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]

    def test_calls_keep_to_the_schema(self):
        for text, there in (("<tool_call>", ""), ('I look. <tool_call>\n{"name": "', ""), ('<tool_call>{"name": "tide", "arguments": {"port":"', '{"port":"')):
            for seed in range(4):
                choice = self.begun(text, seed=seed, temperature=1.5, logit_bias={"93": 5})
                arguments = json.loads(there + choice["message"]["tool_calls"][0]["function"]["arguments"])
                self.assertEqual(list(arguments), ["port", "day"])
                self.assertIn(arguments["port"], ["Brest", "Ys"])
                self.assertIn(arguments["day"], range(10))

    def test_text_is_free(self):
        """Where no call begins the tokens are those of a request whose tools are not strict."""
        fields = {"max_tokens": 30, "return_token_ids": True, "temperature": 0}
        for text in ("", "<think>so", "We <tool"):
            answers = [self.begun(text, tools=tools, **fields) for tools in (TOOLS, LOOSE)] if text else [
                self.server.post("/v1/chat/completions", ASK | fields | {"tools": tools})[1]["choices"][0] for tools in (TOOLS, LOOSE)]  # fmt: skip
            self.assertEqual(answers[0]["token_ids"], answers[1]["token_ids"])

    def test_none_may_be_called(self):
        """Then a text that looks like a call is a text like any other."""
        choice = self.begun('<tool_call>{"name": "other', tool_choice="none", max_tokens=20)
        self.assertNotIn("tool_calls", choice["message"])

    def test_a_strict_tool_without_parameters(self):
        tools = [{"type": "function", "function": {"name": "tide", "strict": True, "parameters": None}}]
        choice = self.begun('<tool_call>{"name": "tide", "arguments":', tools=tools, logit_bias={"93": 20})
        self.assertRegex(choice["message"]["tool_calls"][0]["function"]["arguments"], r"^\{")

    def test_formats_that_are_none(self):
        """A schema that is a text, and no schema, is refused beside tools as it is alone."""
        for schema in ("", " ", "x", "{", "[1", "\0", "5", "[]", "null", "[" * 100000):
            form = {"response_format": {"type": "json_object", "schema": schema}}
            answers = [self.server.post("/v1/chat/completions", {k: v for k, v in ASK.items() if k != "tools"} | form)]
            answers += [self.server.post("/v1/chat/completions", ASK | form | {"tools": tools}) for tools in (TOOLS, LOOSE)]
            for status, answer in answers:
                self.assertEqual((status, answer["error"]["param"]), (400, "response_format"), (schema[:9], answer))

    def test_other_constraints_are_of_all_the_text(self):
        """Behind what begins a call nothing of them can come."""
        status, ids = self.server.post("/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})
        self.assertEqual(status, 200)
        for fields in ({"structured_outputs": {"json": {"type": "object"}}}, {"guided_json": {"type": "object"}}):
            self.assertEqual(self.server.post("/v1/chat/completions", ASK | fields | {"continue_token_ids": [ids["tokens"]]})[0], 400)

    def test_format_or_calls(self):
        """With `response_format` an answer is JSON of the schema or a call, whichever the model begins, of every choice, in streams too."""
        for tools in (TOOLS, LOOSE):
            for form in ({"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}, {"type": "json_object"}):
                fields = {"response_format": form, "tools": tools, "logit_bias": {"0": 100, "93": 6, "2": 5}}
                for begin in ("{", "<tool_call>", '\n<tool_call>{"name"'):
                    with self.subTest(strict=tools is TOOLS, form=form["type"], begin=begin):
                        ids = self.server.post("/tokenize", {"prompt": begin, "add_special_tokens": False})[1]["tokens"]
                        body = ASK | fields | {"n": 3, "continue_token_ids": [ids] * 3}
                        status, answer = self.server.post("/v1/chat/completions", body)
                        self.assertEqual(status, 200, answer)
                        for choice in answer["choices"]:
                            self.check(choice, begin, form, tools)
                        events = self.server.events("/v1/chat/completions", body)
                        for choice in answer["choices"]:
                            deltas = [c["delta"] for e in events[:-1] for c in e["choices"] if c["index"] == choice["index"]]
                            self.assertEqual("".join(d.get("content") or "" for d in deltas), choice["message"]["content"] or "")
                            pieces = [c["function"].get("arguments", "") for d in deltas for c in d.get("tool_calls", [])]
                            self.assertEqual("".join(pieces), "".join(c["function"]["arguments"] for c in choice["message"].get("tool_calls", [])))
        for text in ("Well", '{"name": "x"} <tool_call>', "<tool_call>x", '<tool_call>{"name": "other'):
            ids = self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
            form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
            status, answer = self.server.post("/v1/chat/completions", ASK | {"response_format": form, "continue_token_ids": [ids]})
            self.assertEqual((status, answer["error"]["param"]), (400, "tools"), answer)
        former = {"tools": None, "functions": [t["function"] for t in TOOLS], "response_format": {"type": "json_object"}}
        self.check(self.begun("<tool_call>", **former, logit_bias={"93": 5}), "<tool_call>", former["response_format"], TOOLS)

    def check(self, choice, begin, form, tools):
        """What goes on behind `begin`, which the client has: the model was free to choose before that alone."""
        self.assertNotEqual(choice["finish_reason"], "length")
        message = choice["message"]
        if begin == "{":
            self.assertEqual(choice["finish_reason"], "stop")
            value = json.loads(begin + message["content"])
            if form["type"] == "json_schema":
                self.assertEqual(list(value), ["name", "age"])
                self.assertIn(value["age"], range(100))
            return
        calls = [message["function_call"]] if "function_call" in message else [c["function"] for c in message["tool_calls"]]
        self.assertIn(choice["finish_reason"], ("tool_calls", "function_call"))
        self.assertEqual((message["content"] or "").strip(), "")
        for call in calls:
            self.assertEqual(call["name"], "tide")
            arguments = json.loads(call["arguments"])
            if tools is TOOLS:
                self.assertEqual(list(arguments), ["port", "day"])

    def test_refused(self):
        """A schema that nothing meets, or that the library does not take, is refused by the field's name; not where the tool is not strict."""
        for schema in ({"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}, {"type": "object", "properties": {"a": False}, "required": ["a"]}):
            for strict, wanted in ((True, 400), (False, 200)):
                tools = [{"type": "function", "function": {"name": "tide", "strict": strict, "parameters": schema}}]
                status, answer = self.server.post("/v1/chat/completions", ASK | {"tools": tools, "max_tokens": 3})
                self.assertEqual(status, wanted, answer)
                if wanted == 400:
                    self.assertIn("'tools'", answer["error"]["message"])
        for strict in ("yes", 1, {}):
            tools = [{"type": "function", "function": {"name": "tide", "strict": strict, "parameters": SCHEMA}}]
            status, answer = self.server.post("/v1/chat/completions", ASK | {"tools": tools, "max_tokens": 3})
            self.assertEqual((status, answer["error"]["param"]), (400, "tools"), answer)
            self.assertIn("'strict' of tools[0]", answer["error"]["message"])
        # one that holds itself without an end, of a tool and of the format, which calls beside it do not save
        for schema in ({"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}):
            for tools in (TOOLS, LOOSE):
                status, answer = self.server.post("/v1/chat/completions", ASK | {"tools": tools, "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
                self.assertEqual((status, answer["error"]["param"]), (400, "response_format"), answer)
            tools = [{"type": "function", "function": {"name": "tide", "strict": True, "parameters": schema}}]
            status, answer = self.server.post("/v1/chat/completions", ASK | {"tools": tools, "max_tokens": 3})
            self.assertEqual((status, answer["error"]["param"]), (400, "tools"), answer)
        # which of both it is
        for schema, tool, word in (({"type": "integer"}, {"not": {}}, "'tools'"), ({"not": {}}, SCHEMA, "'response_format'"), (False, SCHEMA, "'response_format'")):
            tools = [{"type": "function", "function": {"name": "tide", "strict": True, "parameters": {"type": "object", "properties": {"a": tool}, "required": ["a"]}}}]
            status, answer = self.server.post("/v1/chat/completions", ASK | {"max_tokens": 3, "tools": tools, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
            self.assertEqual((status, answer["error"]["param"]), (400, word[1:-1]), answer)
        deep = '{"items":' * 100 + "{}" + "}" * 100
        status, answer = self.server.post("/v1/chat/completions", ASK | {"response_format": {"type": "json_object", "schema": deep}})
        self.assertEqual((status, answer["error"]["param"]), (400, "response_format"))
        self.assertIn("deeper than 64", answer["error"]["message"])
        # one that fits alone is too long with what is around it
        for room, word in ((40, "together"), (-1, "at most 1048576")):
            long = {"enum": ["y" * (2**20 - len('{"enum":[""]}') - room)]}
            status, answer = self.server.post("/v1/chat/completions", ASK | {"max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": long}}})
            self.assertEqual((status, answer["error"]["param"]), (400, "response_format"), answer)
            self.assertIn(word, answer["error"]["message"])
        # where something else is asked of the text, that alone may come, and no call
        status, answer = self.server.post("/v1/chat/completions", ASK | {"structured_outputs": {"choice": ["yes"]}})
        self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "yes"))


class Reasoning(Constrained):
    """Of a prompt that ends within reasoning, whose end is no token."""

    options = ("--tool-call-parser", "hermes", "--reasoning-parser", "think")

    @classmethod
    def setUpClass(cls):
        cls.folder = temporary()
        template = pathlib.Path(cls.folder.name) / "opened.jinja"
        template.write_text((SOURCE / "examples/tools.jinja").read_text().replace("Answer:{% endif %}", "Answer:<think>{% endif %}"))
        cls.options += ("--chat-template", template)
        cls.addClassCleanup(cls.folder.cleanup)
        super().setUpClass()

    def test_what_is_opened(self):
        """Reasoning is, unless something is asked of the text from its begin on, since nothing could end it there."""
        for fields, is_opened in (({"tools": None}, True), ({}, True), ({"regex": "[a-z]{9}"}, False), ({"response_format": {"type": "json_object"}}, False)):
            status, answer = self.server.post("/v1/chat/completions", ASK | {"max_tokens": 9, "ignore_eos": True} | fields)
            self.assertEqual(status, 200, answer)
            self.assertEqual("reasoning_content" in answer["choices"][0]["message"], is_opened, fields)


class Marked(Constrained):
    """Of a vocabulary that has the markers as tokens."""

    options = ("--chat-template", SOURCE / "examples/tools.jinja", "--reasoning-parser", "think")

    @classmethod
    def setUpClass(cls):
        made = model_with_tokens("<think>", "</think>", "<tool_call>", "</tool_call>")
        cls.model = made.__enter__()
        cls.addClassCleanup(made.__exit__, None, None, None)
        super().setUpClass()

    def test_no_call_within_reasoning(self):
        """Where calls are held to something: it would begin unseen."""
        form = {"response_format": {"type": "json_object"}}
        for fields, wanted in (({"regex": "[a-z]+"}, 200), ({"tools": LOOSE}, 200), ({}, 400), (form, 400), (form | {"tools": LOOSE}, 400)):
            begin = [self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"] for text in ("<think>", "<tool_call>")]
            self.assertEqual([len(ids) for ids in begin], [1, 1])
            status, answer = self.server.post("/v1/chat/completions", ASK | {"max_tokens": 9, "continue_token_ids": [sum(begin, [])]} | fields)
            self.assertEqual(status, wanted, (fields, answer))

    def test_behind_reasoning(self):
        """The format, or calls, come behind it."""
        ids = self.server.post("/tokenize", {"prompt": "<think>so</think>", "add_special_tokens": False})[1]["tokens"]
        call = self.server.post("/tokenize", {"prompt": "<tool_call>", "add_special_tokens": False})[1]["tokens"]
        fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}, "logit_bias": {"93": 5, "2": 5}}
        status, answer = self.server.post("/v1/chat/completions", ASK | fields | {"continue_token_ids": [ids], "logit_bias": {str(call[0]): -100, "93": 5, "2": 5}})
        self.assertEqual((status, answer["choices"][0]["finish_reason"]), (200, "stop"), answer)
        self.assertEqual(list(json.loads(answer["choices"][0]["message"]["content"])), ["name", "age"])
        status, answer = self.server.post("/v1/chat/completions", ASK | fields | {"continue_token_ids": [ids + call]})
        self.assertEqual((status, answer["choices"][0]["finish_reason"]), (200, "tool_calls"), answer)
        self.assertEqual(list(json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])), ["port", "day"])

    def test_markers_within_strings(self):
        """What is JSON has the words of these tokens as its text, whole and streamed, beside tools and not, and so have arguments of a named tool."""
        parameters = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"], "additionalProperties": False}
        form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": parameters}}}
        tools = [{"type": "function", "function": {"name": "tide", "parameters": parameters}}]
        named = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "tide"}}}
        for text in ('{"t": "<think> a </think>', '{"t": "a<tool_call>{}</tool_call> <think>', '<think>why</think>{"t": "<think><tool_call>'):
            ids = self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
            begun = text.removeprefix("<think>why</think>")
            for fields in (form | {"tools": None}, form, form | {"tools": LOOSE}, named, {"tools": None, "guided_json": parameters}, {"guided_json": parameters}):
                body = ASK | {"continue_token_ids": [[]], "logit_bias": {"2": 5}} | fields
                body = body | {"continue_token_ids": [ids]}
                status, answer = self.server.post("/v1/chat/completions", body)
                self.assertEqual((status, answer["choices"][0]["finish_reason"] == "length"), (200, False), answer)
                message = answer["choices"][0]["message"]
                rest = message["tool_calls"][0]["function"]["arguments"] if message.get("tool_calls") else message["content"]
                deltas = [c["delta"] for e in self.server.events("/v1/chat/completions", body)[:-1] for c in e["choices"]]
                pieces = [(d.get("content") or "") + "".join(c["function"].get("arguments", "") for c in d.get("tool_calls", [])) for d in deltas]
                self.assertEqual("".join(pieces), rest)
                self.assertEqual(list(json.loads(begun + rest)), ["t"], (fields, message))
                self.assertEqual("tool_calls" in message, fields is named)
                self.assertNotIn("reasoning_content", message)


if __name__ == "__main__":
    unittest.main()
