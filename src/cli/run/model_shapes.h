/* Shapes of models, for random ones that are measured in their place. */
#ifndef COT_CLI_RUN_MODEL_SHAPES_H
#define COT_CLI_RUN_MODEL_SHAPES_H
#include <stdbool.h>
#include <stdint.h>

typedef struct cli_model_shape {
    const char *name;
    int64_t layers, experts, top_k, hidden, intermediate; // of experts: the model's own, or a trace's
    char *config;                                         // its config.json
} cli_model_shape;

/* What a shape is asked for with; 0: the model's own. */
typedef struct cli_model_shape_wanted {
    int64_t layers, experts, top_k, vocab;
} cli_model_shape_wanted;

/* Returns false after a line on stderr. */
bool cli_model_shape_exists(const char *name);
/* The same. Free either way. */
bool cli_model_shape_make(cli_model_shape *shape, const char *name, const cli_model_shape_wanted *wanted);
void cli_model_shape_free(cli_model_shape *shape);
/* The names, for help: "gpt-oss-20b, olmoe, narrow". */
#define CLI_MODEL_SHAPE_NAMES "gpt-oss-20b, olmoe, narrow"

/* MoE layers that must have experts of their own, of so many bytes an element, so that together these exceed four times the
 * last-level cache: no layer finds its own there then. */
int32_t cli_model_shape_expert_layers(const cli_model_shape *shape, int64_t element_bytes);

#endif
