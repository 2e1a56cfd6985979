/* The fused operator's launch for many tokens, in bf16 on compute capability 9.0: fused.h's, but that tiles have 128 rows and are multiplied by
 * many.h. A block has a multiprocessor for itself, and 384 threads.
 *
 *   warps 0 to 3, 4 to 7   two teams: GATE, SEND, REPLY, COMBINE are a team's; UP and DOWN both teams', 64 rows each
 *   warps 8 and 9          bring what is multiplied; their first thread deals: it takes the block's tasks from the rank's queue
 *   warps 10 and 11        of the rank's first block the subscriber and the scheduler (in other blocks these two leave at once)
 *
 * Who deals has no task in hand itself, so it may wait for the queue while teams are at work: what they have in hand ends whether or not there
 * is another task. A team is given its tasks in order, two at most, the second one behind a product alone, where more tasks are known than there
 * are processors. What a product multiplies begins to come when the teams have ended what they had but products: then nobody keeps
 * scores where its stages come. All of a product's stages have come before the next task is waited for, which may follow from that product. */
#ifndef COT_CUDA_FUSED_MANY_H
#define COT_CUDA_FUSED_MANY_H
#include "cuda/many.h"
#include "cuda/run.h"

namespace cot {

using fused_many_engine = many_engine<256, 64>;
constexpr int FUSED_MANY_BRINGS = fused_many_engine::MULTIPLYING, // the first thread that does
    FUSED_MANY_SCRATCH = 65536;                                   // of a team's, in the first stages
constexpr int BRING_BARRIER = TEAM_BARRIER + FUSED_MANY_TEAMS, PRODUCT_BARRIER = BRING_BARRIER + 1;
static_assert(fused_many_engine::ROWS == 1 << BULK_MANY_SHIFT &&
                  fused_many_engine::SHARED_BYTES == BULK_WGMMA_BYTES &&
                  fused_many_engine::MULTIPLYING == FUSED_MANY_TEAMS * FUSED_TEAM &&
                  fused_many_engine::THREADS + 64 == BULK_WGMMA_THREADS,
              "what the host asks for");
static_assert(fused_shared_bytes(0, FUSED_EXPERTS_MOST) - sizeof(fused_shared) <= FUSED_MANY_SCRATCH &&
                  gate_tile::SHARED_BYTES <= FUSED_MANY_SCRATCH &&
                  FUSED_MANY_TEAMS * FUSED_MANY_SCRATCH <= fused_many_engine::SUMS_AT,
              "scores of all experts have room");

/* What lies in a block's shared memory. */
struct fused_many_shared {
    unsigned char *stages; // and all that many.h has
    fused_shared *teams;   // [FUSED_MANY_TEAMS]; the first one is the subscriber's and the scheduler's, too
    fused_dealt *dealt;

    __device__ __forceinline__ shared_place all() const { return place_of(stages); }
};

COT_DEVICE fused_many_shared fused_many_memory()
{
    unsigned char *const memory = static_cast<unsigned char *>(shared_memory());
    unsigned char *const stages = memory + (1024 - reinterpret_cast<uintptr_t>(memory) % 1024) % 1024;
    fused_shared *const teams =
        reinterpret_cast<fused_shared *>(stages + fused_many_engine::SHARED_BYTES - 1024);
    return {stages, teams, reinterpret_cast<fused_dealt *>(teams + FUSED_MANY_TEAMS)};
}

/* ---- teams ---- */

/* A team's n-th task, for all of its threads. */
template <scope S>
COT_DEVICE uint64_t next_of_team(const fused_warp<S> &w, const fused_dealt *dealt, uint32_t n)
{
    if (team_thread(w) == 0) {
        const uint32_t *const given = &dealt->given[w.team()];
        while (COT_EITHER(many_given_acquire, load_acquire<scope::cta>(given),
                          load_relaxed<scope::cta>(given)) == n)
            back_off();
    }
    COT_UNLESS(many_given_for_all) team_barrier(w);
    return dealt->task[w.team()][n % 2];
}

/* What is done with sums of an UP or a DOWN. */
template <scope S> COT_DEVICE auto end_of_product(const fused_warp<S> &w, uint64_t word)
{
    const int parts = parts_of_product(w, word), lane = number_of(word) / parts,
              first = number_of(word) % parts * fused_many_engine::N;
    return [down = kind_of(word) == task::down, to_up = end_up<uint16_t>(w, lane, first),
            to_down = end_down<uint16_t>(w, lane, first)](int row, int column, float v, float next) {
        if (down)
            to_down(row, column, v, next);
        else
            to_up(row, column, v, next);
    };
}

/* A team's half of an UP or a DOWN; when both have it, what follows is told. */
template <scope S>
COT_DEVICE void run_half(const fused_warp<S> &w, const fused_many_shared &shared, uint64_t word,
                         fused_many_engine::place &at)
{
    const network &n = w.call.networks[w.rank.lane_tile[number_of(word) / parts_of_product(w, word)] < 0];
    const int k = kind_of(word) == task::up ? n.hidden : n.intermediate;
    fused_many_engine::multiply_tile(
        shared.all(), reinterpret_cast<float *>(shared.stages + fused_many_engine::SUMS_AT), at,
        (k + fused_many_engine::K - 1) / fused_many_engine::K, [&] { return end_of_product(w, word); });
    COT_UNLESS(many_product_by_both) barrier_sync(PRODUCT_BARRIER, FUSED_MANY_TEAMS * FUSED_TEAM);
    if (w.team()) return;
    note_moment(w, word, true);
    if (team_thread(w) < 32) end_task(w, word);
}

template <scope S> COT_DEVICE void work_as_team(const fused_warp<S> &w, const fused_many_shared &shared)
{
    fused_many_engine::place at;
    COT_ONE_BY_ONE
    for (uint32_t n = 0;; n++) {
        const uint64_t word = next_of_team(w, shared.dealt, n);
        if (!w.team() || !is_product(word)) note_moment(w, word, false);
        if (kind_of(word) == task::end) return;
        if (is_product(word)) {
            run_half(w, shared, word, at);
        } else {
            run_task<fused_many_engine>(w, word);
            COT_UNLESS(many_scores_before_stages) fence_async();
            COT_UNLESS(many_ended_by_all) team_barrier(w);
        }
        uint32_t *const ended = &shared.dealt->ended[w.team()];
        if (team_thread(w) == 0)
            COT_EITHER(many_ended_release, store_release<scope::cta>(ended, n + 1),
                       store_relaxed<scope::cta>(ended, n + 1));
    }
}

/* ---- those who bring ---- */

/* What the thread that deals knows beside fused_dealt: teams whose last task was a product, a bit each; whether the last task of all was. */
struct dealing {
    uint32_t products;
    bool last_is_product;
};

/* How many tasks a team has in hand. By the thread that deals. */
COT_DEVICE uint32_t in_hand(const fused_dealt *dealt, int team)
{
    const uint32_t *const ended = &dealt->ended[team];
    return load_relaxed<scope::cta>(&dealt->given[team]) -
           COT_EITHER(many_ended_acquire, load_acquire<scope::cta>(ended), load_relaxed<scope::cta>(ended));
}

COT_DEVICE void give(fused_dealt *dealt, dealing &d, int team, uint64_t word)
{
    uint32_t *const given = &dealt->given[team];
    const uint32_t n = load_relaxed<scope::cta>(given);
    dealt->task[team][n % 2] = word;
    d.products = (d.products & ~(1u << team)) | static_cast<uint32_t>(is_product(word)) << team;
    COT_EITHER(many_given_release, store_release<scope::cta>(given, n + 1),
               store_relaxed<scope::cta>(given, n + 1));
}

/* Waits until a team has nothing in hand, or both have one product and there will be a task behind it that nobody else would begin sooner. */
template <scope S>
COT_DEVICE void wait_for_hands(const fused_warp<S> &w, const fused_dealt *dealt, const dealing &d)
{
    const fused_state *const state = w.rank.state;
    for (;;) {
        const uint32_t first = in_hand(dealt, 0), second = in_hand(dealt, 1);
        if (first == 0 || second == 0) return;
        if (d.last_is_product && first == 1 && second == 1 &&
            !is_dry(w, load_relaxed<scope::gpu>(&state->published), load_relaxed<scope::gpu>(&state->next)))
            return;
        back_off();
    }
}

/* Takes tasks and gives them to teams, until there is one that all have, a product or the end, which is told. By one thread. */
template <scope S> COT_DEVICE uint64_t deal(const fused_warp<S> &w, fused_dealt *dealt, dealing &d)
{
    for (;;) {
        wait_for_hands(w, dealt, d);
        uint32_t known;
        const uint64_t word = wait_for_task(w, add_relaxed<scope::gpu>(&w.rank.state->next, 1u), known);
        d.last_is_product = is_product(word);
        if (d.last_is_product || kind_of(word) == task::end) {
            COT_EACH (team, FUSED_MANY_TEAMS) {
                const uint32_t most = d.products >> team & 1; // whoever has another kind keeps scores
                while (in_hand(dealt, team) > COT_EITHER(many_wait_scores, most, 1u)) back_off();
                give(dealt, d, team, word);
            }
            return word;
        }
        give(dealt, d, in_hand(dealt, 0) <= in_hand(dealt, 1) ? 0 : 1, word);
    }
}

/* The tile of an UP or a DOWN, as many.h has it. */
template <scope S> COT_DEVICE many_job job_of_product(const fused_warp<S> &w, uint64_t word)
{
    const int parts = parts_of_product(w, word), lane = number_of(word) / parts,
              part = number_of(word) % parts, tile = w.rank.lane_tile[lane];
    const bool up = kind_of(word) == task::up, shared = tile < 0;
    const tile_job<uint16_t> rows =
        up ? job_of_up<fused_many_engine>(w, lane, part) : job_of_down<fused_many_engine>(w, lane, part);
    return {rows.a, rows.pick, (shared ? w.call.shared_maps : w.rank.maps) + !up,
            shared ? 0 : w.rank.tile_slot[tile], rows.n};
}

template <scope S> COT_DEVICE void deal_and_bring(const fused_warp<S> &w, const fused_many_shared &shared)
{
    const bool deals = thread_number() == FUSED_MANY_BRINGS;
    fused_dealt *const dealt = shared.dealt;
    const shared_place all = shared.all();
    fused_many_engine::bringing b;
    dealing d = {};
    COT_EACH (i, 2) {
        fused_many_engine::know(w.rank.maps + i);
        if (w.call.networks[1].intermediate) fused_many_engine::know(w.call.shared_maps + i);
    }
    COT_ONE_BY_ONE
    for (uint32_t n = 0;; n++) {
        if (deals) dealt->brought[n % 2] = deal(w, dealt, d);
        COT_UNLESS(many_dealt_for_all) barrier_sync(BRING_BARRIER, fused_many_engine::BRINGING);
        const uint64_t word = dealt->brought[n % 2];
        if (kind_of(word) == task::end) return;
        fused_many_engine::bring_tile(all, b, job_of_product(w, word));
        COT_UNLESS(many_brought_before_next) fused_many_engine::bring_last(all, b);
    }
}

/* What a thread knows of the call, of a team or of none. */
template <scope S>
COT_DEVICE fused_warp<S> many_warp(const cot_cuda_fused &c, const fused_many_shared &shared,
                                   bool teams = false)
{
    const int r = rank_of_block(c, static_cast<int>(blockIdx.x));
    const int team = teams ? thread_number() / FUSED_TEAM : 0;
    const fused_rank &rank = c.ranks[r];
    fused_warp<S> w = {c,
                       rank,
                       c.fabric,
                       epoch_of_call(*rank.state),
                       shared.teams + team,
                       shared.stages + team * FUSED_MANY_SCRATCH,
                       rank.tokens[0],
                       rank.tokens[1],
                       teams};
    w.net.rank = r;
    return w;
}

/* By one thread for each team, for the subscriber and the scheduler, and for who deals. */
template <scope S> COT_DEVICE void leave_many(const fused_warp<S> &w)
{
    leave(w.rank.state, static_cast<uint32_t>((FUSED_MANY_TEAMS + 1) * w.processors() + 2));
}

/* What is known of a call is worked out by each kind of warps for itself, behind what tells how many registers they have. */
template <scope S> COT_DEVICE void run_fused_many(const cot_cuda_fused &c)
{
    if (thread_number() == 0) {
        const fused_many_shared shared = fused_many_memory();
        fused_warp<S> w = many_warp<S>(c, shared);
        begin_rank(w);
        COT_EACH (team, FUSED_MANY_TEAMS) {
            w.shared = shared.teams + team;
            begin_team<fused_many_engine>(w);
        }
        *shared.dealt = {};
    }
    fused_many_engine::begin(fused_many_memory().all());
    /* A launch gives all threads 168: sums take 128 of them. */
    if (thread_number() < FUSED_MANY_BRINGS) {
        take_registers<216>();
        const fused_many_shared shared = fused_many_memory();
        const fused_warp<S> w = many_warp<S>(c, shared, true);
        work_as_team(w, shared);
        if (team_thread(w) == 0) leave_many(w);
        return;
    }
    give_registers<72>();
    constexpr int BRINGING_WARPS = fused_many_engine::BRINGING / 32;
    const int block = static_cast<int>(blockIdx.x), warp = (thread_number() - FUSED_MANY_BRINGS) / 32;
    if (warp >= BRINGING_WARPS && block != c.first_block[rank_of_block(c, block)]) return;
    const fused_many_shared shared = fused_many_memory();
    const fused_warp<S> w = many_warp<S>(c, shared);
    if (warp < BRINGING_WARPS) {
        deal_and_bring(w, shared);
        if (thread_number() == FUSED_MANY_BRINGS) leave_many(w);
        return;
    }
    if (warp == BRINGING_WARPS)
        subscribe(w);
    else
        run_schedule<fused_many_engine>(w);
    if (lane_of_warp() == 0) leave_many(w);
}

} // namespace cot

#endif
