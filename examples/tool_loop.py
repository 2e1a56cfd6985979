"""A model that calls a tool: the openai client, the tool, and the loop between them.

    python3 tool_loop.py [URL]      of a server, by default http://localhost:8000/v1
"""

import json
import sys

from openai import OpenAI


def tide(port, day):
    """What the model may call."""
    return {"port": port, "day": day, "high_water": "06:12"}


TOOLS = [{"type": "function", "function": {"name": "tide", "description": "High water of a port", "parameters": {
    "type": "object", "properties": {"port": {"enum": ["Brest", "Hobart"]}, "day": {"type": "integer", "minimum": 1, "maximum": 31}},
    "required": ["port", "day"], "additionalProperties": False}}}]  # fmt: skip

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="none")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "When is high water at Brest on the 3rd?"}]
choice = {"type": "function", "function": {"name": "tide"}}  # a model that was trained on tools needs no such word
while True:
    answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=100).choices[0]
    messages.append(answer.message)
    if not answer.message.tool_calls:
        break
    for call in answer.message.tool_calls:
        result = tide(**json.loads(call.function.arguments))
        print("called", call.function.name, result)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    choice = "none"
print(answer.message.content)
