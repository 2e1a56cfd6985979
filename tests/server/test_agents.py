"""What users' agents do: a scripted loop, or a structured answer, of each client package against `coterie serve`, by forced choices.

    test_agents.py CLIENT

Packages come from the package index into a virtual environment each, pinned; without an index, or without llguidance, a test is skipped,
loudly. The model is a copy of models/tiny with a context of 32,768 tokens, behind a chat template with tools."""

import enum
import json
import os
import pathlib
import shutil
import sys
import tempfile

from pypi import need

CLIENTS = {"openai": ["openai==1.109.1"], "langchain": ["langchain-openai==0.3.33"], "instructor": ["instructor==1.11.3", "openai==1.109.1"]}

CLIENT = sys.argv[1]
if "COT_IN_VENV" not in os.environ:
    python = need(f"agents-{CLIENT}", *CLIENTS[CLIENT])
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1", "OPENAI_API_KEY": "none"})

import pydantic  # noqa: E402
from serving import MODEL, SOURCE, Server  # noqa: E402

ASKED = "When is high water?"


class Port(str, enum.Enum):
    BREST = "Brest"
    HOBART = "Hobart"


class Tide(pydantic.BaseModel):
    """High water of a port."""

    model_config = pydantic.ConfigDict(extra="forbid")
    port: Port
    day: int = pydantic.Field(ge=1, le=31)
    note: str = pydantic.Field(max_length=8)


TOOL = {"type": "function", "function": {"name": "tide", "description": "High water", "parameters": Tide.model_json_schema()}}
NAMED = {"type": "function", "function": {"name": "tide"}}


def openai_loop(url):
    import openai

    client = openai.OpenAI(base_url=url, api_key="none")
    messages = [{"role": "user", "content": ASKED}]
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=300).choices[0]
    assert answer.finish_reason == "tool_calls", answer
    [call] = answer.message.tool_calls
    Tide.model_validate_json(call.function.arguments)
    messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "06:12"}]
    assert client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL], tool_choice="none", max_tokens=20).choices[0].message.content
    # the client's own models of tools and answers, whole and streamed
    tools = [openai.pydantic_function_tool(Tide, name="tide")]
    asked = {"model": "tiny", "messages": messages[:1], "tools": tools, "tool_choice": NAMED, "max_tokens": 300, "seed": 1}
    parsed = client.chat.completions.parse(**asked).choices[0].message.tool_calls[0].function.parsed_arguments
    assert isinstance(parsed, Tide)
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds, kinds
    assert final.message.tool_calls[0].function.parsed_arguments == parsed and final.finish_reason == "tool_calls"
    assert isinstance(client.chat.completions.parse(model="tiny", messages=messages[:1], response_format=Tide, max_tokens=300).choices[0].message.parsed, Tide)


def langchain_loop(url):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="tiny", base_url=url, api_key="none", max_tokens=300)
    messages = [HumanMessage(ASKED)]
    answer = model.bind_tools([TOOL], tool_choice="tide").invoke(messages)
    [call] = answer.tool_calls
    Tide.model_validate(call["args"])
    messages += [answer, ToolMessage("06:12", tool_call_id=call["id"])]
    assert model.bind_tools([TOOL], tool_choice="none").invoke(messages).content
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Tide, method=method).invoke(ASKED), Tide)
    chunks = list(model.bind_tools([TOOL], tool_choice="tide").stream(ASKED))
    Tide.model_validate(sum(chunks[1:], chunks[0]).tool_calls[0]["args"])


def instructor_loop(url):
    import instructor
    import openai

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=mode)
        answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": ASKED}], response_model=Tide, max_tokens=300, max_retries=0)
        assert isinstance(answer, Tide)


def long_model(folder):
    """A copy of models/tiny whose context is 32,768 tokens."""
    copy = pathlib.Path(folder) / "tiny"
    shutil.copytree(MODEL, copy, ignore=shutil.ignore_patterns("make", "heldout*"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    return copy


def main():
    with tempfile.TemporaryDirectory(prefix="coterie-agents-") as folder:
        with Server("--chat-template", SOURCE / "examples/tools.jinja", model=long_model(folder)) as server:
            status, answer = server.post("/v1/completions", {"prompt": "x", "regex": "a", "max_tokens": 3})
            if status != 200:
                sys.exit(print("SKIPPED:", answer["error"]["message"], file=sys.stderr) or 77)
            globals()[CLIENT.replace("-", "_") + "_loop"](f"http://127.0.0.1:{server.port}/v1")


if __name__ == "__main__":
    main()
