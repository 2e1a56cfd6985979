/* How much there is to do, of what, and where experts are and a request had best be. */
#include "engine/engine_state.h"

void cot_engine_get_load(const cot_engine *e, cot_engine_load *load)
{
    cot_scheduler_get_load(&e->scheduler, load);
    load->steps = e->steps;
}

size_t cot_engine_sequences(const cot_engine *e, cot_engine_sequence *sequences, size_t room)
{
    return cot_scheduler_sequences(&e->scheduler, sequences, room);
}

int cot_engine_choose_home(const cot_engine *e, const cot_request *request)
{
    return cot_scheduler_choose_home(&e->scheduler, request, e->info.ranks);
}

const cot_expert_layout *cot_engine_layout(const cot_engine *e)
{
    return &e->layout;
}
