#include "harness/engine/settings.h"

#include "harness/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

cot_engine_options options_of(const struct setting *s)
{
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.group.ranks = s->ranks ? s->ranks : 1;
    o.group.threads = s->threads;
    if (s->attention) o.attention.mode = s->attention;
    o.weights.precision = s->precision ? s->precision : "fp32";
    o.weights.networks = s->weights;
    o.weights.attention = s->weights_attention;
    o.weights.head = s->weights_head;
    o.group.isa = s->isa;
    o.experts.op = s->op;
    if (s->combine) o.experts.combine = s->combine;
    if (s->step_tokens) o.batch.step_tokens = s->step_tokens;
    o.memory.kv_tokens = s->kv_tokens;
    o.memory.block_tokens = s->block_tokens;
    if (s->sequences) o.batch.sequences = s->sequences;
    o.group.fabric = s->processes ? "processes" : NULL;
    o.watch.capture_routing = !s->quiet;
    o.watch.count_exchanges = s->counts_exchanges;
    o.experts.placement = s->placement;
    o.experts.tables = s->tables;
    o.attention.pipeline = s->pipeline;
    o.attention.predict = s->predict;
    o.attention.collective = s->collective;
    o.experts.a2a = s->a2a;
    o.experts.dedup = s->dedup;
    o.experts.slots = s->expert_slots;
    o.experts.movable = s->movable;
    o.experts.routing = s->routing;
    o.watch.popularity_half_life = s->half_life;
    o.batch.home_by = s->home_by;
    o.batch.schedule = s->schedule;
    return o;
}

cot_engine *must_open(const struct setting *s)
{
    cot_engine_options options = options_of(s);
    cot_engine *engine;
    cot_error error = {0};
    char *notes;
    fflush(stdout); // a forked rank may flush its copy, too
    if (cot_engine_open(&engine, s->folder, &options, &notes, &error) != COT_OK)
        fail_msg("%s", error.message);
    free(notes);
    return engine;
}
