/* What a layer does between its norms: a row of a table for each kind of layer. Who lays out memory, loads weights or runs a step
 * asks the row, and for no kind. */
#ifndef COT_MODEL_MIXER_H
#define COT_MODEL_MIXER_H
#include "model/runner.h"
#include "model/walk.h"

/* Of a rank's rows on their way through a layer. */
typedef struct cot_mixer_widths {
    int64_t input, output;          // what the input product gives; what the output product reads
    int64_t queries;                // what attention reads
    int64_t key_width, value_width; // of a KV head
} cot_mixer_widths;

typedef struct cot_mixer {
    const char *name;
    /* What it keeps of a sequence is in KV pages, all of it. Sequences that begin alike share them, so that prefixes are kept, and
     * several answers to one prompt go on from the pages of the first. */
    bool keeps_pages;
    /* Else it has a state in their stead, of so many floats a sequence, which is copied where a prefix is kept, or gone on from. NULL: none. */
    int64_t (*state_floats)(const cot_config *config, const cot_attention_weights *heads);
    /* Sets which query heads `rank` of `ranks` has, and which KV heads those read; all else becomes zero. */
    void (*cut)(cot_attention_weights *weights, const cot_config *config, int rank, int ranks);
    /* The weights of the heads that were cut. */
    void (*walk)(const cot_loader_walk *walk, cot_attention_weights *weights, int64_t layer);
    /* Of heads that were cut; their weights need not be laid out. */
    cot_mixer_widths (*widths)(const cot_config *config, const cot_attention_weights *heads);
    /* Memory of a step that it alone needs, once for all layers of the kind. NULL: none. */
    void (*lay_out)(cot_runner *r, cot_arena *arena, const cot_attention_weights *heads);
    /* From what the input product gives of all rows (heads.input, biases added) to what the output product reads (heads.output).
     * Called on ranks without heads or rows, too: others may wait for what they send. */
    cot_status (*mix)(cot_runner *r, const cot_attention_weights *weights, int64_t layer, cot_error *error);
} cot_mixer;

/* That of a layer. */
const cot_mixer *cot_mixer_of(const cot_config *config, int64_t layer);
/* The i-th that layers of the model have, 0 first, and the first layer that has it; NULL: there are no more. */
const cot_mixer *cot_mixer_used(const cot_config *config, int i, int64_t *layer);
/* Whether what all layers keep is in KV pages. */
bool cot_mixer_all_keep_pages(const cot_config *config);

/* The rows: gqa.c, mla.c, delta.c. */
extern const cot_mixer cot_mixer_full, cot_mixer_sliding, cot_mixer_mla, cot_mixer_delta;

#endif
