#include "harness/engine/settings.h"

#include "harness/cmocka.h"

#include <stdio.h>
#include <stdlib.h>

cot_engine_options options_of(const struct setting *s)
{
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.ranks = s->ranks ? s->ranks : 1;
    o.threads = s->threads;
    if (s->attention) o.attention = s->attention;
    o.precision = s->precision ? s->precision : "fp32";
    o.weights = s->weights;
    o.weights_attention = s->weights_attention;
    o.weights_head = s->weights_head;
    o.isa = s->isa;
    o.op = s->op;
    if (s->combine) o.combine = s->combine;
    if (s->step_tokens) o.step_tokens = s->step_tokens;
    o.kv_tokens = s->kv_tokens;
    o.block_tokens = s->block_tokens;
    if (s->sequences) o.sequences = s->sequences;
    o.fabric = s->processes ? "processes" : NULL;
    o.capture_routing = !s->quiet;
    o.count_exchanges = s->counts_exchanges;
    o.placement = s->placement;
    o.tables = s->tables;
    o.pipeline = s->pipeline;
    o.predict = s->predict;
    o.collective = s->collective;
    o.a2a = s->a2a;
    o.dedup = s->dedup;
    o.expert_slots = s->expert_slots;
    o.routing = s->routing;
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
