"""Tools and reasoning over HTTP: forced calls keep to their schemas, calls that a model writes are read, reasoning has a bound.

Needs llguidance (tools/get-llguidance), which also makes the model write what a test wants."""

import json
import pathlib
import unittest

from serving import SOURCE, Constrained, Server, temporary

TOOLS = [
    {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {
        "port": {"$ref": "#/$defs/Port"}, "day": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["port", "day"], "additionalProperties": False, "$defs": {"Port": {"enum": ["Brest", "Ys"]}}}}},
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "additionalProperties": False}}},
]  # fmt: skip
ASK = {"messages": [{"role": "user", "content": "When?"}], "tools": TOOLS, "max_tokens": 200, "seed": 1}
QUOTES = {"2": 100, "93": 50}  # wherever a text may begin or end, else where an object may end
NAMED = {"type": "function", "function": {"name": "tide"}}


class Tools(Constrained):
    options = ("--chat-template", SOURCE / "examples/tools.jinja", "--reasoning-parser", "think")

    def ask(self, **fields):
        status, answer = self.server.post("/v1/chat/completions", ASK | fields)
        self.assertEqual(status, 200, answer)
        return answer["choices"]

    def check(self, call):
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "ping":
            self.assertEqual(arguments, {})
        else:
            self.assertEqual(call["function"]["name"], "tide")
            self.assertEqual(list(arguments), ["port", "day"])
            self.assertIn(arguments["port"], ["Brest", "Ys"])
            self.assertIn(arguments["day"], range(10))

    def test_forced(self):
        for choice in self.ask(tool_choice=NAMED, n=4):
            self.assertEqual(choice["finish_reason"], "tool_calls")
            [call] = choice["message"]["tool_calls"]
            self.assertEqual(call["function"]["name"], "tide")
            self.check(call)
            self.assertIsNone(choice["message"]["content"])
        for choice in self.ask(tool_choice="required", n=4, parallel_tool_calls=False):
            [call] = choice["message"]["tool_calls"]
            self.check(call)
        described = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}}
        for choice in ("required", NAMED):  # functions take what is described alone
            tools = [{"type": "function", "function": {"name": "tide", "parameters": described}}]
            for answer in self.ask(tools=tools, tool_choice=choice, n=4, parallel_tool_calls=False, temperature=2, logit_bias={"93": -100, "2": 20}):
                for call in answer["message"]["tool_calls"]:
                    self.assertLessEqual(set(json.loads(call["function"]["arguments"])), {"n"})
        untyped = [{"properties": {"n": {"type": "integer", "maximum": 9}}}, {"description": "anything"}, {},
                   {"$ref": "#/$defs/One", "$defs": {"One": {"maxProperties": 1}}}, {"type": ["object", "null"]}]  # fmt: skip
        for parameters in untyped:  # arguments are an object whatever their schema leaves open
            tools = [{"type": "function", "function": {"name": "tide", "parameters": parameters}}]
            for choice in ("required", NAMED):
                for answer in self.ask(tools=tools, tool_choice=choice, n=2, parallel_tool_calls=False, logit_bias=QUOTES):
                    for call in answer["message"]["tool_calls"]:
                        self.assertRegex(call["function"]["arguments"], r"^\{")
        for choice in ("required", NAMED):  # what is asked of content is nothing to a call
            [answer] = self.ask(tool_choice=choice, response_format={"type": "json_object"}, parallel_tool_calls=False)
            self.check(answer["message"]["tool_calls"][0])
        former = {"tools": None, "functions": [t["function"] for t in TOOLS], "function_call": {"name": "tide"}}
        self.assertEqual(self.ask(**former)[0]["message"]["function_call"]["name"], "tide")

    def test_streamed(self):
        [whole] = self.ask(tool_choice=NAMED)
        events = self.server.events("/v1/chat/completions", ASK | {"tool_choice": NAMED})
        deltas = [e["choices"][0]["delta"].get("tool_calls", []) for e in events[:-1]]
        pieces = [call for calls in deltas for call in calls]
        self.assertEqual([("id" in p, p["index"]) for p in pieces], [(True, 0)] + [(False, 0)] * (len(pieces) - 1))
        self.assertEqual("".join(p["function"]["arguments"] for p in pieces), whole["message"]["tool_calls"][0]["function"]["arguments"])
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "tool_calls")

    def test_auto(self):
        text = 'Sure. <tool_call>\n{"name": "tide", "arguments": {"port": "Ys", "day": 3}}\n</tool_call>'
        written = {"structured_outputs": {"choice": [text]}}
        [choice] = self.ask(**written)
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ("Sure.", "tool_calls"))
        self.check(choice["message"]["tool_calls"][0])
        [choice] = self.ask(**written, tool_choice="none")
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (text, "stop"))
        [choice] = self.ask(structured_outputs={"choice": ["<think>why</think>yes"]})
        self.assertEqual((choice["message"]["reasoning_content"], choice["message"]["content"]), ("why", "yes"))

    def test_history(self):
        """A loop's second request."""
        [choice] = self.ask(tool_choice=NAMED)
        messages = ASK["messages"] + [choice["message"], {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "6:12"}]
        self.assertNotIn("tool_calls", self.ask(messages=messages, tool_choice="none")[0]["message"])

    def test_references(self):
        """Of a schema that becomes a part of another: of parameters with the names of keywords, and with an address of its own."""
        one = {"type": "object", "properties": {n: {"$ref": "#/$defs/enum"} for n in ("const", "enum", "$ref", "properties")},
               "required": ["const", "enum", "$ref", "properties"], "additionalProperties": False,
               "$defs": {"enum": {"enum": [7]}}, "$id": "https://example.com/one"}  # fmt: skip
        tools = [TOOLS[1], {"type": "function", "function": {"name": "one", "parameters": one}}]
        for choice in ("required", {"type": "function", "function": {"name": "one"}}):
            for answer in self.ask(tools=tools, tool_choice=choice, n=4, parallel_tool_calls=False):
                [call] = answer["message"]["tool_calls"]
                if call["function"]["name"] == "one":
                    wanted = {"const": 7, "enum": 7, "$ref": 7, "properties": 7}
                    self.assertEqual(json.loads(call["function"]["arguments"]), wanted)

    def test_refused(self):
        for fields in ({"tool_choice": "required", "structured_outputs": {"json": {}}}, {"tool_choice": NAMED, "regex": "a"}, {"thinking_token_budget": 3},
                       {"tool_choice": NAMED, "tools": [{"type": "function", "function": {"name": "tide", "parameters": {"type": "nothing"}}}]}):  # fmt: skip
            status, answer = self.server.post("/v1/chat/completions", ASK | fields)
            self.assertEqual(status, 400, answer)


class Found(unittest.TestCase):
    def test_a_format_without_its_tokens(self):
        """A template may write gpt-oss's: then calls that the model begins are read by none."""
        with temporary() as folder:
            template = pathlib.Path(folder) / "harmony.jinja"
            template.write_text("{% for m in messages %}<|start|>{{ m.role }}{% if m.tool_calls %}<|channel|>commentary to=functions.{{ m.tool_calls[0].function.name }}"
                                " <|constrain|>json<|message|>{{ m.tool_calls[0].function.arguments }}<|call|>{% else %}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}")
            with Server("--chat-template", template) as server:
                status, answer = server.post("/v1/chat/completions", ASK)
                self.assertEqual((status, answer["error"]["param"]), (400, "tools"), answer)
                self.assertIn("in no format that is known", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
