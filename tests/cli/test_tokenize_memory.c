/* `coterie tokenize` where memory runs out: whichever allocation fails, the answer is whole or the status says that it
 * is not. The command and the frame are compiled in, with allocators that fail on demand (tests.cmake). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/commands.h"
#include "coterie/tokenizer.h"

#include "harness/cli/capture.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TINY COT_SOURCE "/models/tiny"

/* ---- allocators ---- */

static long *counted;     // allocations so far; shared with the children
static long failing = -1; // which of them fails

static bool fails(void)
{
    return counted && (*counted)++ == failing;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __real_realloc(old, bytes);
}

/* ---- running ---- */

struct call {
    char *argument[5]; // after the program's name; NULL ends
    const char *input;
    long failing;
};

static int open_alone(void *context)
{
    cot_tokenizer *tokenizer;
    (void)context;
    json_set_alloc_funcs(__wrap_malloc, free);
    *counted = 0;
    cot_status status = cot_tokenizer_open(&tokenizer, TINY, NULL);
    long used = *counted;
    cot_tokenizer_close(tokenizer);
    *counted = used;
    return status != COT_OK;
}

static int run_program(void *context)
{
    static const cli_command *const commands[] = {&cli_cmd_tokenize, NULL};
    struct call *call = context;
    char *argv[7] = {(char[]){"coterie"}};
    int argc = 1;
    for (; call->argument[argc - 1]; argc++) argv[argc] = call->argument[argc - 1];
    FILE *input = tmpfile();
    if (!input) return 99;
    fputs(call->input, input);
    rewind(input);
    if (dup2(fileno(input), STDIN_FILENO) < 0) return 99;
    json_set_alloc_funcs(__wrap_malloc, free);
    failing = call->failing;
    *counted = 0;
    int status = cli_command_main(commands, argc, argv);
    return status;
}

/* `says` is what the line of a failure may hold besides "out of memory". */
static void whole_or_told(char *arguments[5], const char *input, const char *says)
{
    static capture clean, c;
    struct call call = {.input = input, .failing = -1};
    memcpy(call.argument, arguments, sizeof call.argument);
    capture_call(&c, open_alone, NULL);
    assert_int_equal(c.status, 0);
    long first = *counted, told = 0;
    capture_call(&clean, run_program, &call);
    long last = *counted;
    assert_int_equal(clean.status, 0);
    assert_true(last - first > 20);
    for (long n = first; n < last; n++) {
        call.failing = n;
        capture_call(&c, run_program, &call);
        if (c.status == 0 && !strcmp(c.out, clean.out) && !*c.err) continue; // it could do without
        const char *end = strchr(c.err, '\n');
        bool one_line = !strncmp(c.err, "coterie: ", 9) && end && !end[1] &&
                        (strstr(c.err, "out of memory") || strstr(c.err, says));
        if (c.status != 1 || strncmp(c.out, clean.out, strlen(c.out)) != 0 || !one_line)
            fail_msg("allocation %ld of %ld to %ld: status %d, '%s' and '%s'", n, first, last, c.status,
                     c.err, c.out);
        told++;
    }
    assert_true(told > 20);
}

static void test_rows(void **state)
{
    (void)state;
    whole_or_told((char *[5]){"tokenize", TINY, "Once \xe6\x97\xa5 a"}, "", "out of memory");
}

static void test_json(void **state)
{
    (void)state;
    whole_or_told((char *[5]){"tokenize", TINY, "Once a", "--json"}, "", "out of memory");
}

static void test_lines(void **state)
{
    (void)state;
    // jansson says of some failures that the line is wrong, since a word in it could not be kept
    whole_or_told((char *[5]){"tokenize", TINY, "--jsonl"}, "{\"text\": \"Once\"}\n{\"ids\": [2023, 364]}\n",
                  ": line ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_lines),
    };
    counted = mmap(NULL, sizeof *counted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counted == MAP_FAILED) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
