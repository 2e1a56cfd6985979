/* `coterie tokenize`: rows for people, lines for programs, one clear line for what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "harness/cli/capture.h"

#define TINY COT_SOURCE "/models/tiny"

static capture c;

static void test_rows(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" tokenize " TINY " 'Once 日'");
    assert_string_equal(c.err, "");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.out, "     id  token                    text\n"
                               "   2023  \"On\"                     \"On\"\n"
                               "    364  \"ce\"                     \"ce\"\n"
                               "    221  \"Ġ\"                      \" \"\n"
                               "   1019  \"æĹ\"                     \"\"\n"
                               "     99  \"¥\"                      \"日\"\n"
                               "5 tokens\n");
    capture_shell(&c, "\"$coterie\" tokenize " TINY "/tokenizer.json ''");
    assert_string_equal(c.out, "0 tokens\n");
    assert_int_equal(c.status, 0);
}

static void test_json(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" tokenize " TINY " --json 'Once<|endoftext|>'");
    assert_string_equal(c.out, "{\"ids\":[2023,364,0],\"ids_special\":[2023,364,0],"
                               "\"decoded\":\"Once<|endoftext|>\",\"decoded_skip\":\"Once\"}\n");
    assert_int_equal(c.status, 0);
}

static void test_lines(void **state)
{
    (void)state;
    capture_shell(&c,
                  "printf '%s\\n' '{\"text\": \"Once\"}' '{\"ids\": [0, 364]}' '{\"text\": \"\\u0000\"}' |"
                  "\"$coterie\" tokenize " TINY " --jsonl");
    assert_string_equal(c.err, "");
    assert_string_equal(c.out, "{\"ids\":[2023,364],\"ids_special\":[2023,364],\"decoded\":\"Once\","
                               "\"decoded_skip\":\"Once\"}\n"
                               "{\"ids\":[0,364],\"decoded\":\"<|endoftext|>ce\",\"decoded_skip\":\"ce\"}\n"
                               "{\"ids\":[189],\"ids_special\":[189],\"decoded\":\"\\u0000\","
                               "\"decoded_skip\":\"\\u0000\"}\n");
    assert_int_equal(c.status, 0);
    capture_shell(&c, "\"$coterie\" tokenize " TINY " --jsonl </dev/null");
    assert_string_equal(c.out, "");
    assert_int_equal(c.status, 0);
}

/* The model's own template, one given, variables; text as it is, or a line with ids. */
static void test_chat(void **state)
{
    (void)state;
    static const struct {
        const char *command, *out;
    } chats[] = {
        {"echo '[{\"role\": \"user\", \"content\": \"hi\"}]' | \"$coterie\" tokenize " TINY " --messages -",
         "Question: hi\nAnswer:"},
        {"echo '[{\"role\": \"user\", \"content\": \"hi\"}]' | \"$coterie\" tokenize " TINY
         " --messages - --no-generation-prompt",
         "Question: hi\n"},
        {"echo '[{\"role\": \"assistant\", \"content\": \"hi\"}]' | \"$coterie\" tokenize " TINY
         "/tokenizer.json --messages - --continue-final-message",
         "Answer: hi"},
        // The token at the end is the template's; the one in the message is text.
        {"echo '[{\"role\": \"assistant\", \"content\": \"Once<|endoftext|>\"}]' | \"$coterie\" "
         "tokenize " TINY
         " --messages - --no-generation-prompt --json | sed 's/.*,\\([^,]*\\),\\([^,]*\\)$/\\2/'",
         "0]}\n"},
        {"echo '[{\"role\": \"assistant\", \"content\": \"<|endoftext|>\"}]' | \"$coterie\" tokenize " TINY
         " --messages - --no-generation-prompt --json | grep -o '[^0-9]0[^0-9]' | wc -l",
         "1\n"},
        {"t=$(mktemp); printf '{{ bos_token }}{{ eos_token }}{{ x }}{{ tools | tojson }}' > $t; echo "
         "'{\"messages\": "
         "[{\"role\": \"user\"}], \"tools\": [1], \"chat_template_kwargs\": {\"x\": 1}}' | \"$coterie\" "
         "tokenize " TINY " --messages - --chat-template $t --chat-template-kwargs '{\"x\": \"y\"}'; rm $t",
         "<|endoftext|>y[1]"},
        // Arguments of a tool call as they are, or as the object that OpenAI's text is.
        {"t=$(mktemp); printf '{{ messages[0].tool_calls[0].function.arguments | tojson }};' > $t; for o in "
         "--add-generation-prompt --openai; do echo '[{\"role\": \"assistant\", \"tool_calls\": "
         "[{\"function\": "
         "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\":1}\"}}]}]' | \"$coterie\" tokenize " TINY
         " --messages - --chat-template $t $o; done; rm $t",
         "\"{\\\"a\\\":1}\";{\"a\": 1};"},
    };
    for (size_t i = 0; i < sizeof chats / sizeof *chats; i++) {
        capture_shell(&c, chats[i].command);
        assert_string_equal(c.err, "");
        assert_string_equal(c.out, chats[i].out);
        assert_int_equal(c.status, 0);
    }
}

static void test_bad_chats(void **state)
{
    (void)state;
    static const struct {
        const char *arguments;
        int status;
        const char *said;
    } bad[] = {
        {TINY " --messages - x", 2, "--messages takes the place of TEXT"},
        {TINY " x --no-generation-prompt", 2, "need --messages FILE"},
        {TINY " x --openai", 2, "need --messages FILE"},
        {TINY " --messages - --no-generation-prompt --add-generation-prompt", 2, "exclude one another"},
        {TINY " --messages - --continue-final-message --add-generation-prompt", 1, "exclude one another"},
        {TINY " --messages /nowhere", 1, "/nowhere"},
        {TINY " --messages - --chat-template /nowhere", 1, "/nowhere"},
        {TINY " --messages - --chat-template-kwargs x", 1, "chat_template_kwargs is not JSON"},
        {COT_SOURCE "/docs --messages -", 1, "--chat-template FILE"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char command[512];
        snprintf(command, sizeof command, "echo '[{\"role\": \"user\"}]' | \"$coterie\" tokenize %s",
                 bad[i].arguments);
        capture_shell(&c, command);
        assert_string_equal(c.out, "");
        assert_int_equal(c.status, bad[i].status);
        assert_non_null(strstr(c.err, bad[i].said));
    }
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } bad[] = {
        {"nonsense", "line 2: "},
        {"", "line 2: "},
        {"{}", "line 2: it is neither {\"text\": a string} nor {\"ids\": a list}"},
        {"{\"text\": \"a\", \"ids\": []}", "line 2: it is neither"},
        {"{\"ids\": [1.5]}", "line 2: 'ids' holds what is no token id"},
        {"{\"ids\": [99999999999]}", "line 2: 'ids' holds what is no token id"},
        {"{\"ids\": [-1]}", "line 2: token id -1 is not in [0, 4096)"},
        {"{\"ids\": [4096]}", "line 2: token id 4096 is not in [0, 4096)"},
        {"{\"text\": \"\\377\"}", "line 2: "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[512];
        snprintf(line, sizeof line,
                 "printf '{\"ids\": [364]}\\n%s\\n{\"ids\": []}\\n' | \"$coterie\" tokenize " TINY " --jsonl",
                 bad[i].line);
        capture_shell(&c, line);
        assert_string_equal(c.out, "{\"ids\":[364],\"decoded\":\"ce\",\"decoded_skip\":\"ce\"}\n");
        assert_int_equal(strncmp(c.err, "coterie: ", 9), 0);
        if (strncmp(c.err + 9, bad[i].says, strlen(bad[i].says))) fail_msg("%s: %s", bad[i].line, c.err);
        assert_int_equal(strchr(c.err, '\n') - c.err, strlen(c.err) - 1);
        assert_int_equal(c.status, 1);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
        int status;
    } bad[] = {
        {"\"$coterie\" tokenize " TINY, "no text given: TEXT, or --jsonl and standard input\n", 2},
        {"\"$coterie\" tokenize " TINY " a --jsonl",
         "--jsonl takes its texts from standard input, not from TEXT\n", 2},
        {"\"$coterie\" tokenize /no/model a", "cannot open '/no/model': ", 1},
        {"\"$coterie\" tokenize " COT_SOURCE "/src a",
         "cannot open '" COT_SOURCE "/src/tokenizer.json': ", 1},
        {"\"$coterie\" tokenize " COT_SOURCE "/LICENSE a",
         "cannot read '" COT_SOURCE "/LICENSE': line 2: ", 1},
        {"\"$coterie\" tokenize " TINY " \"$(printf 'ab\\377')\"",
         "the text is not UTF-8: byte 0xff at offset 2\n", 1},
        {"echo '{\"ids\": []}' | \"$coterie\" tokenize " TINY " --jsonl >/dev/full",
         "cannot write to standard output: ", 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        capture_shell(&c, bad[i].line);
        assert_string_equal(c.out, "");
        if (strncmp(c.err, "coterie: ", 9) || strncmp(c.err + 9, bad[i].says, strlen(bad[i].says)))
            fail_msg("%s: %s", bad[i].line, c.err);
        assert_int_equal(strchr(c.err, '\n') - c.err, strlen(c.err) - 1);
        assert_int_equal(c.status, bad[i].status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),     cmocka_unit_test(test_json),      cmocka_unit_test(test_lines),
        cmocka_unit_test(test_chat),     cmocka_unit_test(test_bad_chats), cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
