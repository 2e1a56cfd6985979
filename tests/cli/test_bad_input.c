/* Whatever is wrong with what the user gives: one line that says what, an exit status from 1 to 125, no data. And
 * odd input that is right works. Every case breaks one thing of a folder of links to the shipped model. */
#include "base/safetensors.h"
#include "harness/cli/broken.h"
#include "harness/cli/capture.h"
#include "harness/cmocka.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>

static capture c;
static char folder[64]; // the broken model is "m" in it

/* ---- judging ---- */

static void run_line(const char *line)
{
    char command[4096];
    snprintf(command, sizeof command, "cd '%s' && %s", folder, line);
    capture_shell(&c, command);
}

static void expect_complaint(const char *what, int status, const char *word)
{
    const char *end = strchr(c.err, '\n');
    if (c.status != status || strncmp(c.err, "coterie: ", 9) != 0 || !end || end[1] || !strstr(c.err, word) ||
        *c.out)
        fail_msg("%s: expected status %d and a line with '%s', found %d, '%s' and output '%.100s'", what,
                 status, word, c.status, c.err, c.out);
}

/* ---- models ---- */

#define NORM "\"model.norm.weight\":{\"dtype\":\"BF16\",\"shape\":[192],\"data_offsets\":["
#define WEIGHTS "model.safetensors"
#define INDEX "model.safetensors.index.json"
enum { NAN16 = 0x7fc0, INFINITE16 = 0x7f80, LARGEST16 = 0x7f7f };

static const struct model_case {
    enum how how;
    const char *file, *from, *to;
    uint64_t n;
    const char *word;
} model_cases[] = {
    {REMOVE, "config.json", 0, 0, 0, "is no model"},
    {FOLDER, "config.json", 0, 0, 0, "directory"},
    {WHOLE, "config.json", 0, "", 0, "JSON"},
    {WHOLE, "config.json", 0, "[[[[", 0, "JSON"},
    {WHOLE, "config.json", 0, "\xef\xbb\xbf{}", 0, "JSON"},
    {WHOLE, "generation_config.json", 0, "{", 0, "generation_config.json"},
    {REPLACE, "config.json", "Qwen3MoeForCausalLM", "FooForCausalLM", 0, "'FooForCausalLM'"},
    {REPLACE, "config.json", "\"vocab_size\": 4096", "\"vocab_size\": \"4096\"", 0, "'vocab_size'"},
    {REPLACE, "config.json", "\"vocab_size\": 4096", "\"vocab_size\": 4611686018427387904", 0,
     "'vocab_size'"},
    {REPLACE, "config.json", "\"vocab_size\": 4096", "\"vocab_size\": 1e300", 0, "'vocab_size'"},
    {REPLACE, "config.json", "\"hidden_size\": 192", "\"hidden_size\": -1", 0, "'hidden_size'"},
    {REPLACE, "config.json", "\"hidden_size\": 192", "\"hidden_size\": 1, \"hidden_size\": 192", 0,
     "duplicate"},
    {REPLACE, "config.json", "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 0", 0,
     "'num_hidden_layers'"},
    {REPLACE, "config.json", "\"num_hidden_layers\": 6", "\"num_hidden_layers\": 7", 0, "model.layers.6."},
    {REPLACE, "config.json", "\"num_experts\": 32", "\"num_experts\": 65536", 0, "'num_experts'"},
    {REPLACE, "config.json", "\"num_experts_per_tok\": 4", "\"num_experts_per_tok\": 33", 0, "32"},
    {REPLACE, "config.json", "\"silu\"", "\"gelu\"", 0, "'gelu'"},
    {REPLACE, "config.json", "\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"dynamic\"}", 0,
     "'dynamic'"},
    {REPLACE, "config.json", "\"use_cache\"",
     "\"quantization_config\": {\"quant_method\": \"bitsandbytes\"}, \"use_cache\"", 0, "'bitsandbytes'"},
    {REMOVE, WEIGHTS, 0, 0, 0, "holds neither"},
    {FOLDER, WEIGHTS, 0, 0, 0, "directory"},
    {WHOLE, WEIGHTS, 0, "", 0, "0 bytes"},
    {CUT, WEIGHTS, 0, 0, 1, "'model.norm.weight'"},
    {CUT, WEIGHTS, 0, 0, 17000000, "header of"},
    {LENGTH, WEIGHTS, 0, 0, (uint64_t)1 << 30, "1073741824"},
    {LENGTH, WEIGHTS, 0, 0, UINT64_MAX, "header of"},
    {HEADER, WEIGHTS, NORM "16987392,16987776]", NORM "16987776,16988160]", 0, "16988160"},
    {HEADER, WEIGHTS, NORM "16987392,16987776]", NORM "16987008,16987392]", 0, "overlap"},
    {HEADER, WEIGHTS, NORM "16987392,16987776]", NORM "-384,0]", 0, "-384"},
    {HEADER, WEIGHTS, NORM "16987392,16987776]", NORM "4611686018427387904,9223372036854775807]", 0,
     "46116860184"},
    {HEADER, WEIGHTS, "\"shape\":[192],\"data_offsets\":[16987392",
     "\"shape\":[96,2],\"data_offsets\":[16987392", 0, "[96][2]"},
    {HEADER, WEIGHTS, "\"model.norm.weight\"", "\"model.norm\"", 0, "'model.norm.weight' is missing"},
    {HEADER, WEIGHTS, "mlp.experts.7.up_proj", "mlp.experts.7.up", 0,
     "mlp.experts.7.up_proj.weight' is missing"},
    {HEADER, WEIGHTS, "\"BF16\"", "\"I16\"", 0, "I16"},
    {HEADER, WEIGHTS, "\"BF16\"", "\"F99\"", 0, "'F99'"},
    {FILL, WEIGHTS, "model.norm.weight", 0, NAN16, "'model.norm.weight'"},
    {FILL, WEIGHTS, "model.layers.3.mlp.gate.weight", 0, INFINITE16, "'model.layers.3.mlp.gate.weight'"},
    {FILL, WEIGHTS, "model.layers.2.mlp.experts.3.down_proj.weight", 0, NAN16, "experts.3.down_proj.weight'"},
    {FILL, WEIGHTS, "model.norm.weight", 0, LARGEST16, "not finite"},
    {FILL, WEIGHTS, "model.layers.3.input_layernorm.weight", 0, LARGEST16, "not finite"},
    {WHOLE, INDEX, 0, "{\"weight_map\": {\"a\": \"../x\"}}", 0, "'../x'"},
    {WHOLE, INDEX, 0, "{\"weight_map\": {\"a\": \"/etc/passwd\"}}", 0, "leaves"},
    {WHOLE, INDEX, 0, "{\"weight_map\": {\"a\": \"a/../../b\"}}", 0, "leaves"},
    {WHOLE, INDEX, 0, "{\"weight_map\": {\"a\": \"none.safetensors\"}}", 0, "none.safetensors"},
    {WHOLE, INDEX, 0, "{\"weight_map\": {}}", 0, "missing"},
    {WHOLE, INDEX, 0, "{\"weight_map\": 3}", 0, "weight_map"},
    {REMOVE, "tokenizer.json", 0, 0, 0, "tokenizer.json"},
    {WHOLE, "tokenizer.json", 0, "{\"model\": {\"type\": \"Unigram\"}}", 0, "'Unigram'"},
    {REPLACE, "tokenizer.json", "\"ByteLevel\"", "\"Foo\"", 0, "'Foo'"},
};

static void test_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof model_cases / sizeof *model_cases; i++) {
        const struct model_case *b = &model_cases[i];
        char what[512];
        snprintf(what, sizeof what, "case %zu, %s: %s -> %s", i, b->file, b->from ? b->from : "",
                 b->to ? b->to : "");
        break_model(folder, b->how, b->file, b->from, b->to, b->n);
        run_line("\"$coterie\" run m -p The -n 4 --ranks 3");
        expect_complaint(what, 1, b->word);
    }
}

/* Evaluation and several ranks meet values that overflow too. */
static void test_overflow(void **state)
{
    (void)state;
    break_model(folder, FILL, WEIGHTS, "model.norm.weight", NULL, LARGEST16);
    run_line("\"$coterie\" eval m --tokens '" TINY "/heldout.safetensors'");
    expect_complaint("eval of an overflow", 1, "not finite");
}

/* A model larger than any memory, in a file that takes no room. */
static void test_too_large(void **state)
{
    (void)state;
    enum { HIDDEN = 16384, INTERMEDIATE = 1 << 20, EXPERTS = 20 };
    static const struct {
        const char *name;
        int64_t rows, columns;
    } weights[] = {{"input_layernorm", HIDDEN, 0},    {"post_attention_layernorm", HIDDEN, 0},
                   {"self_attn.q_proj", 192, HIDDEN}, {"self_attn.k_proj", 64, HIDDEN},
                   {"self_attn.v_proj", 64, HIDDEN},  {"self_attn.o_proj", HIDDEN, 192},
                   {"self_attn.q_norm", 32, 0},       {"self_attn.k_norm", 32, 0},
                   {"mlp.gate", EXPERTS, HIDDEN}};
    json_t *header = json_object();
    int64_t at = 0;
    char name[128], path[256];
#define ADD(rows, columns)                                                                                   \
    do {                                                                                                     \
        int64_t r_ = (rows), c_ = (columns), bytes_ = 2 * r_ * (c_ ? c_ : 1);                                \
        json_object_set_new(header, name,                                                                    \
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", "BF16", "shape",                       \
                                      c_ ? json_pack("[I,I]", (json_int_t)r_, (json_int_t)c_)                \
                                         : json_pack("[I]", (json_int_t)r_),                                 \
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + bytes_)));           \
        at += bytes_;                                                                                        \
    } while (0)
    strcpy(name, "model.embed_tokens.weight");
    ADD(4096, HIDDEN);
    strcpy(name, "model.norm.weight");
    ADD(HIDDEN, 0);
    for (size_t w = 0; w < sizeof weights / sizeof *weights; w++) {
        snprintf(name, sizeof name, "model.layers.0.%s.weight", weights[w].name);
        ADD(weights[w].rows, weights[w].columns);
    }
    for (int e = 0; e < EXPERTS; e++) {
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.gate_proj.weight", e);
        ADD(INTERMEDIATE, HIDDEN);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.up_proj.weight", e);
        ADD(INTERMEDIATE, HIDDEN);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.down_proj.weight", e);
        ADD(HIDDEN, INTERMEDIATE);
    }
#undef ADD
    fresh_model(folder);
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = strlen(text);
    path_in(path, folder, WEIGHTS);
    spill(path, &length, 8, text, length);
    int cannot = truncate(path, (off_t)(8 + length) + at);
    free(text);
    json_decref(header);
    if (cannot) {
        print_message("SKIPPED: no file of %lld bytes can be made here: %s\n", (long long)at,
                      strerror(errno));
        skip();
    }
    path_in(path, folder, "config.json");
    json_t *config = json_load_file(TINY "/config.json", 0, NULL);
    json_object_update_new(config,
                           json_pack("{s:i, s:i, s:i, s:i}", "hidden_size", HIDDEN, "num_hidden_layers", 1,
                                     "num_experts", EXPERTS, "moe_intermediate_size", INTERMEDIATE));
    text = json_dumps(config, 0);
    spill(path, text, strlen(text), "", 0);
    free(text);
    json_decref(config);
    run_line("\"$coterie\" run m -p The --ranks 4");
    double needed, available;
    expect_complaint("a model of 2 TB", 1, "GB");
    assert_int_equal(sscanf(c.err, "coterie: the model needs %lf GB of memory, %lf GB", &needed, &available),
                     2);
    assert_true(needed > 2061 && needed < 2200 && available > 0 && available < needed);
}

/* ---- tokens to evaluate ---- */

static const struct tokens_case {
    cot_dtype dtype;
    int64_t count;
    int64_t ids[4], prefill; // prefill < 0: not given
    const char *word;
} tokens_cases[] = {
    {COT_I32, 3, {1, -1, 2}, -1, "-1"},         {COT_I32, 3, {1, 4096, 2}, -1, "4096"},
    {COT_I64, 2, {1, INT64_MAX}, -1, "922337"}, {COT_F32, 2, {0}, -1, "F32"},
    {COT_I32, 0, {0}, -1, "0 tokens"},          {COT_I32, 3, {1, 2, 3}, 0, "0 of them"},
    {COT_I32, 3, {1, 2, 3}, 4, "4 of them"},
};

static void test_tokens(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/ids.safetensors", folder);
    for (size_t i = 0; i < sizeof tokens_cases / sizeof *tokens_cases; i++) {
        const struct tokens_case *t = &tokens_cases[i];
        int32_t narrow[4], prefill = (int32_t)t->prefill;
        for (int k = 0; k < 4; k++) narrow[k] = (int32_t)t->ids[k];
        const cot_tensor tensors[] = {{.name = "ids.a",
                                       .dtype = t->dtype,
                                       .dims = 1,
                                       .shape = {t->count},
                                       .data = t->dtype == COT_I64 ? (const void *)t->ids : narrow,
                                       .bytes = (size_t)t->count * cot_dtype_bytes(t->dtype)},
                                      {.name = "prefill_tokens.a",
                                       .dtype = COT_I32,
                                       .dims = 1,
                                       .shape = {1},
                                       .data = &prefill,
                                       .bytes = 4}};
        assert_int_equal(cot_safetensors_write(path, tensors, t->prefill < 0 ? 1 : 2, NULL, 0, NULL), COT_OK);
        run_line("\"$coterie\" eval '" TINY "' --tokens ids.safetensors");
        expect_complaint(t->word, 1, t->word);
    }
}

/* ---- command lines ---- */

#define RUN "\"$coterie\" run '" TINY "' "
#define EVAL "\"$coterie\" eval '" TINY "' "
static const struct line_case {
    const char *line;
    int status;
    const char *word;
} line_cases[] = {
    {RUN "-p a --ranks 65", 2, "'65'"},
    {RUN "-p a --ranks 0", 2, "'0'"},
    {RUN "-p a --ranks -1", 2, "'-1'"},
    {RUN "-p a --temperature nan", 2, "'nan'"},
    {RUN "-p a --temperature inf", 2, "'inf'"},
    {RUN "-p a --stop ''", 1, "empty"},
    {RUN "-p a --isa foo", 1, "'foo'"},
    {RUN "-p a --op foo", 1, "'foo'"},
    {RUN "-p a --rank 2", 2, "'--ranks'"},
    {RUN, 2, "prompt"},
    {RUN "-p ''", 1, "empty"},
    {RUN "-p a -p - </dev/null", 1, "prompt 2 is empty"},
    {RUN "-p a -p \"$(printf 'a\\377')\"", 1, "prompt 2: the text is not UTF-8"},
    {"printf 'a\\377' | " RUN "-p -", 1, "not UTF-8"},
    {"printf '\\355\\240\\200' >bad.txt; " RUN "-f bad.txt", 1, "not UTF-8"},
    {RUN "-f none.txt", 1, "none.txt"},
    {RUN "-f .", 1, "directory"},
    {RUN "-p a -p \"$(head -c 600 /dev/zero | tr '\\0' 5)\"", 1, "prompt 2: 600 tokens"},
    {"head -c 1000000 /dev/zero | tr '\\0' a | " RUN "-p -", 1, "1000000 tokens"},
    {"\"$coterie\" run none -p a", 1, "'none'"},
    {"\"$coterie\" run . -p a", 1, "is no model"},
    {"\"$coterie\" run '" TINY "/config.json' -p a", 1, "expected a model folder"},
    {RUN "-p a -n 4 >/dev/full", 1, "No space left"},
    {RUN "-p a -n 4 >&-", 1, "standard output"},
    {RUN "-p a --save-routing none/x", 1, "'none/x'"},
    {RUN "-p a --save-routing .", 1, "directory"},
    {RUN "-p a --stats=none/x", 1, "'none/x'"},
    {EVAL "--tokens '" TINY "/heldout.safetensors' -o none/x", 1, "'none/x'"},
    {EVAL "--tokens none", 1, "'none'"},
    {EVAL "--tokens '" TINY "/model.safetensors'", 1, "'ids.NAME'"},
    {EVAL, 2, "--tokens"},
    {": >empty.txt; " EVAL "--text empty.txt", 1, "empty"},
    {"echo a >a.txt; " EVAL "--text a.txt --text a.txt", 1, "twice"},
    {"\"$coterie\" profile '" TINY "' --text empty.txt -o x", 1, "empty"},
    {"\"$coterie\" profile '" TINY "' --text a.txt -o none/x", 1, "'none/x'"},
    {"\"$coterie\" profile '" TINY "' --text a.txt -o x --save-routing y", 2, "save-routing"},
    {"echo a >a.txt; \"$coterie\" eval '" TINY "' --text a.txt -o /dev/full", 1, "No space left"},
    {"\"$coterie\" trace info a.txt", 1, "a.txt"},
    {"\"$coterie\" trace convert a.txt -o none/x", 1, "'none/x'"},
    {"\"$coterie\" tokenize '" TINY "' \"$(printf 'a\\377')\"", 1, "not UTF-8"},
    {"echo '{\"ids\": [-1]}' | \"$coterie\" tokenize '" TINY "' --jsonl", 1, "-1"},
    {"echo '{' | \"$coterie\" tokenize '" TINY "' --jsonl", 1, "line 1"},
};

static void test_lines(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof line_cases / sizeof *line_cases; i++) {
        run_line(line_cases[i].line);
        expect_complaint(line_cases[i].line, line_cases[i].status, line_cases[i].word);
    }
}

/* An output that turns out too large is taken back. */
static void test_file_size_limit(void **state)
{
    (void)state;
    run_line("mkdir limited && cd limited && echo a few words >../a.txt && ulimit -f 8 && " EVAL
             "--text ../a.txt -o out.safetensors");
    expect_complaint("a limit on files", 1, "too large");
    run_line("ls limited");
    assert_string_equal(c.out, "");
}

/* Nobody reads on: generation ends. */
static void test_closed_pipe(void **state)
{
    (void)state;
    run_line("{ " RUN
             "-p The -p One -n 500 --ignore-eos; echo $? >status; } | head -c 1 >/dev/null; cat status");
    assert_string_equal(c.out, "1\n");
    assert_non_null(strstr(c.err, "standard output"));
}

/* ---- odd but right ---- */

static void expect_output(const char *line, const char *expected)
{
    run_line(line);
    if (c.status || *c.err || strcmp(c.out, expected) != 0)
        fail_msg("%s: expected '%s', found %d, '%s' and '%s'", line, expected, c.status, c.out, c.err);
}

static void test_odd_but_right(void **state)
{
    (void)state;
    static char text[sizeof c.out];
    run_line(RUN "-p The -n 6 --precision fp32");
    assert_int_equal(c.status, 0);
    strcpy(text, c.out);
    fresh_model(folder); // links to files, a link to the folder
    run_line("ln -s m link && mkdir 'o\"d d.1' && cp -P m/* 'o\"d d.1'");
    expect_output("\"$coterie\" run m -p The -n 6 --precision fp32", text);
    expect_output("\"$coterie\" run link/ -p The -n 6 --precision fp32", text);
    expect_output("\"$coterie\" run 'o\"d d.1' -p The -n 6 --precision fp32", text);
    expect_output("printf The | env -i \"$coterie\" run m -p - -n 6 --precision fp32", text);
    expect_output(RUN "-p The -n 6 --precision fp32 --ranks 64 --threads 4", text);
    expect_output(RUN "-p The -n 6 --precision fp32 --ranks 64 --attention dp", text);
    expect_output(RUN "-p The -p The -n 0", "== 1 ==\n\n== 2 ==\n\n");
    run_line(RUN "-p 'One two' -n 16777216 --stop e"); // no more memory than the context takes
    assert_int_equal(c.status, 0);
    run_line("printf 'a\\r\\nb\\0c' | " RUN "-p - -n 2");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.err, "");
    shrink_tokenizer(folder, 300); // the model speaks tokens that its tokenizer lacks
    run_line("\"$coterie\" run m -p The -n 30 --ignore-eos");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.err, "");
}

static int make_folder(void **state)
{
    (void)state;
    return broken_folder(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return broken_folder_remove(folder) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),      cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_too_large),   cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_lines),       cmocka_unit_test(test_file_size_limit),
        cmocka_unit_test(test_closed_pipe), cmocka_unit_test(test_odd_but_right),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
