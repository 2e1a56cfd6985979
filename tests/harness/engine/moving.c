#include "harness/engine/moving.h"

#include "harness/engine/golden.h"
#include "harness/memory.h"

#include "engine/engine_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct setting moving_setting(const char *name, char path[1024], int ranks, int32_t spare)
{
    return moving_file(name, "", path, ranks, spare);
}

struct setting moving_file(const char *name, const char *file, char path[1024], int ranks, int32_t spare)
{
    golden_path(path, name, file);
    struct setting s = {.folder = path,
                        .ranks = ranks,
                        .attention = "tp",
                        .precision = "fp32",
                        .step_tokens = 24,
                        .sequences = 8};
    cot_engine *engine = must_open(&s); // how many slots are needed
    s.expert_slots = engine->layout.slots_per_rank + spare;
    cot_engine_close(engine);
    return s;
}

struct setting moving_way(size_t way, char path[1024], int ranks)
{
    static const struct {
        const char *name, *op, *attention, *dedup;
        bool processes;
        int64_t step_tokens;
    } ways[MOVING_WAYS] = {{"olmoe", "fused", "tp", NULL, false, 3},
                           {"mixtral", "bulk", "dp", NULL, false, 24},
                           {"qwen2-moe", "bulk", "tp", "on", false, 24},
                           {"gpt-oss", "fused", "dp", NULL, true, 5},
                           {"deepseek-v3", "fused", "tp", NULL, true, 24}};
    struct setting s = moving_setting(ways[way].name, path, ranks, 2);
    s.op = ways[way].op;
    s.attention = ways[way].attention;
    s.dedup = ways[way].dedup;
    s.processes = ways[way].processes;
    s.step_tokens = ways[way].step_tokens;
    return s;
}

struct setting in_a_pool(struct setting s)
{
    s.expert_slots--;
    s.movable = true;
    return s;
}

int moving_rank(int ranks, bool movable, void (*live)(cot_engine *engine))
{
    char path[1024];
    golden_path(path, "olmoe", "");
    cot_engine_options options;
    cot_engine_options_init(&options);
    options.group.ranks = ranks;
    options.group.fabric = "shmem";
    options.weights.precision = "fp32";
    options.watch.capture_routing = true;
    options.experts.slots = movable ? 5 : 6;
    options.experts.movable = movable;
    options.batch.step_tokens = 24;
    cot_engine *engine;
    cot_error error;
    const cot_status status = cot_engine_open(&engine, path, &options, NULL, &error);
    if (status == COT_SERVED) return 0;
    if (status != COT_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    live(engine);
    cot_engine_close(engine);
    return 0;
}

static void put_turned(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                       cot_phase phase)
{
    const struct turned_puts *puts = (const struct turned_puts *)fabric->ops; // its first member
    uint8_t *turned = must_allocate(bytes, 1);
    memcpy(turned, data, bytes);
    turned[bytes / 2] ^= 4;
    puts->own->put(fabric, to, where, turned, bytes, phase);
    free(turned);
}

void turn_puts(struct turned_puts *puts, cot_fabric *fabric)
{
    *puts = (struct turned_puts){*fabric->ops, fabric->ops};
    puts->ops.put = put_turned;
    fabric->ops = &puts->ops;
}
