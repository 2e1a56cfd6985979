#include "cli/run/stats.h"

#include "cli/frame/command.h"
#include "cli/frame/paths.h"
#include "cli/frame/terminal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static uint64_t sum(const uint64_t *matrix, int ranks)
{
    uint64_t total = 0;
    for (int i = 0; i < ranks * ranks; i++) total += matrix[i];
    return total;
}

static double per_second(int64_t n, int64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

static int64_t total_ns(const cot_stats *s)
{
    int64_t total = 0;
    for (int i = 0; i < COT_STATS_TIMES; i++) total += s->times[i].ns;
    return total;
}

static void print_table(const cot_stats *s)
{
    int64_t tokens = s->prefill_tokens + s->decode_tokens, ns = total_ns(s);
    cli_heading(stderr, "\n%-16s %14s %10s %8s %12s\n", "phase", "bytes", "messages", "rounds",
                "bytes/token");
    uint64_t bytes = 0, messages = 0, rounds = 0;
    for (int p = 0; p < COT_STATS_PHASES; p++) {
        uint64_t b = sum(s->bytes[p], s->ranks), m = sum(s->messages[p], s->ranks);
        fprintf(stderr, "%-16s %14llu %10llu %8llu %12.0f\n", cot_engine_phases()[p], (unsigned long long)b,
                (unsigned long long)m, (unsigned long long)s->rounds[p],
                tokens ? (double)b / (double)tokens : 0);
        bytes += b;
        messages += m;
        rounds += s->rounds[p];
    }
    fprintf(stderr, "%-16s %14llu %10llu %8llu %12.0f\n", "all", (unsigned long long)bytes,
            (unsigned long long)messages, (unsigned long long)rounds,
            tokens ? (double)bytes / (double)tokens : 0);
    fprintf(stderr, "\nlocal activation rate %.3f, distinct remote ranks a token %.2f (%d ranks)\n", s->lar,
            s->remote_ranks, s->ranks);
    fprintf(stderr, "prefill %lld tokens at %.1f tokens/s, decode %lld tokens at %.1f tokens/s\n",
            (long long)s->prefill_tokens, per_second(s->prefill_tokens, s->prefill_ns),
            (long long)s->decode_tokens, per_second(s->decode_tokens, s->decode_ns));
    if (!ns) return;
    fprintf(stderr, "time, all ranks, waiting included:");
    for (int i = 0, shown = 0; i < COT_STATS_TIMES; i++)
        if (200 * s->times[i].ns >= ns)
            fprintf(stderr, "%s %s %.0f %%", shown++ ? "," : "", s->times[i].name,
                    100.0 * (double)s->times[i].ns / (double)ns);
    fprintf(stderr, "\n");
}

static json_t *matrix_json(const uint64_t *matrix, int ranks)
{
    json_t *rows = json_array();
    for (int from = 0; from < ranks; from++) {
        json_t *row = json_array();
        for (int to = 0; to < ranks; to++)
            json_array_append_new(row, json_integer((json_int_t)matrix[from * ranks + to]));
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *stats_json(const cot_stats *s)
{
    json_t *phases = json_object(), *times = json_object();
    for (int p = 0; p < COT_STATS_PHASES; p++)
        json_object_set_new(phases, cot_engine_phases()[p],
                            json_pack("{s:o, s:o, s:I}", "bytes", matrix_json(s->bytes[p], s->ranks),
                                      "messages", matrix_json(s->messages[p], s->ranks), "rounds",
                                      (json_int_t)s->rounds[p]));
    for (int i = 0; i < COT_STATS_TIMES; i++)
        json_object_set_new(times, s->times[i].name, json_integer(s->times[i].ns));
    return json_pack("{s:i, s:o, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:f, s:f}",
                     "ranks", s->ranks, "phases", phases, "lar", s->lar, "remote_ranks", s->remote_ranks,
                     "activations", (json_int_t)s->activations, "local_activations",
                     (json_int_t)s->local_activations, "steps", (json_int_t)s->steps, "prefill_tokens",
                     (json_int_t)s->prefill_tokens, "decode_tokens", (json_int_t)s->decode_tokens,
                     "prefill_ns", (json_int_t)s->prefill_ns, "decode_ns", (json_int_t)s->decode_ns,
                     "prefill_read_bytes", (json_int_t)s->prefill_read_bytes, "decode_read_bytes",
                     (json_int_t)s->decode_read_bytes, "times_ns", times, "prefill_tokens_per_second",
                     per_second(s->prefill_tokens, s->prefill_ns), "decode_tokens_per_second",
                     per_second(s->decode_tokens, s->decode_ns));
}

bool cli_show_stats(cot_engine *engine, cli_optional_text wanted)
{
    if (!wanted.given) return true;
    cot_stats stats;
    cot_error error;
    if (cot_engine_stats(engine, &stats, &error) != COT_OK) {
        cli_complain_of(&error);
        return false;
    }
    bool good = true;
    if (wanted.text)
        good = cli_write_json(wanted.text, stats_json(&stats));
    else
        print_table(&stats);
    cot_stats_clear(&stats);
    return good;
}
