/* Groups of all layers on the ranks of a topology:
 *
 *     sum_l sum_ab calls[l][a][b] (d(a, b) + d(b, a))  +  move_weight sum_l sum_ab moves[l][a][b] d(a, b)
 *
 * where a and b stand for the ranks that the groups sit on. */
#include "coterie/group_layers.h"

#include "base/error.h"
#include "base/rng.h"
#include "placement/rounds.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct search {
    const cot_layer_traffic *traffic;
    const cot_seat_options *options;
    const double *away; // [D][D]
    size_t L, D;
    double *both;   // [D][D] there and back
    double *mutual; // [L][D][D] calls both ways, 0 between a group and itself
    double *cost;   // [D][D] of an assignment
    int32_t *on;    // [L][D] the group on each rank
    int32_t *trial; // [L][D]
    uint8_t *from;  // [L][2] which state of the layer before is cheaper
} search;

double cot_layer_traffic_distance(const cot_layer_traffic *traffic, const cot_seat_options *options,
                                  const int32_t *names)
{
    size_t L = (size_t)traffic->n_layers, D = (size_t)traffic->n_ranks;
    const double *away = options->distance;
    double calls = 0, moves = 0;
    for (size_t l = 0; l < L; l++)
        for (size_t a = 0; a < D; a++)
            for (size_t b = 0; b < D; b++) {
                size_t i = (l * D + a) * D + b, x = names ? (size_t)names[l * D + a] : a,
                       y = names ? (size_t)names[l * D + b] : b;
                calls += traffic->calls[i] * (away[x * D + y] + away[y * D + x]);
                if (l + 1 == L) continue;
                y = names ? (size_t)names[(l + 1) * D + b] : b;
                moves += traffic->moves[i] * away[x * D + y];
            }
    return calls + options->move_weight * moves;
}

/* What a layer's calls change by when the groups on ranks x and y change places. */
static double calls_delta(const search *s, const int32_t *names, size_t l, size_t x, size_t y)
{
    size_t D = s->D, a = (size_t)s->on[l * D + x], b = (size_t)s->on[l * D + y];
    const double *ma = s->mutual + (l * D + a) * D, *mb = s->mutual + (l * D + b) * D;
    const double *calls = s->traffic->calls + l * D * D;
    double sum = (calls[a * D + a] - calls[b * D + b]) * (s->both[y * D + y] - s->both[x * D + x]);
    for (size_t c = 0; c < D; c++) {
        size_t z = (size_t)names[l * D + c];
        if (z != x && z != y) sum += (ma[c] - mb[c]) * (s->both[y * D + z] - s->both[x * D + z]);
    }
    return sum;
}

/* What the moves from layer l to l + 1 change by when x and y change places in l, in l + 1, or in both. */
static void moves_delta(double delta[2][2], const search *s, const int32_t *names, size_t l, size_t x,
                        size_t y)
{
    size_t D = s->D, a = (size_t)s->on[l * D + x], b = (size_t)s->on[l * D + y];
    size_t to_a = (size_t)s->on[(l + 1) * D + x], to_b = (size_t)s->on[(l + 1) * D + y];
    const double *moves = s->traffic->moves + l * D * D;
    double rows = 0, columns = 0, rows_after = 0;
    for (size_t c = 0; c < D; c++) {
        size_t z = (size_t)names[(l + 1) * D + c], w = (size_t)names[l * D + c];
        size_t swapped = z == x ? y : z == y ? x : z;
        double row = moves[a * D + c] - moves[b * D + c];
        rows += row * (s->away[y * D + z] - s->away[x * D + z]);
        rows_after += row * (s->away[y * D + swapped] - s->away[x * D + swapped]);
        columns += (moves[c * D + to_a] - moves[c * D + to_b]) * (s->away[w * D + y] - s->away[w * D + x]);
    }
    delta[0][0] = 0;
    delta[0][1] = s->options->move_weight * columns;
    delta[1][0] = s->options->move_weight * rows;
    delta[1][1] = s->options->move_weight * (columns + rows_after);
}

/* Exchanges ranks x and y in the set of layers that gains most, if that is more than `least`. Each layer is exchanged or
 * not; its cost depends on its neighbours' choice, so the best set is a shortest path. */
static bool exchange(search *s, int32_t *names, size_t x, size_t y, double least)
{
    size_t L = s->L, D = s->D;
    double best[2] = {0, calls_delta(s, names, 0, x, y)};
    for (size_t l = 1; l < L; l++) {
        double delta[2][2], next[2];
        moves_delta(delta, s, names, l - 1, x, y);
        for (int now = 0; now < 2; now++) {
            double stay = best[0] + delta[0][now], change = best[1] + delta[1][now];
            s->from[2 * l + (size_t)now] = change < stay;
            next[now] = fmin(stay, change);
        }
        best[0] = next[0];
        best[1] = next[1] + calls_delta(s, names, l, x, y);
    }
    if (fmin(best[0], best[1]) >= -least) return false;
    uint8_t now = best[1] < best[0];
    for (size_t l = L; l-- > 0; now = s->from[2 * l + now]) {
        if (!now) continue;
        int32_t a = s->on[l * D + x], b = s->on[l * D + y];
        names[l * D + (size_t)a] = (int32_t)y;
        names[l * D + (size_t)b] = (int32_t)x;
        s->on[l * D + x] = b;
        s->on[l * D + y] = a;
    }
    return true;
}

static void find_groups(search *s, const int32_t *names)
{
    for (size_t i = 0; i < s->L * s->D; i++) s->on[i / s->D * s->D + (size_t)names[i]] = (int32_t)(i % s->D);
}

/* The assignment of layer l that is cheapest if everything else, the rest of the layer too, stayed where it is. */
static cot_status assign(search *s, int32_t *to, const int32_t *names, size_t l, cot_error *error)
{
    size_t D = s->D;
    const double *calls = s->traffic->calls + l * D * D, *moves = s->traffic->moves + l * D * D;
    for (size_t a = 0; a < D; a++)
        for (size_t x = 0; x < D; x++) {
            double sum = calls[a * D + a] * s->both[x * D + x], moved = 0;
            for (size_t c = 0; c < D; c++) {
                sum += s->mutual[(l * D + a) * D + c] * s->both[x * D + (size_t)names[l * D + c]];
                if (l + 1 < s->L) moved += moves[a * D + c] * s->away[x * D + (size_t)names[(l + 1) * D + c]];
                if (l > 0)
                    moved += (moves - D * D)[c * D + a] * s->away[(size_t)names[(l - 1) * D + c] * D + x];
            }
            s->cost[a * D + x] = sum + s->options->move_weight * moved;
        }
    return cot_match(to, s->cost, (int32_t)D, error);
}

/* Exchanges and assignments until neither gains. */
static cot_status descend(search *s, int32_t *names, double *distance, cot_error *error)
{
    size_t D = s->D;
    cot_status status = COT_OK;
    *distance = cot_layer_traffic_distance(s->traffic, s->options, names);
    double least = *distance * 1e-9; // below, it may be rounding
    for (bool moved = *distance > 0; moved && status == COT_OK;) {
        moved = false;
        find_groups(s, names);
        for (size_t x = 0; x < D; x++)
            for (size_t y = x + 1; y < D; y++) moved |= exchange(s, names, x, y, least);
        *distance = cot_layer_traffic_distance(s->traffic, s->options, names);
        for (size_t l = 0; l < s->L && status == COT_OK; l++) {
            memcpy(s->trial, names, s->L * D * sizeof *names);
            status = assign(s, s->trial + l * D, names, l, error);
            if (status != COT_OK) break;
            double now = cot_layer_traffic_distance(s->traffic, s->options, s->trial);
            if (now >= *distance - least) continue;
            *distance = now;
            memcpy(names, s->trial, s->L * D * sizeof *names);
            moved = true;
        }
    }
    return status;
}

/* Beginnings: as it is; aligned; aligned, all layers shuffled alike. */
static cot_status start(search *s, int32_t *names, int32_t number, cot_error *error)
{
    size_t L = s->L, D = s->D;
    for (size_t i = 0; i < L * D; i++) names[i] = (int32_t)(i % D);
    if (number == 0) return COT_OK;
    cot_status status = cot_layer_traffic_align(names, s->traffic, NULL, error);
    int32_t *order = s->trial;
    for (size_t d = 0; d < D; d++) order[d] = (int32_t)d;
    for (size_t d = D; number > 1 && d-- > 1;) {
        uint64_t bits = cot_random_bits(s->options->seed, (uint64_t)number, d);
        size_t other = (size_t)(bits % (d + 1));
        int32_t held = order[d];
        order[d] = order[other];
        order[other] = held;
    }
    for (size_t i = 0; status == COT_OK && i < L * D; i++) names[i] = order[names[i]];
    return status;
}

static bool open_search(search *s)
{
    size_t L = s->L, D = s->D;
    s->both = malloc(D * D * sizeof *s->both);
    s->cost = malloc(D * D * sizeof *s->cost);
    s->mutual = calloc(L * D * D, sizeof *s->mutual);
    s->on = malloc(L * D * sizeof *s->on);
    s->trial = malloc(L * D * sizeof *s->trial);
    s->from = calloc(L * 2, sizeof *s->from);
    if (!s->both || !s->cost || !s->mutual || !s->on || !s->trial || !s->from) return false;
    for (size_t x = 0; x < D; x++)
        for (size_t y = 0; y < D; y++) {
            s->both[x * D + y] = s->away[x * D + y] + s->away[y * D + x];
            for (size_t l = 0; l < L && x != y; l++)
                s->mutual[(l * D + x) * D + y] =
                    s->traffic->calls[(l * D + x) * D + y] + s->traffic->calls[(l * D + y) * D + x];
        }
    return true;
}

static void close_search(search *s)
{
    free(s->both);
    free(s->cost);
    free(s->mutual);
    free(s->on);
    free(s->trial);
    free(s->from);
}

static cot_status check(const cot_layer_traffic *traffic, const cot_seat_options *options, cot_error *error)
{
    if (options->size != sizeof *options || !options->distance || options->starts < 1 ||
        !(options->move_weight >= 0 && options->move_weight <= DBL_MAX))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "seats need distances, a weight of moves of 0 or more, a start, options of %zu bytes",
                        sizeof *options);
    size_t D = (size_t)traffic->n_ranks;
    for (size_t i = 0; i < D * D; i++)
        if (!(options->distance[i] >= 0 && options->distance[i] <= DBL_MAX))
            return cot_fail(error, COT_INVALID_ARGUMENT, "the distance from rank %zu to %zu is %g", i / D,
                            i % D, options->distance[i]);
    return COT_OK;
}

cot_status cot_layer_traffic_seat(int32_t *names, double *distance, const cot_layer_traffic *traffic,
                                  const cot_seat_options *options, cot_error *error)
{
    cot_status status = check(traffic, options, error);
    if (status != COT_OK) return status;
    search s = {.traffic = traffic,
                .options = options,
                .away = options->distance,
                .L = (size_t)traffic->n_layers,
                .D = (size_t)traffic->n_ranks};
    int32_t *now = malloc(s.L * s.D * sizeof *now);
    double least = INFINITY, here;
    if (!open_search(&s) || !now)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for seats of %zu ranks", s.D);
    for (int32_t n = 0; status == COT_OK && n < options->starts; n++) {
        status = start(&s, now, n, error);
        if (status == COT_OK) status = descend(&s, now, &here, error);
        if (status != COT_OK || here >= least) continue;
        least = here;
        memcpy(names, now, s.L * s.D * sizeof *names);
    }
    if (status == COT_OK && distance) *distance = least;
    close_search(&s);
    free(now);
    return status;
}
