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
import typing

from pypi import need

CLIENTS = {
    "openai": ["openai==1.109.1"],
    "langchain": ["langchain-openai==0.3.33"],
    "instructor": ["instructor==1.11.3", "openai==1.109.1"],
    "pydantic-ai": ["pydantic-ai-slim[openai]==2.68.0", "openai==3.57.0"],
    "litellm": ["litellm==1.110.2", "openai==3.57.0"],
    "smolagents": ["smolagents[openai]==1.26.0", "openai==3.57.0"],
    "llama-index": ["llama-index-llms-openai-like==0.8.1", "llama-index-core==0.14.25"],
    "openai-agents": ["openai-agents==0.24.0", "openai==3.57.0"],
    "outlines": ["outlines==1.3.3", "openai==3.57.0"],
    "dspy": ["dspy==3.0.4", "litellm==1.110.2", "openai==3.57.0"],
}

CLIENT = sys.argv[1]
if "COT_IN_VENV" not in os.environ:
    python = need(f"agents-{CLIENT}", *CLIENTS[CLIENT])
    os.execve(python, [python, "-B", __file__, *sys.argv[1:]], os.environ | {"COT_IN_VENV": "1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"})

import pydantic  # noqa: E402
from serving import MODEL, SOURCE, Server  # noqa: E402

ASKED = "When is high water?"


class Port(str, enum.Enum):
    BREST = "Brest"
    HOBART = "Hobart"


Day = typing.Annotated[int, pydantic.Field(ge=1, le=31)]


class Tide(pydantic.BaseModel):
    """High water of a port."""

    model_config = pydantic.ConfigDict(extra="forbid")
    port: Port
    day: Day
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


def pydantic_ai_loop(url):
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=url, api_key="none"))
    told = []

    def tide(port: Port, day: Day) -> str:
        told.append((port, day))
        return "06:12"

    settings = {"max_tokens": 400, "seed": 1, "parallel_tool_calls": False}
    for output in (ToolOutput(Tide), NativeOutput(Tide)):
        agent = Agent(model, output_type=output, model_settings=settings)
        assert isinstance(agent.run_sync(ASKED).output, Tide)
        with agent.run_stream_sync(ASKED) as stream:
            assert isinstance(stream.get_output(), Tide)
    assert Agent(model, output_type=tide, model_settings=settings).run_sync(ASKED).output == "06:12"
    assert isinstance(told[0][0], Port) and isinstance(told[0][1], int)
    # a tool that the model may call: it writes what it likes
    assert Agent(model, tools=[tide], model_settings={"max_tokens": 20}).run_sync(ASKED).output


def litellm_loop(url):
    import litellm

    asked = {"model": "openai/tiny", "api_base": url, "api_key": "none", "max_tokens": 300, "seed": 1}
    messages = [{"role": "user", "content": ASKED}]
    for choice in ("required", NAMED):
        answer = litellm.completion(**asked, messages=messages, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False).choices[0]
        assert answer.finish_reason == "tool_calls", answer
        [call] = answer.message.tool_calls
        Tide.model_validate_json(call.function.arguments)
    chunks = list(litellm.completion(**asked, messages=messages, tools=[TOOL], tool_choice=NAMED, stream=True))
    [built] = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message.tool_calls
    assert (built.function.name, built.function.arguments) == ("tide", call.function.arguments)
    messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "06:12"}]
    assert litellm.completion(**asked | {"max_tokens": 20}, messages=messages, tools=[TOOL], tool_choice="none").choices[0].message.content
    Tide.model_validate_json(litellm.completion(**asked, messages=messages[:1], response_format=Tide).choices[0].message.content)


def smolagents_loop(url):
    from smolagents import OpenAIModel, Tool, ToolCallingAgent

    class TideTool(Tool):
        name = "tide"
        description = "High water"
        inputs = {
            "port": {"type": "string", "description": "a port", "enum": ["Brest", "Hobart"]},
            "day": {"type": "integer", "description": "a day of the month", "minimum": 1, "maximum": 31},
        }
        output_type = "string"

        def forward(self, port: str, day: int) -> str:
            return "06:12"

    model = OpenAIModel(model_id="tiny", api_base=url, api_key="none", max_tokens=400, seed=1, parallel_tool_calls=False)
    agent = ToolCallingAgent(tools=[TideTool()], model=model, max_steps=2, verbosity_level=0)
    agent.run(ASKED)
    steps = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
    assert steps and not any(step.error for step in steps), agent.memory.steps
    assert all(call.name in ("tide", "final_answer") for step in steps for call in step.tool_calls)


def llama_index_loop(url):
    from llama_index.core import PromptTemplate
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    told = []

    def tide(port: Port, day: Day) -> str:
        """High water."""
        told.append((port, day))
        return "06:12"

    llm = OpenAILike(
        model="tiny", api_base=url, api_key="none", is_chat_model=True, is_function_calling_model=True, max_tokens=400, context_window=32768
    )
    tool = FunctionTool.from_defaults(fn=tide)
    answer = llm.predict_and_call([tool], ASKED, tool_choice="required", allow_parallel_tool_calls=False)
    assert answer.response == "06:12" and told, answer
    assert isinstance(llm.structured_predict(Tide, PromptTemplate(ASKED)), Tide)
    assert isinstance(llm.as_structured_llm(Tide).complete(ASKED).raw, Tide)
    *_, last = llm.stream_chat_with_tools([tool], user_msg=ASKED, tool_required=True)
    assert llm.get_tool_calls_from_response(last)[0].tool_name == "tide"


def openai_agents_loop(url):
    import asyncio

    import agents
    import openai

    agents.set_tracing_disabled(True)
    told = []

    @agents.function_tool
    def tide(port: Port, day: Day) -> str:
        """High water."""
        told.append((port, day))
        return "06:12"

    def model():  # of one event loop
        return agents.OpenAIChatCompletionsModel(model="tiny", openai_client=openai.AsyncOpenAI(base_url=url, api_key="none"))

    settings = agents.ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=400)
    # a call is forced, then the model says what it likes
    agent = agents.Agent(name="tides", model=model(), tools=[tide], model_settings=settings)
    assert agents.Runner.run_sync(agent, ASKED).final_output and told and isinstance(told[0][0], Port)
    agent = agents.Agent(name="tides", model=model(), output_type=Tide, model_settings=agents.ModelSettings(max_tokens=400))
    assert isinstance(agents.Runner.run_sync(agent, ASKED).final_output, Tide)

    async def streamed():
        run = agents.Runner.run_streamed(agents.Agent(name="tides", model=model(), tools=[tide], model_settings=settings, tool_use_behavior="stop_on_first_tool"), ASKED)
        kinds = [event.type async for event in run.stream_events()]
        assert run.final_output == "06:12" and "run_item_stream_event" in kinds, kinds

    asyncio.run(streamed())


def outlines_loop(url):
    import openai
    import outlines

    model = outlines.from_openai(openai.OpenAI(base_url=url, api_key="none"), "tiny")
    Tide.model_validate_json(model(ASKED, Tide, max_tokens=400))
    pieces = "".join(model.stream(ASKED, Tide, max_tokens=400))
    Tide.model_validate_json(pieces)
    assert model(ASKED, max_tokens=20)


def dspy_loop(url):
    import dspy
    import litellm

    can = {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True, "supports_function_calling": True}
    litellm.register_model({"tiny": can, "openai/tiny": can})  # else it asks for JSON of no schema

    class Ask(dspy.Signature):
        question: str = dspy.InputField()
        port: typing.Literal["Brest", "Hobart"] = dspy.OutputField()
        day: typing.Literal[1, 2, 3] = dspy.OutputField()

    def tide(port: typing.Literal["Brest", "Hobart"], day: typing.Literal[1, 2, 3]) -> str:
        """High water."""
        return "06:12"

    class Call(dspy.Signature):
        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    lm = dspy.LM("openai/tiny", api_base=url, api_key="none", max_tokens=600, cache=False)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        answer = dspy.Predict(Ask)(question=ASKED)
        assert answer.port in ("Brest", "Hobart") and answer.day in (1, 2, 3), answer
    lm = dspy.LM("openai/tiny", api_base=url, api_key="none", max_tokens=600, cache=False, tool_choice="required", parallel_tool_calls=False)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter(use_native_function_calling=True)):
        calls = dspy.Predict(Call)(question=ASKED, tools=[dspy.Tool(tide)]).calls.tool_calls
        assert calls and calls[0].name == "tide" and calls[0].args["day"] in (1, 2, 3), calls


def long_model(folder):
    """A copy of models/tiny whose context is 32,768 tokens."""
    copy = pathlib.Path(folder) / "tiny"
    shutil.copytree(MODEL, copy, ignore=shutil.ignore_patterns("make", "heldout*"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    return copy


def main():
    loop = globals()[CLIENT.replace("-", "_") + "_loop"]
    with tempfile.TemporaryDirectory(prefix="coterie-agents-") as folder:
        with Server("--chat-template", SOURCE / "examples/tools.jinja", model=long_model(folder)) as server:
            status, answer = server.post("/v1/completions", {"prompt": "x", "regex": "a", "max_tokens": 3})
            if status != 200:
                sys.exit(print("SKIPPED:", answer["error"]["message"], file=sys.stderr) or 77)
            loop(f"http://127.0.0.1:{server.port}/v1")


if __name__ == "__main__":
    main()
