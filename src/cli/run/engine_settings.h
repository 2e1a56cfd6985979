/* The options that every command with an engine shares, and opening an engine by them. */
#ifndef COT_CLI_RUN_ENGINE_SETTINGS_H
#define COT_CLI_RUN_ENGINE_SETTINGS_H
#include "cli/frame/options.h"
#include "cli/run/model_shapes.h"
#include "coterie/engine.h"
#include "coterie/model.h"
#include "coterie/trace.h"

/* What the rows of coterie/engine_options.def fill. */
typedef struct cli_engine_settings {
    cot_engine_options options; // but size and version
    const char *placement, *hostfile, *save_routing, *topology, *memory;
    bool no_prefix_caching;
    int64_t max_queue; // of a server
} cli_engine_settings;

/* A group of rows for cli_options, over an cli_engine_settings. */
extern const cli_option cli_engine_option_rows[];
/* The same where texts must not depend on their company: data-parallel attention is the default. */
extern const cli_option cli_serving_option_rows[];
/* What steps hold, of a server, and its memory. */
extern const cli_option cli_scheduling_option_rows[];
/* Those of cli_engine_option_rows where routing can be replayed, which predictions may look at. */
extern const cli_option cli_replaying_option_rows[];
/* The same for commands that can save what they routed beside their own work. */
extern const cli_option cli_routing_option_rows[];

/* What the command's work needs of the engine. */
typedef struct cli_engine_needs {
    int64_t kv_tokens;
    size_t sequences;                  // unless --max-num-seqs says
    int64_t block_tokens;              // of the prefix cache; 0: as --block-size says, else none
    bool capture_routing;              // also on when --save-routing is given
    int64_t step_tokens;               // 0: as many as the engine likes
    const cot_engine_routing *routing; // NULL: gates choose
    const cli_model_shape *shape;      // NULL: a model's folder, or
    const char *config;                // the text of a config.json, for random weights
    uint64_t seed;                     // of random weights
    bool kv_of_free;                   // KV gets half of the memory that is free, unless its bytes are given
    const char *loading;               // what a progress bar calls it; NULL: "loading", "": there is none
    const char *remarks; // lines about what is fed, for when nothing is found wrong with it; NULL: none
} cli_engine_needs;
cot_engine_options cli_engine_options_of(const cli_engine_settings *settings, const cli_engine_needs *needs);

/* Whether attention's heads are split over ranks, so that all of them hold a part of every KV page. */
bool cli_attention_is_split(const cli_engine_settings *settings);

/* As many as --ranks says, or what stands for it. */
int64_t cli_engine_ranks(const cli_engine_settings *settings);

/* Says them on stderr. */
void cli_engine_tell_remarks(const cli_engine_needs *needs);

/* Opens the model, or a random one, with a progress bar: what every command opens an engine by. `*notes` as cot_engine_open has
 * them. */
cot_status cli_engine_open_with(cot_engine **engine, const char *model, const cli_engine_settings *settings,
                                const cli_engine_needs *needs, char **notes, cot_error *error);
/* The same, which then tells a note about skipped tensors and the remarks. Returns false after a line on stderr. */
bool cli_engine_open(cot_engine **engine, const char *model, const cli_engine_settings *settings,
                     const cli_engine_needs *needs);

/* Collects routing into a trace file. All calls do nothing where `path` is NULL. */
typedef struct cli_routing_recorder {
    const char *path;
    uint64_t model_hash;
    int32_t hidden;
    cot_trace_builder *builder;
    cot_error error; // the first
} cli_routing_recorder;
bool cli_routing_recorder_open(cli_routing_recorder *recorder, const char *path, const char *model,
                               const cot_engine *engine);
void cli_routing_recorder_take(void *recorder, uint64_t request, int64_t position, int32_t token,
                               const uint16_t *experts, const float *weights);
/* Writes the file and closes. Returns false after a line on stderr. */
bool cli_routing_recorder_finish(cli_routing_recorder *recorder, bool write);

#define COT_TIMEOUT_HELP "seconds after which a rank that does not answer is given up, and the group with it"
#define COT_HOSTFILE_HELP                                                                                    \
    "with --fabric shmem: where oshrun starts the ranks, one address a line, slots=N for several ranks "     \
    "there"
/* The rows of --timeout over nanoseconds and of --hostfile at that offset, for commands with ranks of their own. */
#define CLI_TIMEOUT_ROW(offset)                                                                              \
    {                                                                                                        \
        "timeout", 0, CLI_OPTION_REAL, "S", "300", COT_TIMEOUT_HELP, offset, .min = 0.1, .max = 1e6,         \
                                                                             .scale = 1e9                    \
    }
#define CLI_HOSTFILE_ROW(offset)                                                                             \
    {                                                                                                        \
        "hostfile", 0, CLI_OPTION_TEXT, "FILE", NULL, COT_HOSTFILE_HELP, offset                              \
    }

/* The words of each option that takes one, cli_GROUP_FIELD_words, as the rows have them; NULL ends. */
#define COT_CHOICE(group, field, ...) extern const char *const cli_##group##_##field##_words[];
#include "coterie/engine_options.def"

#endif
