/* How long masks take: bench_masks FOLDER [SCHEMAS [TOKENS]], of a folder with a tokenizer.json. Each schema has ten properties of random
 * kinds; a text that keeps to it is drawn token by token, and the processor time of each mask is taken. Needs llguidance. */
#include "coterie/constraint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t state = 46;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(state >> 33) % below;
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void write_schema(char *text, size_t room)
{
    static const char *const kinds[] = {
        "{\"type\":\"string\",\"maxLength\":40}", "{\"type\":\"integer\",\"minimum\":0,\"maximum\":9999}",
        "{\"enum\":[\"north\",\"east\",\"south\",\"west\"]}", "{\"type\":\"boolean\"}",
        "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":4}"};
    size_t used =
        (size_t)snprintf(text, room, "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    for (int i = 0; i < 10; i++)
        used += (size_t)snprintf(text + used, room - used, "%s\"p%u_%d\":%s", i ? "," : "", draw(1000), i,
                                 kinds[draw(5)]);
    snprintf(text + used, room - used, "}}");
}

/* A token of those that may come; -1: none. */
static int32_t draw_token(const uint32_t *mask, int64_t vocab)
{
    for (int i = 0; i < 100000; i++) {
        const uint32_t t = draw((uint32_t)vocab);
        if (mask[t / 32] >> t % 32 & 1) return (int32_t)t;
    }
    for (int64_t t = 0; t < vocab; t++)
        if (mask[t / 32] >> t % 32 & 1) return (int32_t)t;
    return -1;
}

int main(int count, char **arguments)
{
    const int schemas = count > 2 ? atoi(arguments[2]) : 200, tokens = count > 3 ? atoi(arguments[3]) : 100;
    cot_tokenizer *tokenizer;
    cot_constraint_compiler *compiler;
    cot_error error;
    if (count < 2 || schemas < 1 || tokens < 1) {
        fprintf(stderr, "usage: bench_masks FOLDER [SCHEMAS [TOKENS]]\n");
        return 2;
    }
    if (cot_tokenizer_open(&tokenizer, arguments[1], &error) != COT_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const int64_t vocab = (int64_t)cot_tokenizer_size(tokenizer);
    const int32_t eos = (int32_t)vocab - 1;
    if (cot_constraint_compiler_open(&compiler, tokenizer, vocab, &eos, 1, &error) != COT_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    double *mask_us = malloc(sizeof *mask_us * (size_t)schemas * (size_t)tokens),
           *compile_us = malloc(sizeof *compile_us * (size_t)schemas);
    size_t masks = 0, compiled = 0;
    for (int i = 0; mask_us && compile_us && i < schemas; i++) {
        char schema[4096];
        cot_constraint *c;
        write_schema(schema, sizeof schema);
        double began = now_us();
        if (cot_constraint_compile(&c, compiler, COT_CONSTRAINT_JSON_SCHEMA, schema, strlen(schema),
                                   &error) != COT_OK) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
        compile_us[compiled++] = now_us() - began;
        for (int t = 0; t < tokens; t++) {
            const uint32_t *mask;
            began = now_us();
            if (cot_constraint_mask(c, &mask, &error) != COT_OK) break;
            mask_us[masks++] = now_us() - began;
            const int32_t token = draw_token(mask, vocab);
            if (token == eos || cot_constraint_commit(c, token, &error) != COT_OK) break;
        }
        cot_constraint_close(c);
    }
    if (!masks) return 1;
    qsort(mask_us, masks, sizeof *mask_us, ascending);
    qsort(compile_us, compiled, sizeof *compile_us, ascending);
    printf("%lld ids, %zu schemas of 10 properties, %zu masks\n", (long long)vocab, compiled, masks);
    printf("mask: median %.1f us, p99 %.1f us, most %.1f us\n", mask_us[masks / 2], mask_us[masks * 99 / 100],
           mask_us[masks - 1]);
    printf("compile and first mask: median %.1f ms, most %.1f ms\n", compile_us[compiled / 2] / 1e3,
           compile_us[compiled - 1] / 1e3);
    free(mask_us);
    free(compile_us);
    cot_constraint_compiler_close(compiler);
    cot_tokenizer_close(tokenizer);
    return 0;
}
