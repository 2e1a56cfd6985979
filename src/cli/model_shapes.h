/* Shapes of models, for random ones that are measured in their place. */
#ifndef COT_CLI_MODEL_SHAPES_H
#define COT_CLI_MODEL_SHAPES_H
#include <stdbool.h>
#include <stdint.h>

typedef struct model_shape {
    const char *name;
    int64_t layers, experts, top_k, hidden, intermediate; // of experts: the model's own, or a trace's
    char *config;                                         // its config.json
} model_shape;

/* What a shape is asked for with; 0: the model's own. */
typedef struct model_shape_wanted {
    int64_t layers, experts, top_k, vocab;
} model_shape_wanted;

/* Returns false after a line on stderr. */
bool model_shape_exists(const char *name);
/* The same. Free either way. */
bool model_shape_make(model_shape *shape, const char *name, const model_shape_wanted *wanted);
void model_shape_free(model_shape *shape);
/* The names, for help: "gpt-oss-20b, olmoe, narrow". */
#define MODEL_SHAPE_NAMES "gpt-oss-20b, olmoe, narrow"

/* MoE layers that must have experts of their own, of so many bytes an element, so that together these exceed four times the
 * last-level cache: no layer finds its own there then. */
int32_t model_shape_expert_layers(const model_shape *shape, int64_t element_bytes);

#endif
