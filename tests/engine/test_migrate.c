/* Moves of experts one by one: what the protocol commands for a copy, a drop, a swap, a ring of ranks, and what becomes of a move
 * that is too late, differs, has no place, is refused, cannot be taken or is cancelled in each of its states. And what may be sent
 * behind a step. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "engine/migrate.h"
#include "placement/epoch.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, EXPERTS = 6, SLOTS = 3, PLACES = RANKS * SLOTS, SLOT_BYTES = 100 };

static void layout_of(const int32_t *slot, int32_t layers, cot_expert_layout *l)
{
    cot_expert_map map;
    static const int32_t numbers[] = {0, 1, 2};
    assert_int_equal(cot_expert_map_new(&map, layers, EXPERTS, RANKS, SLOTS, NULL), COT_OK);
    memcpy(map.expert, slot, (size_t)(layers * PLACES) * sizeof *slot);
    const cot_expert_layout_shape shape = {layers, EXPERTS, RANKS, numbers, SLOTS};
    assert_int_equal(cot_expert_layout_of_map(l, &shape, &map, "a", NULL), COT_OK);
    cot_expert_map_free(&map);
}

/* `place` [layers][PLACES], of each rank's pool. */
static void open_layers(cot_migrate *m, int32_t layers, bool transit, const int32_t *now, const int32_t *to,
                        int32_t *place)
{
    static const int64_t slot_bytes[] = {SLOT_BYTES, SLOT_BYTES, SLOT_BYTES};
    const cot_migrate_options options = {slot_bytes, 50, 2, transit, place, NULL};
    cot_expert_layout from, target;
    layout_of(now, layers, &from);
    layout_of(to, layers, &target);
    assert_int_equal(cot_migrate_open(m, &options, &from, &target, NULL), COT_OK);
    cot_expert_layout_free(&from);
    cot_expert_layout_free(&target);
}

static void open_from(cot_migrate *m, const int32_t now[PLACES], const int32_t to[PLACES])
{
    static int32_t place[PLACES];
    for (int i = 0; i < PLACES; i++) place[i] = i % SLOTS;
    open_layers(m, 1, false, now, to, place);
}

static cot_migrate_command next(cot_migrate *m, int64_t bytes, int64_t now_ns)
{
    cot_migrate_command c;
    assert_int_equal(cot_migrate_next(m, &c, bytes, now_ns, NULL), COT_OK);
    return c;
}

/* Two experts a rank, and a free slot. */
static const int32_t even[PLACES] = {0, 1, -1, 2, 3, -1, 4, 5, -1};

/* Runs to the end, all chunks whole; returns the copies of each command added up, and the epochs. */
static void run(cot_migrate *m, int *commands, int *chunks, int *epochs)
{
    *commands = *chunks = *epochs = 0;
    for (cot_migrate_command c = next(m, SLOT_BYTES, 0); c.kind != COT_MIGRATE_OVER;
         c = next(m, SLOT_BYTES, 0)) {
        assert_int_not_equal(c.kind, COT_MIGRATE_NOTHING);
        if (c.kind == COT_MIGRATE_PLACE) {
            cot_migrate_placed(m, true);
            ++*epochs;
            continue;
        }
        ++*commands;
        *chunks += c.chunks;
        cot_runner_chunk sent[RANKS];
        memcpy(sent, c.chunk, (size_t)c.chunks * sizeof *sent);
        for (int i = 0; i < c.chunks; i++) cot_migrate_copied(m, sent[i].move, COT_RUNNER_SAME);
    }
}

static void assert_holds(const cot_migrate *m, const int32_t to[PLACES])
{
    for (int r = 0; r < RANKS * m->now.n_layers; r++) // ranks of one layer, of the next
        for (int32_t e = 0; e < EXPERTS; e++) {
            int has = 0, wants = 0;
            for (int s = 0; s < SLOTS; s++) {
                has += m->now.expert[r * SLOTS + s] == e;
                wants |= to[r * SLOTS + s] == e;
            }
            assert_int_equal(has, wants);
        }
}

static void moves_take_so_many_copies_and_epochs(void **state)
{
    (void)state;
    static const struct {
        int32_t now[PLACES], to[PLACES];
        int copies, commands, epochs, drops;
    } ways[] = {
        {{0, 1, -1, 2, 3, -1, 4, 5, -1}, {0, 1, -1, 2, 3, -1, 4, 5, -1}, 0, 0, 0, 0}, // nothing
        {{0, 1, -1, 2, 3, -1, 4, 5, -1}, {-1, 1, 0, 3, 2, -1, 4, -1, 5}, 0, 0, 0, 0}, // other slots alone
        {{0, 1, -1, 2, 3, -1, 4, 5, -1}, {0, 1, -1, 2, 3, 0, 4, 5, -1}, 1, 1, 1, 0},  // replicate
        {{0, 1, -1, 2, 3, 0, 4, 5, -1}, {0, 1, -1, 2, 3, -1, 4, 5, -1}, 0, 0, 1, 1},  // drop
        {{0, 1, -1, 2, 3, -1, 4, 5, -1},
         {2, 1, -1, 0, 3, -1, 4, 5, -1},
         2,
         2,
         1,
         2}, // swap: two copies, one epoch
        {{0, 1, -1, 2, 3, -1, 4, 5, -1}, {4, 1, -1, 0, 3, -1, 2, 5, -1}, 3, 3, 1, 3}, // a ring
        {{0, 1, 0, 2, 3, -1, 4, 5, -1}, {0, 1, -1, 2, 3, -1, 4, 5, -1}, 0, 0, 1, 1},  // one twice on a rank
        {{0, 1, 2, 3, 4, -1, 5, -1, -1}, {0, 1, -1, 3, 4, -1, 5, 2, -1}, 1, 1, 1, 1}, // from a full rank
        {{0, 1, 2, 3, 4, -1, 5, -1, -1}, {0, 5, -1, 3, 4, -1, 1, 2, -1}, 3, 3, 2, 3}, // and to it
        {{0, 1, -1, 2, 3, -1, 4, 5, -1}, {2, 3, -1, 0, 1, -1, 4, 5, -1}, 4, 4, 2, 4}, // rank for rank
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        cot_migrate m;
        int commands, chunks, epochs;
        open_from(&m, ways[i].now, ways[i].to);
        assert_int_equal(m.copies, ways[i].copies);
        assert_int_equal(m.drops, ways[i].drops);
        run(&m, &commands, &chunks, &epochs);
        assert_holds(&m, ways[i].to);
        assert_int_equal(chunks, ways[i].copies);
        assert_int_equal(m.copied, ways[i].copies);
        assert_int_equal(m.dropped, ways[i].drops);
        assert_int_equal(m.bytes, ways[i].copies * SLOT_BYTES);
        if (commands != ways[i].commands || epochs != ways[i].epochs)
            fail_msg("way %zu takes %d commands and %d epochs", i, commands, epochs);
        cot_migrate_close(&m);
    }
}

/* Ranks that have nothing to do with each other copy at once, and a layer's words are its changes. */
static void a_round_copies_at_once(void **state)
{
    (void)state;
    static const int32_t now[PLACES] = {0, 1, 2, 3, 4, -1, 5, -1, -1},
                         to[PLACES] = {0, 1, 2, 3, 4, 5, 5, 0, -1};
    cot_migrate m;
    open_from(&m, now, to); // 5 from rank 2 to rank 1; 0 from rank 0 to rank 2: rank 2 has a part in both
    cot_migrate_command c = next(&m, SLOT_BYTES, 0);
    assert_int_equal(c.kind, COT_MIGRATE_COPY);
    assert_int_equal(c.chunks, 1);
    cot_migrate_copied(&m, c.chunk->move, COT_RUNNER_SAME);
    c = next(&m, SLOT_BYTES, 0);
    assert_int_equal(c.kind, COT_MIGRATE_COPY);
    cot_migrate_copied(&m, c.chunk->move, COT_RUNNER_SAME);
    c = next(&m, SLOT_BYTES, 0);
    assert_int_equal(c.kind, COT_MIGRATE_PLACE);
    static const int32_t words[] = {0, 0, 2, 0, 0, 2, 1, 0, 5, 2, 1, 2, 2, 0};
    assert_int_equal(c.count, sizeof words / sizeof *words);
    assert_memory_equal(c.words, words, sizeof words);
    cot_migrate_close(&m);
}

/* ---- faults ---- */

static const int32_t swapped[PLACES] = {2, 1, -1, 0, 3, -1, 4, 5, -1};

/* At the end nothing is taken, and experts are where the epoch had them. */
static void assert_stays(cot_migrate *m, cot_move_outcome outcome, int64_t gone, const int32_t place[PLACES])
{
    assert_int_equal(next(m, SLOT_BYTES, 0).kind, COT_MIGRATE_OVER);
    assert_int_equal(m->gone[outcome], gone);
    assert_holds(m, place);
    for (int p = 0; p < PLACES; p++)
        assert_int_equal(m->place[p], m->now.expert[p] < 0 ? COT_MIGRATE_FREE : COT_MIGRATE_IN_FORCE);
    cot_migrate_close(m);
}

static void what_is_given_up_stays(void **state)
{
    (void)state;
    cot_migrate m;
    cot_migrate_command c;
    int32_t move;

    open_from(&m, even, swapped); // waiting
    cot_migrate_cancel(&m);
    assert_stays(&m, COT_MOVE_CANCELLED, 2, even);

    open_from(&m, even, swapped); // reserved, and nothing may be sent
    assert_int_equal(next(&m, 0, 7).kind, COT_MIGRATE_NOTHING);
    assert_int_equal(m.move[0].state, COT_MIGRATE_RESERVED);
    cot_migrate_tick(&m, 57);
    assert_int_equal(m.move[0].state, COT_MIGRATE_RESERVED);
    cot_migrate_tick(&m, 58);
    assert_int_equal(m.gone[COT_MOVE_TIMED_OUT], 1);
    cot_migrate_cancel(&m);
    assert_stays(&m, COT_MOVE_CANCELLED, 1, even);

    for (int late = 0; late < 2; late++) { // copying: until the chunk is answered its place is nobody's
        open_from(&m, even, swapped);
        const cot_runner_chunk first = *next(&m, 60, 0).chunk;
        move = first.move;
        assert_ptr_equal(cot_migrate_at_work(&m), &m.move[move]);
        if (late) cot_migrate_tick(&m, 51);
        cot_migrate_cancel(&m);
        assert_null(cot_migrate_at_work(&m));
        assert_int_equal(next(&m, 60, 60).kind, COT_MIGRATE_NOTHING);
        assert_int_equal(m.place[first.to * SLOTS + first.to_slot], COT_MIGRATE_DRAINING);
        cot_migrate_copied(&m, move, COT_RUNNER_SAME);
        assert_stays(&m, COT_MOVE_CANCELLED, 2 - late, even);
    }

    open_from(&m, even, swapped); // compared
    cot_migrate_copied(&m, next(&m, SLOT_BYTES, 0).chunk->move, COT_RUNNER_SAME);
    assert_int_equal(m.move[0].state, COT_MIGRATE_COMPARED);
    cot_migrate_tick(&m, 1000); // is never too late
    assert_int_equal(m.move[0].state, COT_MIGRATE_COMPARED);
    cot_migrate_cancel(&m);
    assert_stays(&m, COT_MOVE_CANCELLED, 2, even);

    for (int adopted = 0; adopted < 2; adopted++) { // published: cannot be cancelled, but refused
        open_from(&m, even, swapped);
        for (int i = 0; i < 2; i++)
            cot_migrate_copied(&m, next(&m, SLOT_BYTES, 0).chunk->move, COT_RUNNER_SAME);
        assert_int_equal(next(&m, SLOT_BYTES, 0).kind, COT_MIGRATE_PLACE);
        cot_migrate_tick(&m, 1000);
        cot_migrate_cancel(&m);
        assert_int_equal(m.move[0].state, COT_MIGRATE_PUBLISHED);
        assert_int_equal(m.place[0], COT_MIGRATE_RETIRING);
        assert_int_equal(next(&m, SLOT_BYTES, 0).kind, COT_MIGRATE_NOTHING);
        cot_migrate_placed(&m, adopted);
        assert_stays(&m, COT_MOVE_REFUSED, adopted ? 0 : 2, adopted ? swapped : even);
    }

    open_from(&m, even,
              swapped); // a chunk that differs is sent again, as often as it may be, from where it began
    c = next(&m, 60, 0);
    cot_migrate_copied(&m, c.chunk->move, COT_RUNNER_SAME);
    c = next(&m, 60, 0);
    move = c.chunk->move;
    assert_int_equal(c.chunk->begin, 60);
    assert_int_equal(c.chunk->bytes, 40);
    assert_int_equal(c.chunk->last, 1);
    cot_migrate_copied(&m, move, COT_RUNNER_DIFFERS);
    c = next(&m, 30, 0);
    assert_int_equal(c.chunk->begin, 60);
    assert_int_equal(c.chunk->last, 0);
    cot_migrate_copied(&m, move, COT_RUNNER_DIFFERS);
    assert_int_equal(m.move[move].state, COT_MIGRATE_GIVEN_UP);
    assert_int_equal(m.bytes, 60 + 40 + 30);
    c = next(&m, SLOT_BYTES, 0); // the other goes on
    assert_int_not_equal(c.chunk->move, move);
    cot_migrate_copied(&m, c.chunk->move, COT_RUNNER_FAILED);
    assert_int_equal(m.gone[COT_MOVE_FAILED], 1);
    assert_stays(&m, COT_MOVE_DIFFERED, 1, even);
}

/* Half of a swap: the expert that did not come stays where it was, the other has a place all the same. */
static void half_a_swap(void **state)
{
    (void)state;
    cot_migrate m;
    open_from(&m, even, swapped);
    cot_migrate_command c = next(&m, SLOT_BYTES, 0);
    const cot_runner_chunk lost = *c.chunk;
    for (int i = 0; i < 2; i++) {
        cot_migrate_copied(&m, lost.move, COT_RUNNER_DIFFERS);
        c = next(&m, SLOT_BYTES, 0);
    }
    cot_migrate_copied(&m, c.chunk->move, COT_RUNNER_SAME);
    assert_int_equal(next(&m, SLOT_BYTES, 0).kind, COT_MIGRATE_PLACE);
    cot_migrate_placed(&m, true);
    int32_t half[PLACES] = {0, 1, 2, -1, 3, -1, 4, 5, -1}, other[PLACES] = {-1, 1, -1, 2, 3, 0, 4, 5, -1};
    assert_stays(&m, COT_MOVE_DIFFERED, 1, lost.expert == 0 ? half : other);
}

static void without_a_free_slot_nothing_moves(void **state)
{
    (void)state;
    static const int32_t full[PLACES] = {0, 1, 4, 2, 3, 5, 4, 5, 0},
                         other[PLACES] = {2, 1, 4, 0, 3, 5, 4, 5, 0};
    cot_migrate m;
    open_from(&m, full, other);
    int commands, chunks, epochs;
    run(&m, &commands, &chunks, &epochs); // 0 is dropped from rank 0, and so 2 has a place, and then 0
    assert_holds(&m, other);
    cot_migrate_close(&m);
    static const int32_t stuck[PLACES] = {0, 1, 4, 2, 3, 5, 4, 5, 1},
                         wish[PLACES] = {2, 1, 4, 0, 3, 5, 4, 5, 1};
    open_from(&m, stuck, wish);
    assert_stays(&m, COT_MOVE_NO_SLOT, 2, stuck);
}

/* Two layers of ranks that are full but for one place each: it goes from layer to layer, each takes it in turn, and a place that a
 * layer has left is the next one's. */
static void one_place_more_serves_all_layers(void **state)
{
    (void)state;
    static const int32_t now[2 * PLACES] = {0, 1, -1, 2, 3, -1, 4, 5, -1, 5, 4, -1, 3, 2, -1, 1, 0, -1},
                                 swaps[2 * PLACES] = {2, 1, -1, 0, 3, -1, 4, 5, -1,
                                                      5, 2, -1, 3, 4, -1, 1, 0, -1},
                                 rings[2 * PLACES] = {2, 3, -1, 4, 5, -1, 0, 1, -1,
                                                      3, 2, -1, 1, 0, -1, 5, 4, -1};
    const int32_t *const to[] = {swaps, rings};
    for (int way = 0; way < 2; way++) {
        cot_migrate m;
        int commands, chunks, epochs;
        int32_t place[2 * PLACES], seen[RANKS] = {0};
        for (int i = 0; i < 2 * PLACES; i++)
            place[i] = i % SLOTS < SLOTS - 1 ? i / PLACES * (SLOTS - 1) + i % SLOTS : i < PLACES ? 4 : -1;
        open_layers(&m, 2, true, now, to[way], place);
        run(&m, &commands, &chunks, &epochs);
        assert_holds(&m, to[way]);
        assert_int_equal(m.copied, way ? 12 : 4);
        if (!way) assert_int_equal(epochs, 2); // a swap is two copies and one epoch
        for (int i = 0; i < 2 * PLACES; i++)
            if (place[i] >= 0) seen[i % PLACES / SLOTS] |= 1 << place[i];
        for (int r = 0; r < RANKS; r++) assert_int_equal(seen[r], (1 << (2 * (SLOTS - 1) + 1)) - 1);
        cot_migrate_close(&m);
    }
}

/* The second layer keeps what layers share on two ranks, since its copies cannot be taken: the first can do nothing then, and the
 * third what it can without. */
static void a_layer_that_is_stuck_lets_others_pass(void **state)
{
    (void)state;
    static const int32_t now[3 * PLACES] = {0, 1,  -1, 2,  3, -1, 4,  5, -1, 0,  1, 2, 3, 4,
                                            5, -1, -1, -1, 0, 1,  -1, 2, 3,  -1, 4, 5, -1},
                                 to[3 * PLACES] = {2,  1, -1, 0,  3, -1, 4,  5, -1, 0,  1, -1, 3, 4,
                                                   -1, 2, 5,  -1, 4, 1,  -1, 2, 3,  -1, 0, 5,  -1};
    cot_migrate m;
    int32_t place[3 * PLACES];
    for (int i = 0; i < 3 * PLACES; i++) {
        const int32_t layer = i / PLACES, slot = i % SLOTS;
        place[i] = slot < SLOTS - 1 ? layer * (SLOTS - 1) + slot : layer == 1 ? 3 * (SLOTS - 1) : -1;
    }
    open_layers(&m, 3, true, now, to, place);
    for (cot_migrate_command c = next(&m, SLOT_BYTES, 0); c.kind != COT_MIGRATE_OVER;
         c = next(&m, SLOT_BYTES, 0)) {
        assert_int_not_equal(c.kind, COT_MIGRATE_NOTHING);
        if (c.kind == COT_MIGRATE_PLACE) {
            cot_migrate_placed(&m, true);
            continue;
        }
        for (int i = 0; i < c.chunks; i++)
            cot_migrate_copied(&m, c.chunk[i].move,
                               c.chunk[i].layer == 1 ? COT_RUNNER_FAILED : COT_RUNNER_SAME);
    }
    assert_int_equal(m.gone[COT_MOVE_FAILED], 2);
    assert_int_equal(m.gone[COT_MOVE_NO_SLOT], 2);
    assert_int_equal(m.copied, 2);
    assert_int_equal(m.dropped, 2);
    cot_migrate_close(&m);
}

/* ---- what may be sent ---- */

/* Steps of drawn times; what a byte takes is drawn too, and changes. Chunks never take more than a share of the steps' medians and one
 * chunk, and with enough to do not much less. */
static void chunks_take_their_share(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int run = 0; run < 200; run++) {
        const double share = 0.001 + 0.2 * (double)(cot_mix64(seed++) % 1000) / 1000;
        cot_migrate_budget b = {.share = share};
        double most_ns = 0, taken_ns = 0, worst_ns = 0;
        const int64_t base_ns = 100000 + (int64_t)(cot_mix64(seed++) % 50000000);
        for (int step = 0; step < 2000; step++) {
            const int64_t step_ns = base_ns + (int64_t)(cot_mix64(seed++) % (uint64_t)(base_ns / 4));
            const double ns_a_byte = 0.05 * (double)(1 + cot_mix64(seed++) % 4) * (step > 1000 ? 5 : 1);
            const int64_t bytes = cot_migrate_allow(&b, step_ns, 0);
            most_ns += share * (double)(base_ns + base_ns / 4);
            if (!bytes) continue;
            assert_in_range(bytes, COT_MIGRATE_LEAST_BYTES, COT_MIGRATE_MOST_BYTES);
            const int64_t ns = 1000 + (int64_t)(ns_a_byte * (double)bytes);
            cot_migrate_pay(&b, bytes, ns);
            taken_ns += (double)ns;
            if ((double)ns > worst_ns) worst_ns = (double)ns;
            assert_true(taken_ns <= most_ns + worst_ns);
        }
        if (share * (double)base_ns < 0.05 * COT_MIGRATE_MOST_BYTES / 4) assert_true(taken_ns > most_ns / 8);
    }
}

static void bandwidth_and_idleness(void **state)
{
    (void)state;
    cot_migrate_budget b = {.bytes_per_s = 1e6};
    int64_t sent = 0, now_ns = 1;
    for (int i = 0; i < 100000; i++, now_ns += 100000) {
        const int64_t bytes = cot_migrate_allow(&b, i % 2 ? 50000 : 0, now_ns);
        if (!bytes) continue;
        assert_in_range(bytes, COT_MIGRATE_LEAST_BYTES, COT_MIGRATE_MOST_BYTES);
        cot_migrate_pay(&b, bytes, 123456);
        sent += bytes;
    }
    assert_in_range(sent, 9900000, 10000000 + COT_MIGRATE_LEAST_BYTES); // ten seconds
    cot_migrate_budget idle = {.share = 0.02};
    for (int i = 0; i < 3; i++) assert_int_equal(cot_migrate_allow(&idle, 0, i), COT_MIGRATE_MOST_BYTES);
    assert_int_equal(cot_migrate_allow(&idle, 1000000, 4),
                     COT_MIGRATE_LEAST_BYTES); // nothing is known of it yet
    cot_migrate_pay(&idle, COT_MIGRATE_LEAST_BYTES, 50000);
    assert_int_equal(cot_migrate_allow(&idle, 1000000, 5), 0);
    assert_true(cot_migrate_allow(&idle, 1000000, 6) > 0);
}

static void how_long_bytes_should_take(void **state)
{
    (void)state;
    const cot_migrate_budget by_bandwidth = {.share = 0.02, .bytes_per_s = 1e6, .ns_a_byte = 50},
                             by_share = {.share = 0.02, .ns_a_byte = 0.5}, unknown = {.share = 0.02};
    assert_int_equal(cot_migrate_longest_ns(&by_bandwidth, 3000, 17), 3000017);
    assert_int_equal(cot_migrate_longest_ns(&by_share, 3000, 17), 75017);
    assert_true(cot_migrate_longest_ns(&unknown, 3000, 17) == INT64_MAX);
    assert_true(cot_migrate_longest_ns(&by_bandwidth, INT64_MAX, INT64_MAX) == INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(moves_take_so_many_copies_and_epochs),
                                       cmocka_unit_test(a_round_copies_at_once),
                                       cmocka_unit_test(what_is_given_up_stays),
                                       cmocka_unit_test(half_a_swap),
                                       cmocka_unit_test(without_a_free_slot_nothing_moves),
                                       cmocka_unit_test(one_place_more_serves_all_layers),
                                       cmocka_unit_test(a_layer_that_is_stuck_lets_others_pass),
                                       cmocka_unit_test(chunks_take_their_share),
                                       cmocka_unit_test(bandwidth_and_idleness),
                                       cmocka_unit_test(how_long_bytes_should_take)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
