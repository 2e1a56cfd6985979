/* What an engine is opened with. Made by tools/make_options from engine_options.def, which is where an option is added. */
#ifndef COTERIE_ENGINE_OPTIONS_H
#define COTERIE_ENGINE_OPTIONS_H
#include "coterie/layout.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_ENGINE_OPTIONS_VERSION = 1, COT_TBT_AUTO = -1 };

typedef void cot_engine_progress(void *context, size_t done_bytes, size_t total_bytes);

/* Fill with cot_engine_options_init, then change what differs: what is 0 or NULL is the default. */
typedef struct cot_engine_options {
    size_t size; /* sizeof this structure */
    int version; /* COT_ENGINE_OPTIONS_VERSION */
    /* The ranks: what they are, and how they wait for one another. */
    struct {
        /* Members of the expert-parallel group, 1 to 64. Default 1. */
        int ranks;
        /* Threads of all ranks together, 1 to 1024. More than `ranks` help the ranks to compute; fewer limit how many ranks
         * compute at once. Default: as many as there are cores (cot_cores). */
        int threads;
        /* What ranks beyond 0 are, see cot_engine_fabrics: "threads", or "processes" (forked ones, with threads of their
         * own beyond `ranks`). Default: the first of them. */
        const char *fabric;
        /* How long a rank waits for another, in ns: one that has not answered by then, or whose process has been stopped
         * for so long, is given up, and with it the engine; 1e8 to 1e15. A rank may compute a whole step of a large model
         * meanwhile. Default 300 s. */
        int64_t timeout_ns;
        /* Caps the instruction set, see cot_isa_names. Default: the best that the CPU has. */
        const char *isa;
    } group;
    /* What numbers are kept as, and computed in. */
    struct {
        /* Type of the arithmetic and of what ranks send each other: "bf16", the default, "fp32", or "int8": as bf16, but
         * rows that are multiplied with weights in int8, int4 or mxfp4 are rounded to whole numbers in blocks of 256, and
         * networks' weights that are not stored so (`networks`) are int8 with a scale for each column. */
        const char *precision;
        /* What the weights of networks - routed and shared experts, dense layers - are kept as. "as-stored", the default:
         * what the files have in 8 or 4 bits stays so where the precision multiplies it; all else becomes what the
         * precision says. Or "bf16", "fp32" (each in its own precision), "int8", "int4", "mxfp4" (in every precision) or
         * "fp8" (not in "int8"): what the files have otherwise is rounded to that while it is loaded. */
        const char *networks;
        /* The same of attention's projections (but what MLA absorbs, which is widened); in precision "int8" "bf16" and
         * "fp8" too, by rows that are not rounded. Default: as `networks`, but for int4 and mxfp4 what is stored in 8 or 4
         * bits, else int8. */
        const char *attention;
        /* The same of the head. */
        const char *head;
    } weights;
    /* Where experts sit, and how rows travel to them and back. */
    struct {
        /* The MoE operator, one of cot_engine_operators. Default: the first of them. */
        const char *op;
        /* Multiprocessors of the GPU that an operator on one leaves to others, up to 4096 and fewer than the GPU has; other
         * operators refuse any. */
        int sms_reserve;
        /* How the rows that a token's experts make become one. "exact", the default: each row travels back and is added on
         * the token's home rank, which gives the same bits for every number of ranks; "reduced": each rank adds the rows of
         * its own experts and sends the sum, fewer bytes (operator "bulk" only with dedup on). */
        const char *combine;
        /* How operator "bulk" sends rows to experts. "padded": a block for each expert on each rank, all as long as the
         * longest of any, as DeepSpeed does where it drops nothing; "two-phase": counts first, then rows; "one-shot": rows
         * in one message from rank to rank, with all there is to know of them. "fused" streams rows as they are ready,
         * after nothing else, and refuses the first two. Default: one-shot with s-moe where there are tables, else
         * two-phase. */
        const char *a2a;
        /* "on": a token goes once to a rank that has several of its experts; "off": once for each of them, which "fused"
         * refuses to do, as padded blocks refuse "on". Default: on with s-moe where there are tables, else off; always on
         * with "fused". */
        const char *dedup;
        /* Type of the rows that travel back from experts, "bf16" or "fp32" (to experts they travel as those read them).
         * Default: as `precision`. */
        const char *payload;
        /* Where experts sit, replicas included; read while opening. One whose model_hash is another model's is refused.
         * Default: consecutive experts, equally many on each rank as far as that goes. */
        const cot_expert_map *placement;
        /* What messages call that placement. Default: "the placement". */
        const char *placement_name;
        /* A file of cot_predictor_write (`coterie group --tables`) for this model (or the trace that is replayed; another's
         * model_hash is refused) and this number of ranks: its groups of experts are where experts sit. A placement that is
         * given too must have every expert there, and once. */
        const char *tables;
        /* Routing that takes the place of what the model's gates choose, which compute all the same; copied, the trace must
         * outlive the engine. Default: gates choose. */
        const struct cot_engine_routing *routing;
        /* Experts that a rank has room for in each MoE layer, 1 to 65535 / ranks. Default: as many as the placement needs,
         * one more than its highest used slot's index, counted from 0. */
        int32_t slots;
        /* In place of `slots`: experts that a rank has room for in each MoE layer beside those that the placement needs
         * room for, as for replicas that are made later. Default 0. */
        int32_t spare_slots;
        /* Whether experts are to move while the engine serves (cot_engine_move_experts): each rank has room for one expert
         * more, into which copies come, of one MoE layer at a time; its layers' slots are one pool. */
        bool movable;
        /* Moves of experts take at most this share of the median step beside each step: above 0, at most 1. Default 0.02.
         * Refused, as the other options of moves and of rebalancing are, where none could come of it. */
        double migration_share;
        /* In place of a share, beside which it is refused: so many bytes a second of experts that a rank sends, and is
         * sent. Default: the share says. */
        int64_t migration_bandwidth;
        /* Whether the engine moves experts by itself, where popularity says that steps take less elsewhere: "off", the
         * default; "load": so that the rank that takes longest in a layer takes less; "joint": that, and fewer ranks that a
         * token goes to. Implies `movable`, and a half-life of popularity of 65536 tokens where none is given. Refused with
         * s-moe and with tables, which know where experts are; with drawn routing; and where there are no experts, or
         * layers share them. */
        const char *rebalance;
        /* With "joint": how far ranks are from each other, [P][P], from the row's rank to the column's, 0 or more, in any
         * unit; copied. Default: all are as far. */
        const double *distances;
        /* How often it looks whether experts should move: "4096steps", "60s", or both with a comma between, whichever is
         * over first. Default: "4096steps,60s". */
        const char *rebalance_interval;
        /* Replicas of experts that it moves at most each time, 1 to 2^20, beside those of them that the time before left.
         * Default 64. */
        int64_t moves_a_cycle;
        /* Of a random model: so many MoE layers have experts of their own, and later ones use these again, slot for slot,
         * in turn: what a shape takes to compute and to send can be measured where its weights have no room. Default: all
         * have. */
        int32_t layers;
    } experts;
    /* How attention is spread, and how tokens come from it to their experts. */
    struct {
        /* "tp", the default: the heads of attention are split over the ranks; "dp": a sequence stays on its home rank. */
        const char *mode;
        /* How tokens come to their experts and back where heads are split (mode "tp"). "ds-moe", as DeepSpeed-MoE does:
         * allreduce, a slice of the tokens at home on each rank, allgather; "s-moe" (Speculative MoE): a reduce-scatter
         * takes each token to the rank where its experts probably are, an allgather brings what they add to all. No
         * placement of s-moe has replicas. Default: s-moe where there are tables, else ds-moe. */
        const char *pipeline;
        /* What s-moe goes by: "none" (a token's home is that of its index); what the tables foretell: "token-table",
         * "device-sequence" or "algorithm-2" (see cot_predict_method); "gate": the next layer's gate, asked a layer early;
         * or "oracle" and "worst", with and against the trace that is replayed. Default: algorithm-2, or what of it the
         * tables have; without tables none. */
        const char *predict;
        /* "ring": allreduce, reduce-scatter and allgather on rings; "direct": in one hop, where sums are added in the order
         * of ranks. With it and exact combine both pipelines give the same bits at the same number of ranks. Default:
         * direct with s-moe, else ring. */
        const char *collective;
    } attention;
    /* What a step holds. */
    struct {
        /* Most sequences that run at once, 1 to 1024. Default 16. */
        int sequences;
        /* Most tokens of one step, 1 to 65536. Default 512. */
        int64_t step_tokens;
        /* What a step should take at most, in ns, as far as that is foreseen from the steps before: prompts are fed in as
         * large parts as that allows beside the sequences that are past theirs (64 tokens of the oldest prompt in any case,
         * or half of step_tokens; all of step_tokens where no sequence is past its prompt), and no more sequences join than
         * can be in time, unless one alone cannot. Where those that run have grown too long for it some sit out a step
         * (max_wait_steps), up to half of those past their prompts; if half of them are too many, none do. COT_TBT_AUTO:
         * twice what a step of `sequences` tokens, one of each, is expected to take. Default: no matter. */
        int64_t tbt_ns;
        /* A running sequence may sit out so many steps for want of room or time in them, 1 to 1e6; then it comes before
         * others. Default 8. */
        int64_t max_wait_steps;
        /* Who is admitted next, and who has a part in a step without room or time for all. "fcfs": who came first, and who
         * sat out longest; "experts": of the oldest 16 that wait, the one that is expected to add the fewest distinct
         * experts to those that run, where one that 16 have overtaken is next; and one after the other those that add
         * fewest to the step, up to max_wait_steps. It needs signature_tables, or block_tokens and a half-life of
         * popularity. Default: experts where there are signature tables. */
        const char *schedule;
        /* Under data-parallel attention, which of the homes that hold equally many blocks of a prompt gets a request that
         * names none. "load", the default: the one whose requests know the fewest tokens; "experts": of those that have at
         * most one request more than the least, the one from which it is expected to ask the fewest other ranks, where its
         * experts are foretold (see signature_tables), else as load. */
        const char *home_by;
        /* A file of cot_predictor_write (`coterie group --tables`) for this model, of any number of ranks, by whose token
         * table the experts of requests are foretold from the last tokens of their prompts. With block_tokens and a
         * half-life of popularity what the KV cache holds of a prompt comes first: what its text called. With schedule
         * "fcfs" and home_by "load" nobody would ask them, which is an error. Default: no tables. */
        const char *signature_tables;
    } batch;
    /* The KV cache, and what shares its memory. */
    struct {
        /* Most tokens of a sequence, its prompt and its answer together, which memory is planned for: a KV cache that holds
         * fewer is refused, as are more than the model's context. Default: the model's context. */
        int64_t sequence_tokens;
        /* Positions of KV cache, of all sequences together, wherever they end: the engine adds what their last pages leave
         * empty. Without block_tokens no more are made than `sequences` sequences can fill. Default: the context of one
         * sequence. */
        int64_t kv_tokens;
        /* Texts that begin with the same blocks of so many tokens compute them once while the KV cache has them: a power of
         * two, 1 to 64. What a text's blocks hold stays, the text's own too, until the room is needed; then goes what was
         * used longest ago. Requests with all_logits compute all. Default: every text is computed whole. */
        int64_t block_tokens;
        /* Of models some of whose layers have a state in place of keys (Qwen3-Next, 3.5 and 3.6): so many states that such
         * a layer has behind the block of a text are kept, 1 to 2^20, and texts that begin alike go on from the last of
         * them. Taken in prompts every 1024 tokens, at a prompt's last whole block and at the last one of what is
         * generated. Memory for all is taken at once. Refused where no layer has a state, and without block_tokens. Default
         * 32. */
        int64_t snapshots;
        /* In place of kv_tokens, bytes of KV cache over all ranks: as many pages of 64 positions as fit. Default: kv_tokens
         * says. */
        size_t kv_bytes;
        /* In place of both, and refused beside kv_bytes: bytes, over all ranks, that KV pages, states that layers have in
         * place of keys, and the slots of experts that `spare_slots` adds take together. States, those of snapshots too,
         * have theirs, and so have slots where experts are movable; pages get the rest, which has to hold a text of
         * sequence_tokens, or of the model's whole context. Default: kv_bytes says. */
        size_t total_bytes;
    } memory;
    /* What is told of the work. */
    struct {
        /* Whether the routing of every token is sent to rank 0, which on_routing and the read bytes of cot_stats need. */
        bool capture_routing;
        /* Counts how much each expert is called lately, and which experts requests call (cot_engine_popularity,
         * cot_engine_watch_profiles): a token counts half as much when so many have come behind it, 1 to 2^40. Ranks then
         * send rank 0 the experts of tokens, of so few that this is at most a hundredth of what they send. Default: nothing
         * is counted. */
        int64_t popularity_half_life;
        /* In place of tokens: so long a time of steps, in ns; 1e6 to 1e18. Default: tokens say. */
        int64_t popularity_half_life_ns;
        /* Whether ranks count what they send in each exchange of a step, which cot_stats then tells of the last one. */
        bool count_exchanges;
        /* Called while weights load, from any thread, with `progress_context`. Default: nobody is told. */
        cot_engine_progress *progress;
        void *progress_context;
    } watch;
} cot_engine_options;
void cot_engine_options_init(cot_engine_options *options);

#ifdef __cplusplus
}
#endif
#endif
