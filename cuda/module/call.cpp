/* A call that all ranks have arrived for: copies, launches and what they have left. */
#include "cuda/module/group_parts.h"

#include "cuda/module/weights.h"

#include <string.h>

/* What is copied, one thing behind the other and nothing waited for, and the first that goes wrong. */
struct calling {
    cot_cuda_group *g;
    cot_status status;
};

static void check(calling *c, int result, const char *what)
{
    if (c->status == COT_OK) c->status = cot_cuda_check(c->g->device->driver, result, what, &c->g->error);
}
static void to_device(calling *c, uint64_t to, const void *from, size_t bytes)
{
    if (c->status == COT_OK && bytes)
        check(c, c->g->device->driver->to_device_async(to, from, bytes, nullptr), "take data");
}
static void to_host(calling *c, void *to, uint64_t from, size_t bytes)
{
    if (c->status == COT_OK && bytes)
        check(c, c->g->device->driver->to_host_async(to, from, bytes, nullptr), "give data");
}

template <typename T> static const T *kept_at(calling *c, const T *host)
{
    if (!host || c->status != COT_OK) return nullptr;
    const cot_cuda_kept *const found = cot_cuda_find_kept(c->g, host, 0, 0);
    if (!found)
        c->status =
            cot_fail(&c->g->error, COT_INVALID_ARGUMENT, "the device was not given a layer's weights");
    return found ? reinterpret_cast<const T *>(found->at) : nullptr;
}

/* The maps of what is kept, where the group has some. */
static const cot::tile_map *maps_of(const cot_cuda_group *g, const cot_cuda_kept *kept)
{
    if (!kept || !has_maps(g)) return nullptr;
    return reinterpret_cast<const cot::tile_map *>(kept->at + kept->bytes - MAPS_BYTES);
}

/* How many rows tiles have is the whole call's, by the tokens that ranks have come with: 128 if experts have 64 rows or more on the average, and
 * with tiles of 64 rows weights would be read more than once. */
static void pick_form(cot_cuda_group *g)
{
    int64_t tokens = 0;
    for (int r = 0; r < g->ranks; r++) tokens += g->arrived[r].tokens;
    const bool by_tokens = tokens * g->options.top_k >=
                           g->options.experts * static_cast<int64_t>(cot::FUSED_TILE_ROWS),
               many = g->form == cot_cuda_form::many || (g->form == cot_cuda_form::by_tokens && by_tokens);
    g->call.tile_shift = g->many_blocks && many ? cot::BULK_MANY_SHIFT : cot::FUSED_TILE_SHIFT;
}

/* Replicas on ranks and in slots that are there, and one at least of each expert. */
static void take_placement(calling *c, const cot_expert_replicas *p)
{
    cot_cuda_group *const g = c->g;
    const int64_t experts = g->options.experts, most = g->ranks * slots_of(&g->options);
    bool sound = p->begin[0] == 0 && p->begin[experts] <= most;
    for (int64_t e = 0; e < experts && sound; e++) sound = p->begin[e] < p->begin[e + 1];
    for (int64_t i = 0; sound && i < p->begin[experts]; i++)
        sound =
            p->rank[i] >= 0 && p->rank[i] < g->ranks && p->slot[i] >= 0 && p->slot[i] < slots_of(&g->options);
    if (!sound && c->status == COT_OK)
        c->status =
            cot_fail(&g->error, COT_INVALID_ARGUMENT, "a placement has experts in slots that are not there");
    if (c->status != COT_OK) return;
    const size_t replicas = static_cast<size_t>(p->begin[experts]);
    memcpy(g->pinned + g->told.placement[0], p->rank, replicas * sizeof(int32_t));
    memcpy(g->pinned + g->told.placement[1], p->slot, replicas * sizeof(int32_t));
    memcpy(g->pinned + g->told.placement[2], p->begin, static_cast<size_t>(experts + 1) * sizeof(int32_t));
}

static void take_layer(calling *c, const cot_moe_layer *layer)
{
    cot_cuda_group *const g = c->g;
    const cot_gate *const gate = layer->gate;
    cot_cuda_fused *const call = &g->call;
    call->routing = !gate                     ? cot::routing::given
                    : layer->replayed_experts ? cot::routing::replayed
                                              : cot::routing::gated;
    call->unsound_pass = layer->unsound_pass;
    call->gate = {};
    if (gate) {
        call->gate.score = static_cast<cot::gate_score>(gate->score);
        call->gate.groups = static_cast<int32_t>(gate->groups);
        call->gate.group_limit = static_cast<int32_t>(gate->group_limit);
        call->gate.group_score = static_cast<cot::gate_group_score>(gate->group_score);
        call->gate.normalise = gate->normalise;
        call->gate.epsilon = gate->epsilon;
        call->gate.scaling = gate->scaling;
        call->gate.weight = kept_at(c, gate->weight);
        call->gate.bias = kept_at(c, gate->bias);
        call->gate.correction = kept_at(c, gate->correction);
    }
    call->gate.hidden = static_cast<int32_t>(g->options.expert.hidden);
    call->gate.experts = static_cast<int32_t>(g->options.experts);
    call->gate.top_k = static_cast<int32_t>(g->options.top_k);
    call->networks[1] = {};
    if (layer->shared) call->networks[1] = cot_cuda_network_of(&g->options.shared);
    call->shared_weights = kept_at(c, layer->shared);
    call->shared_maps = layer->shared ? maps_of(g, cot_cuda_find_kept(g, layer->shared, 0, 0)) : nullptr;
    call->shared_gate = layer->shared ? kept_at(c, layer->shared_gate) : nullptr;
    take_placement(c, &layer->placement);
    for (int r = 0; r < g->ranks && c->status == COT_OK; r++) {
        const cot_cuda_kept *const slots = cot_cuda_find_kept(g, nullptr, g->arrived[r].layer->slots, r);
        g->rank[r].maps = maps_of(g, slots);
        if (slots)
            g->rank[r].slots = reinterpret_cast<const unsigned char *>(slots->at);
        else
            c->status =
                cot_fail(&g->error, COT_INVALID_ARGUMENT, "the device was not given rank %d's experts", r);
    }
}

/* Rows and routings that are inputs, where they come from the host. */
static void take_rows(calling *c, int r)
{
    cot_cuda_group *const g = c->g;
    const cot_cuda_arrival *const a = &g->arrived[r];
    const cot_moe_layer *const layer = a->layer;
    const size_t rows = static_cast<size_t>(a->tokens), h = static_cast<size_t>(g->options.expert.hidden),
                 choices = rows * static_cast<size_t>(g->options.top_k);
    if (!a->on_device) to_device(c, g->x[r], a->x, rows * h * sizeof(float));
    if (layer->gate && layer->replayed_experts) {
        to_device(c, g->experts[r], layer->replayed_experts, choices * sizeof(uint16_t));
        to_device(c, g->weights[r], layer->replayed_weights, choices * sizeof(float));
    } else if (!layer->gate && !a->on_device) {
        to_device(c, g->experts[r], a->experts, choices * sizeof(uint16_t));
        to_device(c, g->weights[r], a->weights, choices * sizeof(float));
    }
}

/* Where a pass that begins with token `first` of each rank finds and leaves its rows. */
static void point_ranks(calling *c, int64_t first)
{
    cot_cuda_group *const g = c->g;
    for (int r = 0; r < g->ranks; r++) {
        const cot_cuda_arrival *const a = &g->arrived[r];
        const int64_t left = a->tokens - first, h = g->options.expert.hidden, k = g->options.top_k;
        const bool own_routing = a->on_device && g->call.routing != cot::routing::replayed;
        cot::fused_rank *const d = &g->rank[r];
        const int32_t words[2] = {
            static_cast<int32_t>(left < 0 ? 0 : cot_smaller(left, g->call.layout.tokens)),
            static_cast<int32_t>(first)};
        const size_t tokens = g->told.tokens + static_cast<size_t>(r) * sizeof words;
        memcpy(g->pinned + tokens, words, sizeof words);
        d->tokens = reinterpret_cast<const int32_t *>(g->told_at + tokens);
        d->x = (a->on_device ? a->x : reinterpret_cast<const float *>(g->x[r])) + first * h;
        d->y = (a->on_device ? a->y : reinterpret_cast<float *>(g->y[r])) + first * h;
        d->experts = (own_routing ? a->experts : reinterpret_cast<uint16_t *>(g->experts[r])) + first * k;
        d->weights = (own_routing ? a->weights : reinterpret_cast<float *>(g->weights[r])) + first * k;
    }
    memcpy(g->pinned, g->rank, static_cast<size_t>(g->ranks) * sizeof g->rank[0]);
    to_device(c, g->told_at, g->pinned, g->told.bytes);
}

static cot_status explain_failure(cot_cuda_group *g, uint64_t failure)
{
    const int rank = static_cast<int>(failure >> 56 & 0x7f), peer = static_cast<int>(failure >> 48 & 0xff),
              phase = static_cast<int>(failure >> 40 & 0xff);
    return cot_fail(&g->error, COT_TIMED_OUT,
                    "on the device rank %d did not answer rank %d in '%s' (call %llu) within %.1f s", peer,
                    rank, phase < COT_PHASES ? cot_phase_name(static_cast<cot_phase>(phase)) : "?",
                    static_cast<unsigned long long>(failure & 0xffffffffff),
                    static_cast<double>(g->call.fabric.timeout_ns) / 1e9);
}

/* What the launches have left. All ranks say the same, but which of their own tokens it was. A rank that has not come to the last
 * launch's epoch did not run, whatever it says. */
static void judge(calling *c)
{
    cot_cuda_group *const g = c->g;
    cot::fused_state state[COT_MAX_RANKS];
    uint64_t failure = 0;
    if (c->status != COT_OK) return;
    memcpy(&failure, g->left + static_cast<size_t>(g->ranks) * STATE_BYTES, sizeof failure);
    for (int r = 0; r < g->ranks; r++)
        memcpy(&state[r], g->left + static_cast<size_t>(r) * STATE_BYTES, sizeof state[r]);
    if (failure) c->status = explain_failure(g, failure);
    for (int r = 0; r < g->ranks && c->status == COT_OK; r++)
        if (state[r].epoch != g->epoch)
            c->status = cot_fail(&g->error, COT_IO,
                                 "'%s' ran %llu of %llu launches for rank %d, and told of no error",
                                 g->device->name, static_cast<unsigned long long>(state[r].epoch),
                                 static_cast<unsigned long long>(g->epoch), r);
    if (c->status != COT_OK) return;
    for (int r = g->ranks - 1; r >= 0; r--) {
        if (state[r].outcome == static_cast<int32_t>(cot::outcome::empty))
            c->status = cot_moe_fail_empty(&g->error);
        else if (state[r].outcome == static_cast<int32_t>(cot::outcome::unsound) &&
                 state[r].unsound_token != -1)
            c->status = cot_moe_fail_with(r, &g->error); // the lowest such rank
        else if (state[r].outcome == static_cast<int32_t>(cot::outcome::unsound) && c->status == COT_OK)
            c->status = COT_INVALID_ARGUMENT;
    }
}

/* One pass: a launch, or one of each phase, before which its event is recorded where there are some. */
static void launch(calling *c, void *const *events = nullptr)
{
    cot_cuda_group *const g = c->g;
    const cot_cuda_driver *const driver = g->device->driver;
    const int type = g->options.expert.type == COT_BF16 ? 0 : 1;
    const unsigned blocks = static_cast<unsigned>(g->blocks),
                   many_blocks = static_cast<unsigned>(g->many_blocks);
    const bool is_many = g->call.tile_shift == cot::BULK_MANY_SHIFT;
    cot_cuda_fused many = g->call; // for blocks that are fewer
    many.first_block = g->many_first_block;
    void *parameters[] = {&g->call}, *many_parameters[] = {&many};
    g->epoch++;
    if (c->status == COT_OK && g->kind == cot_cuda_kind::fused) {
        check(c,
              is_many ? driver->launch_cooperative(g->device->fused_many, many_blocks, 1, 1,
                                                   cot::BULK_WGMMA_THREADS, 1, 1, cot::FUSED_MANY_BYTES,
                                                   nullptr, many_parameters)
                      : driver->launch_cooperative(g->device->fused[type], blocks, 1, 1, cot::FUSED_THREADS,
                                                   1, 1, static_cast<unsigned>(g->shared_bytes[0]), nullptr,
                                                   parameters),
              "launch");
        g->launches++;
    }
    for (int i = 0; i < COT_CUDA_PHASES && c->status == COT_OK && g->kind == cot_cuda_kind::bulk; i++) {
        const bool receive = i == COT_CUDA_RECEIVE; // a warp for each rank
        if (events) check(c, driver->event_record(events[i], nullptr), "record an event");
        if (is_many && (i == COT_CUDA_UP || i == COT_CUDA_DOWN))
            check(c,
                  driver->launch(g->device->many[i - COT_CUDA_UP], many_blocks, 1, 1, g->device->many_threads,
                                 1, 1, static_cast<unsigned>(g->device->many_bytes), nullptr, many_parameters,
                                 nullptr),
                  "launch");
        else
            check(c,
                  driver->launch(g->device->bulk[type][i], receive ? static_cast<unsigned>(g->ranks) : blocks,
                                 1, 1, receive ? 32 : cot::FUSED_TEAM, 1, 1,
                                 static_cast<unsigned>(g->shared_bytes[i]), nullptr, parameters, nullptr),
                  "launch");
        g->launches++;
    }
}

static void wait_for_all(calling *c)
{
    if (c->status == COT_OK) check(c, c->g->device->driver->synchronise(), "run");
}

/* Waits for what is launched, and judges it. */
static void end_launches(calling *c)
{
    cot_cuda_group *const g = c->g;
    to_host(c, g->left, g->states, states_bytes(g->ranks));
    wait_for_all(c);
    judge(c);
    g->spoilt = g->spoilt || (c->status != COT_OK && c->status != COT_INVALID_ARGUMENT);
}

static void give_rows(calling *c, int r)
{
    cot_cuda_group *const g = c->g;
    const cot_cuda_arrival *const a = &g->arrived[r];
    const size_t rows = static_cast<size_t>(a->tokens), h = static_cast<size_t>(g->options.expert.hidden),
                 choices = rows * static_cast<size_t>(g->options.top_k);
    if (a->on_device) return;
    to_host(c, a->y, g->y[r], rows * h * sizeof(float));
    if (!a->layer->gate) return;
    to_host(c, a->experts, g->experts[r], choices * sizeof(uint16_t));
    to_host(c, a->weights, g->weights[r], choices * sizeof(float));
}

/* Of rows that are in the device's memory: kernels read and write them where they are. */
static void check_alignment(calling *c, int r)
{
    cot_cuda_group *const g = c->g;
    const cot_cuda_arrival *const a = &g->arrived[r];
    const struct {
        const char *name;
        const void *at;
        size_t bytes;
    } all[] = {{"rows of x", a->x, g->options.expert.hidden % 4 ? sizeof(float) : 16},
               {"rows of y", a->y, sizeof(float)},
               {"experts", a->experts, sizeof(uint16_t)},
               {"weights", a->weights, sizeof(float)}};
    if (!a->on_device || !a->tokens) return;
    for (const auto &one : all)
        if (c->status == COT_OK && reinterpret_cast<uint64_t>(one.at) % one.bytes)
            c->status = cot_fail(&g->error, COT_INVALID_ARGUMENT,
                                 "rank %d's %s are at an address of the device's that %zu does not divide", r,
                                 one.name, one.bytes);
}

void cot_cuda_group_run(cot_cuda_group *g)
{
    calling c = {g, COT_OK};
    const cot_cuda_driver *const driver = g->device->driver;
    const cot_moe_layer *const layer = g->arrived[0].layer;
    const uint64_t counters_at = reinterpret_cast<uint64_t>(g->call.fabric.counters);
    const auto give_all = [&] {
        for (int r = 0; r < g->ranks; r++) give_rows(&c, r);
    };
    int64_t most = 0;
    for (int r = 0; r < g->ranks; r++) most = cot_larger(most, g->arrived[r].tokens);
    g->launches = 0;
    g->passes = cot_larger(cot_divide_up(most, g->call.layout.tokens), 1);
    const cot_cuda_current current(g->device);
    c.status = current.check(&g->error);
    for (int r = 0; r < g->ranks; r++) check_alignment(&c, r);
    if (c.status == COT_OK && g->spoilt) c.status = cot_cuda_make_ready(g, &g->error);
    if (c.status == COT_OK) check(&c, driver->fill(counters_at, 0, counters_bytes(g->ranks)), "clear memory");
    take_layer(&c, layer);
    pick_form(g);
    for (int r = 0; r < g->ranks; r++) take_rows(&c, r);
    for (int64_t pass = 0; pass < g->passes && c.status == COT_OK; pass++) {
        const bool last = pass == g->passes - 1;
        point_ranks(&c, pass * g->call.layout.tokens);
        launch(&c);
        if (last) to_host(&c, g->traffic, counters_at, counters_bytes(g->ranks));
        if (last && layer->unsound_pass) give_all(); // no such call is refused
        end_launches(&c);
    }
    if (c.status == COT_OK && !layer->unsound_pass) { // what is refused leaves the caller's as they were
        give_all();
        wait_for_all(&c);
    }
    if (c.status != COT_OK)
        driver->synchronise(); // what is on its way to or from memory that is the caller's again
    g->status = c.status;
}

/* Events that tell times, while this lives. */
template <int COUNT> struct timing {
    calling *c;
    void *events[COUNT] = {};

    explicit timing(calling *calls) : c(calls)
    {
        for (void *&event : events)
            if (c->status == COT_OK) check(c, c->g->device->driver->event_create(&event, 0), "make an event");
    }
    ~timing()
    {
        for (void *event : events)
            if (event) c->g->device->driver->event_destroy(event);
    }
    timing(const timing &) = delete;

    void record(int i)
    {
        if (c->status == COT_OK)
            check(c, c->g->device->driver->event_record(events[i], nullptr), "record an event");
    }
    /* ns from the i-th to the next, once all has ended. */
    double told(int i)
    {
        float ms = 0;
        if (c->status == COT_OK)
            check(c, c->g->device->driver->event_elapsed(&ms, events[i], events[i + 1]), "tell a time");
        return static_cast<double>(ms) * 1e6;
    }
};

cot_status cot_cuda_group_replay(cot_cuda_group *g, int count, uint64_t slots, int tables, double *ns,
                                 cot_error *error)
{
    calling c = {g, COT_OK};
    const int32_t *const own = g->call.replica_slot, *const first = reinterpret_cast<const int32_t *>(slots);
    const int replicas = g->arrived[0].layer->placement.begin[g->options.experts];
    const cot_cuda_current current(g->device);
    c.status = current.check(&g->error);
    timing<2> times(&c);
    times.record(0);
    for (int i = 0; i < count && c.status == COT_OK; i++) {
        g->call.replica_slot = first + static_cast<int64_t>(i % tables) * replicas;
        launch(&c);
    }
    g->call.replica_slot = own;
    times.record(1);
    end_launches(&c);
    *ns = times.told(0);
    if (c.status != COT_OK) cot_fail(error, c.status, "%s", g->error.message);
    return c.status;
}

cot_status cot_cuda_group_replay_phases(cot_cuda_group *g, uint64_t slots, double ns[COT_CUDA_PHASES],
                                        cot_error *error)
{
    assert(g->kind == cot_cuda_kind::bulk);
    calling c = {g, COT_OK};
    const int32_t *const own = g->call.replica_slot;
    const cot_cuda_current current(g->device);
    c.status = current.check(&g->error);
    timing<COT_CUDA_PHASES + 1> times(&c);
    g->call.replica_slot = reinterpret_cast<const int32_t *>(slots);
    if (c.status == COT_OK) launch(&c, times.events);
    g->call.replica_slot = own;
    times.record(COT_CUDA_PHASES);
    end_launches(&c);
    for (int i = 0; i < COT_CUDA_PHASES; i++) ns[i] = times.told(i);
    if (c.status != COT_OK) cot_fail(error, c.status, "%s", g->error.message);
    return c.status;
}
