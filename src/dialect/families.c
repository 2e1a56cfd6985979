/* Families of models as data. */
#include "dialect/dialect.h"

#include <string.h>

#define THINK .reasoning = "<think>", .reasoning_end = "</think>"
#define DEEPSEEK                                                                                             \
    .section = "<｜tool▁calls▁begin｜>", .section_end = "<｜tool▁calls▁end｜>",                              \
    .call = "<｜tool▁call▁begin｜>", .call_end = "<｜tool▁call▁end｜>", .separator = "<｜tool▁sep｜>"

const cot_dialect cot_dialects[] = {
    {.name = "hermes", .form = COT_DIALECT_OBJECTS, .call = "<tool_call>", .call_end = "</tool_call>", THINK},
    {.name = "qwen3-coder",
     .form = COT_DIALECT_MARKUP,
     .call = "<tool_call>",
     .call_end = "</tool_call>",
     .function = "<function=",
     .function_end = "</function>",
     .key = "<parameter=",
     .value_end = "</parameter>",
     .has_lines = true,
     THINK},
    {.name = "deepseek-v3", .form = COT_DIALECT_HEADED, DEEPSEEK, .has_kind = true, THINK},
    {.name = "deepseek-v3.1", .form = COT_DIALECT_HEADED, DEEPSEEK, THINK},
    {.name = "gpt-oss", .form = COT_DIALECT_HARMONY},
    {.name = "kimi-k2",
     .form = COT_DIALECT_HEADED,
     .section = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .call = "<|tool_call_begin|>",
     .call_end = "<|tool_call_end|>",
     .separator = "<|tool_call_argument_begin|>",
     .has_address = true,
     THINK},
    {.name = "glm-4.5",
     .form = COT_DIALECT_MARKUP,
     .call = "<tool_call>",
     .call_end = "</tool_call>",
     .key = "<arg_key>",
     .key_end = "</arg_key>",
     .value = "<arg_value>",
     .value_end = "</arg_value>",
     THINK},
    {.name = "mistral", .form = COT_DIALECT_OBJECTS, .call = "[TOOL_CALLS]", .is_short = true},
    {.name = "mistral-args",
     .form = COT_DIALECT_HEADED,
     .call = "[TOOL_CALLS]",
     .separator = "[ARGS]",
     .id = "[CALL_ID]",
     .is_short = true,
     .reasoning = "[THINK]",
     .reasoning_end = "[/THINK]"},
    {.name = "llama3-json", .form = COT_DIALECT_OBJECTS, .call = "<|python_tag|>", .is_bare = true},
    {.name = "llama4-pythonic",
     .form = COT_DIALECT_PYTHON,
     .call = "<|python_start|>",
     .call_end = "<|python_end|>",
     .is_bare = true},
    {.name = "minimax-m2",
     .form = COT_DIALECT_MARKUP,
     .call = "<minimax:tool_call>",
     .call_end = "</minimax:tool_call>",
     .function = "<invoke name=",
     .function_end = "</invoke>",
     .key = "<parameter name=",
     .value_end = "</parameter>",
     .has_quotes = true,
     THINK},
    {.name = "seed-oss",
     .form = COT_DIALECT_MARKUP,
     .call = "<seed:tool_call>",
     .call_end = "</seed:tool_call>",
     .function = "<function=",
     .function_end = "</function>",
     .key = "<parameter=",
     .value_end = "</parameter>",
     .reasoning = "<seed:think>",
     .reasoning_end = "</seed:think>"},
    {.name = "think", .form = COT_DIALECT_NONE, THINK},
    {0}};

const cot_dialect cot_dialect_list = {.name = "list", .form = COT_DIALECT_OBJECTS, .is_bare = true};
const cot_dialect cot_dialect_forced = {.name = "forced", .form = COT_DIALECT_FORCED};

const cot_dialect *cot_dialect_named(const char *name)
{
    for (const cot_dialect *d = cot_dialects; d->name; d++)
        if (strcmp(d->name, name) == 0) return d;
    return NULL;
}
