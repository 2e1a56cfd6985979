#include "engine/migrate.h"

#include <stdlib.h>
#include <string.h>

static int by_size(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median_ns(const cot_migrate_budget *b)
{
    int64_t sorted[COT_MIGRATE_MEDIAN_OF];
    const size_t n = b->steps < COT_MIGRATE_MEDIAN_OF ? (size_t)b->steps : (size_t)COT_MIGRATE_MEDIAN_OF;
    memcpy(sorted, b->step_ns, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_size);
    return (double)sorted[n / 2];
}

static int64_t clamp(double bytes)
{
    return bytes < COT_MIGRATE_LEAST_BYTES  ? COT_MIGRATE_LEAST_BYTES
           : bytes > COT_MIGRATE_MOST_BYTES ? COT_MIGRATE_MOST_BYTES
                                            : (int64_t)bytes;
}

/* Bytes that are saved up are those of one chunk at most. */
static int64_t allow_by_bandwidth(cot_migrate_budget *b, int64_t now_ns)
{
    if (b->looked_ns) b->credit += b->bytes_per_s * (double)(now_ns - b->looked_ns) * 1e-9;
    b->looked_ns = now_ns;
    if (b->credit > COT_MIGRATE_MOST_BYTES) b->credit = COT_MIGRATE_MOST_BYTES;
    return b->credit > 0 ? clamp(b->credit) : 0;
}

int64_t cot_migrate_allow(cot_migrate_budget *b, int64_t step_ns, int64_t now_ns)
{
    if (b->bytes_per_s > 0) return allow_by_bandwidth(b, now_ns);
    if (!step_ns) return COT_MIGRATE_MOST_BYTES;
    b->step_ns[b->steps++ % COT_MIGRATE_MEDIAN_OF] = step_ns;
    const double part_ns = b->share * median_ns(b);
    b->credit = b->credit + part_ns > part_ns ? part_ns : b->credit + part_ns;
    if (b->credit <= 0) return 0;
    return b->ns_a_byte > 0 ? clamp(b->credit / b->ns_a_byte) : COT_MIGRATE_LEAST_BYTES;
}

int64_t cot_migrate_longest_ns(const cot_migrate_budget *b, int64_t bytes, int64_t timeout_ns)
{
    const double forever = 1e18,
                 ns_a_byte = b->bytes_per_s > 0 ? 1e9 / b->bytes_per_s : b->ns_a_byte / b->share,
                 ns = (double)bytes * ns_a_byte + (double)timeout_ns;
    return ns_a_byte > 0 && ns < forever ? (int64_t)ns : INT64_MAX;
}

void cot_migrate_pay(cot_migrate_budget *b, int64_t bytes, int64_t ns)
{
    b->credit -= b->bytes_per_s > 0 ? (double)bytes : (double)ns;
    if (bytes <= 0) return;
    const double now = (double)ns / (double)bytes;
    b->ns_a_byte = b->ns_a_byte > 0 ? b->ns_a_byte + (now - b->ns_a_byte) / 8 : now;
}
