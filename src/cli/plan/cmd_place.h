/* The parts of `coterie place`. */
#ifndef COT_CLI_PLAN_CMD_PLACE_H
#define COT_CLI_PLAN_CMD_PLACE_H
#include "cli/frame/command.h"
#include "coterie/place.h"

#include <jansson.h>
#include <stdio.h>

typedef struct cli_place_settings {
    cli_list loads, drift, more, given;
    const char *topology, *method, *c_exp, *c_layer, *attention, *hosts, *nvlink, *current, *cost, *output,
        *to, *evaluate, *placement, *report, *moves, *ranks;
    int64_t slots, slots_per_rank, groups, nodes, first_layer, layers, top_k, max_moves;
    double max_load, move_cost, bytes, expert_bytes, link;
    int dispatch, distance;
    bool json;
} cli_place_settings;

/* All that the files say, opened for one run. */
typedef struct cli_place_inputs {
    cot_topology topology;
    bool has_topology;
    int32_t ranks, nodes; // as --ranks says; 0 where it does not
    double bytes;         // of an activation; 0: neither --bytes nor the load say it
    cot_load_counts load;
    cot_costs costs;
    int32_t *capacity; // [2][S] c_layer and c_exp
    double *matrix, *dispatch, *collect;
    cot_costs_options costs_options;
    cot_place_options options; // with the method's name, also where it is the default
} cli_place_inputs;

/* Opens the topology; returns a CLI_EXIT_ value after saying what is wrong. */
int cli_place_open_cluster(cli_place_inputs *in, const cli_place_settings *s);
/* Reads the load from `paths` and makes costs and options of it. */
int cli_place_open_load(cli_place_inputs *in, const cli_place_settings *s, const char *const *paths,
                        size_t n);
void cli_place_close(cli_place_inputs *in);

/* One placement and what there is to say about it. */
typedef struct cli_placed {
    cot_expert_map map, current; // current: what runs now; empty where nothing is said of it
    bool has_replicas;           // the method's slots may be
    cot_place_value value;
    int64_t moves; // experts that ranks have to fetch; -1 where nothing runs yet
    cot_transfer *transfers;
    int64_t n_transfers;
    int32_t rounds;
    double milliseconds; // of the solve alone
} cli_placed;

/* Writes all moves, round by round, as CSV; -1 where an expert comes from storage. Prints what is wrong. */
int cli_place_write_moves(const char *path, const cli_placed *placed);
/* Prints how many moves there are, in which layers, which ranks have most to do and, where --expert-bytes and --link are given, what
 * they send and how long that takes. */
int cli_place_print_moves(const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *placed);
/* How long moves from rank to rank take, a round after the other. */
double cli_place_move_seconds(const cli_place_settings *s, const cli_placed *placed);
/* A map beside another. */
typedef struct cli_place_side {
    const char *name;
    cot_place_value value;
    cot_balancedness balancedness;
    double worst_peak, mean_peak; // of layers
    double between_nodes; // the share of activations that leave their node; below 0 where it is not known
    double *traffic;      // [S][S] activations from rank to rank; NULL where nobody asked for it or knows
} cli_place_side;

/* What an engine runs without a map, in as many slots as the placement has. The caller frees it. */
cot_status cli_place_contiguous(cot_expert_map *map, const cli_place_inputs *in, const cli_placed *placed,
                                cot_error *error);
/* The placement in use, or where none is given contiguous experts, and the new one. Prints what is wrong. The caller
 * closes both, also after a failure. */
int cli_place_compare(cli_place_side sides[2], const cli_place_settings *s, const cli_place_inputs *in,
                      const cli_placed *placed);
/* What there is to say of a map; `keep_traffic`: with what goes from rank to rank. The caller closes it, also after a
 * failure. */
cot_status cli_place_open_side(cli_place_side *side, const char *name, const cot_expert_map *map,
                               const cli_place_inputs *in, bool keep_traffic, cot_error *error);
void cli_place_close_side(cli_place_side *side); // an empty one is fine
void cli_place_print_sides(const cli_place_side sides[2], const cli_place_settings *s,
                           const cli_place_inputs *in);
void cli_place_add_sides(json_t *to, const cli_place_side sides[2], const cli_place_settings *s,
                         const cli_place_inputs *in);
/* Says on standard error where the new map is no better, or less even. */
void cli_place_warn(const cli_place_side sides[2], const cli_place_inputs *in);
/* Who sends tokens; NULL where nothing asks for it. */
const char *cli_place_senders(const cli_place_settings *s, const cli_place_inputs *in);
/* What distances are told in: "hops", "microseconds", or "cost" where --cost gives them. */
const char *cli_place_unit(const cli_place_inputs *in);
/* What a mean activation costs there and back; 0 where there is none. */
double cli_place_per_activation(const cot_place_value *v);
/* Balancedness as the engine of --to computes it, and what it calls that. */
double cli_place_balancedness_of(const cot_balancedness *b, const cli_place_settings *s);
const char *cli_place_balancedness_name(const cli_place_settings *s);

/* Says on standard error with which options an engine loads the map that was written to `path` in `format`
 * (cot_expert_map_launch). */
cot_status cli_place_say_launch(const char *format, const char *path, const cot_expert_map *map,
                                cot_error *error);

int cli_place_print(const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *placed,
                    const cli_place_side sides[2]);
/* Writes the report of `--report`: the cluster, what runs, this placement, and other methods beside it. */
int cli_place_report(const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *placed,
                     const cli_place_side sides[2]);
/* Its part about links: how full the cluster's are with either placement. */
void cli_place_report_links(FILE *f, const cot_topology *topology, const cli_place_side sides[2]);
/* `--evaluate` and `--drift`. */
int cli_place_run_evaluate(const cli_place_settings *s, cli_place_inputs *in);
int cli_place_run_drift(const cli_place_settings *s, cli_place_inputs *in);

#endif
