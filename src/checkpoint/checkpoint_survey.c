/* Whether a checkpoint's files hold what its configuration implies: whether the head is the embedding, what is missing, and what of
 * the files nobody uses. */
#include "base/error.h"
#include "base/file.h"
#include "base/integers.h"
#include "checkpoint/stored.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MISSING = 1000, COMPARED = 256 << 10 }; // numbers that are compared at a time

typedef struct survey {
    const cot_checkpoint *checkpoint;
    bool *used; // [tensor_count]
    int64_t missing;
    cot_error first; // missing
    char name[COT_STORED_NAME];
    cot_weight weight;
    cot_error *error;
} survey;

static void use(survey *s, const cot_stored *stored)
{
    const cot_shard_tensor *const all[] = {stored->tensor,     stored->scales,      stored->values,
                                           stored->of_all,     stored->whole.zeros, stored->whole.order,
                                           stored->whole.shape};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) s->used[all[i] - s->checkpoint->shards.tensors] = true;
}

static cot_status check_weight(void *context, cot_weight weight, int64_t layer, int64_t expert)
{
    survey *s = context;
    const cot_config *config = &s->checkpoint->config;
    cot_stored stored;
    cot_error error = {0};
    if (weight == COT_WEIGHT_OUTPUT && config->tied_embeddings) return COT_OK;
    cot_status status = cot_stored_find(&stored, s->checkpoint, weight, layer, expert, &error);
    if (status == COT_NOT_FOUND) {
        use(s, &stored); // a matrix whose scales are missing
        if (!s->missing++) {
            s->first = error;
            s->weight = weight;
            cot_stored_name(s->name, config, weight, layer, expert, "");
        }
        return s->missing < MOST_MISSING ? COT_OK : status;
    }
    if (status == COT_OK) status = cot_stored_hold(&stored, weight, config, &error);
    if (status != COT_OK) return cot_fail(s->error, status, "%s", error.message);
    use(s, &stored);
    return COT_OK;
}

/* ---- the head ---- */

/* Whether the head that is stored holds the embedding's numbers. */
static cot_status compare_head(bool *same, const cot_checkpoint *checkpoint, cot_error *error)
{
    const int64_t vocab = checkpoint->config.vocab, hidden = checkpoint->config.hidden,
                  rows = cot_larger(COMPARED / hidden, 1);
    float *head = malloc((size_t)(rows * hidden) * sizeof *head),
          *embedding = malloc((size_t)(rows * hidden) * sizeof *embedding);
    cot_status status = COT_OK;
    if (!head || !embedding) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to read the head");
    *same = true;
    for (int64_t r = 0; r < vocab && *same && status == COT_OK; r += rows) {
        cot_weight_piece piece = {COT_WEIGHT_OUTPUT, .row0 = r, .rows = cot_smaller(rows, vocab - r),
                                  .columns = hidden};
        status = cot_checkpoint_read(checkpoint, &piece, head, error);
        piece.weight = COT_WEIGHT_EMBEDDING;
        if (status == COT_OK) status = cot_checkpoint_read(checkpoint, &piece, embedding, error);
        for (int64_t i = 0; i < piece.rows * hidden && *same && status == COT_OK; i++)
            *same = head[i] == embedding[i];
    }
    free(head), free(embedding);
    return status;
}

/* A head that is stored though config.json ties it to the embedding is the head where they differ: *warning, else NULL. */
static cot_status settle_head(cot_checkpoint *checkpoint, survey *s, const char **warning, cot_error *error)
{
    cot_stored head, embedding;
    bool same = true;
    *warning = NULL;
    if (!checkpoint->config.tied_embeddings) return COT_OK;
    checkpoint->config.tied_embeddings = false;
    cot_status status = cot_stored_find(&head, checkpoint, COT_WEIGHT_OUTPUT, 0, 0, error);
    const bool stored = status == COT_OK;
    if (stored) {
        use(s, &head);
        if (cot_stored_find(&embedding, checkpoint, COT_WEIGHT_EMBEDDING, 0, 0, NULL) == COT_OK)
            status = compare_head(&same, checkpoint, error);
    } else if (status == COT_NOT_FOUND) {
        status = COT_OK;
    }
    checkpoint->config.tied_embeddings = same;
    if (!same)
        *warning =
            "warning: config.json ties the head to the embedding, but a head is stored that differs: it is "
            "used (set tie_word_embeddings to false)";
    return status;
}

/* ---- why a tensor is not used ---- */

/* Activations are not quantised, whatever files have for that. */
static bool is_of_activations(const char *name)
{
    static const char *const ends[] = {".input_scale",
                                       ".input_zero_point",
                                       ".input_global_scale",
                                       ".output_scale",
                                       ".output_zero_point",
                                       ".activation_scale",
                                       ".k_scale",
                                       ".v_scale"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (cot_path_ends(name, ends[i])) return true;
    return false;
}

static bool begins_one_of(const char *name, const char *const *begins, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strncmp(name, begins[i], strlen(begins[i]))) return true;
    return false;
}

/* The layer that the tensor is of, or -1. */
static int64_t layer_of(const char *name)
{
    long long layer;
    const char *at = strncmp(name, "language_model.", 15) ? name : name + 15;
    if (!strncmp(at, "model.", 6)) at += 6;
    if (!strncmp(at, "language_model.", 15)) at += 15;
    return sscanf(at, "layers.%lld.", &layer) == 1 || sscanf(name, "blk.%lld.", &layer) == 1 ? layer : -1;
}

/* Of a layer beyond the last one, or of what predicts several tokens ahead. */
static bool is_beyond(const char *name, int64_t layers)
{
    static const char *const begins[] = {"mtp.", "model.mtp", "language_model.mtp",
                                         "language_model.model.mtp"};
    return begins_one_of(name, begins, sizeof begins / sizeof *begins) || layer_of(name) >= layers;
}

/* Of what sees or hears in a model that does more than texts. */
static bool is_of_senses(const char *name)
{
    static const char *const begins[] = {"vision_tower.",
                                         "vision_model.",
                                         "visual.",
                                         "model.visual.",
                                         "model.vision_tower.",
                                         "mm_projector.",
                                         "multi_modal_projector.",
                                         "model.multi_modal_projector.",
                                         "audio_tower.",
                                         "model.audio_tower."};
    return begins_one_of(name, begins, sizeof begins / sizeof *begins);
}

typedef enum unused {
    UNUSED_BEYOND,
    UNUSED_SENSES,
    UNUSED_INDEXER,
    UNUSED_FREQUENCIES,
    UNUSED_ACTIVATIONS,
    UNUSED_UNKNOWN,
    UNUSED_KINDS
} unused;

static const char *const unused_words[UNUSED_UNKNOWN] = {[UNUSED_BEYOND] = "of layer",
                                                         [UNUSED_SENSES] = "of vision and hearing",
                                                         [UNUSED_INDEXER] = "of sparse attention's indexer",
                                                         [UNUSED_FREQUENCIES] = "rotary_emb.inv_freq",
                                                         [UNUSED_ACTIVATIONS] = "of activations' scales"};

static unused why_unused(const char *name, int64_t layers)
{
    if (is_beyond(name, layers)) return UNUSED_BEYOND;
    if (is_of_senses(name)) return UNUSED_SENSES;
    if (strstr(name, ".indexer.")) return UNUSED_INDEXER;
    if (cot_path_ends(name, "rotary_emb.inv_freq")) return UNUSED_FREQUENCIES;
    return is_of_activations(name) ? UNUSED_ACTIVATIONS : UNUSED_UNKNOWN;
}

/* Norms of q and k that are stored although config.json has none: without them another model would be computed. */
static cot_status refuse_norms(const survey *s)
{
    const cot_config *config = &s->checkpoint->config;
    const cot_shards *shards = &s->checkpoint->shards;
    if (config->gguf || config->qk_norm == config->family->qk_norm) return COT_OK;
    const char *end = strstr(cot_weight_template(config->family, COT_WEIGHT_Q_NORM), "{layer}") + 7;
    for (size_t i = 0; i < shards->tensor_count; i++) {
        const char *name = shards->tensors[i].tensor->name;
        if (!s->used[i] && !is_beyond(name, config->layers) && cot_path_ends(name, end))
            return cot_fail(s->error, COT_MALFORMED, "tensor '%s' is stored, but '%s' is not true", name,
                            config->family->qk_normed.name);
    }
    return COT_OK;
}

/* ---- what is missing ---- */

static size_t common(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

/* A tensor of those that only quantization_config says how to read, beside the matrix that `name` ends in ".weight" for. */
static bool needs_telling(const char *tensor, const char *name)
{
    static const char *const ends[] = {"qweight", "qzeros", "scales", "g_idx", "weight_packed"};
    const size_t module = strlen(name) - strlen("weight");
    if (!cot_path_ends(name, ".weight") || strncmp(tensor, name, module) != 0) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!strcmp(tensor + module, ends[i])) return true;
    return false;
}

/* A head is not looked for among layers that predict several tokens ahead. */
static bool may_lie_instead(const survey *s, size_t tensor)
{
    const unused why =
        why_unused(s->checkpoint->shards.tensors[tensor].tensor->name, s->checkpoint->config.layers);
    return !s->used[tensor] &&
           (why == UNUSED_UNKNOWN || (why == UNUSED_BEYOND && s->weight != COT_WEIGHT_OUTPUT));
}

/* What lies there instead: of the tensors that nobody uses the one that is called most like the first that is missing, of several the
 * largest. `nothing`: the words where there is none. */
static void describe_instead(char *out, size_t room, const survey *s, const char *nothing)
{
    const cot_shards *shards = &s->checkpoint->shards;
    const cot_tensor *nearest = NULL;
    size_t candidates = 0, most = 0;
    char shape[64], more[48] = "";
    for (size_t i = 0; i < shards->tensor_count; i++) {
        if (!may_lie_instead(s, i)) continue;
        const cot_tensor *t = shards->tensors[i].tensor;
        const size_t alike = common(t->name, s->name);
        if (!candidates++ || alike > most || (alike == most && t->bytes > nearest->bytes))
            nearest = t, most = alike;
    }
    snprintf(out, room, "%s", nothing);
    if (!nearest) return;
    cot_stored_print_shape(shape, sizeof shape, nearest->shape, nearest->dims);
    if (candidates > 1) snprintf(more, sizeof more, ", and %zu more unknown", candidates - 1);
    const bool untold = !s->checkpoint->config.quantisation.told && needs_telling(nearest->name, s->name);
    snprintf(out, room, "; there is '%.100s' %s %s instead%s%s", nearest->name, cot_tensor_type_name(nearest),
             shape, more, untold ? ": config.json has no quantization_config" : "");
}

static cot_status fail_missing(const survey *s, const char *folder, cot_error *error)
{
    char more[48] = "", instead[320];
    const bool head = s->missing == 1 && s->weight == COT_WEIGHT_OUTPUT;
    describe_instead(instead, sizeof instead, s,
                     head ? " (a base model's files)" : "; nothing lies there instead");
    if (head)
        return cot_fail(error, COT_MALFORMED, "'%s': no head in it, and its config does not tie it: %s%s",
                        folder, s->first.message, instead);
    if (s->missing > 1)
        snprintf(more, sizeof more, ", and %s%" PRId64 " more", s->missing == MOST_MISSING ? "at least " : "",
                 s->missing - 1);
    return cot_fail(error, COT_MALFORMED, "'%s': %s%s%s", folder, s->first.message, more, instead);
}

/* ---- the notes ---- */

/* Says in a line which tensors nobody uses, and why, and the warning in one before; NULL where there is nothing to say. */
static cot_status describe(char **notes, const survey *s, const char *warning, cot_error *error)
{
    const cot_shards *shards = &s->checkpoint->shards;
    const int64_t layers = s->checkpoint->config.layers;
    size_t all = 0, count[UNUSED_KINDS] = {0};
    const char *other = "";
    bool runs = false; // the layer of one that is unknown does
    for (size_t i = 0; i < shards->tensor_count; i++) {
        const char *name = shards->tensors[i].tensor->name;
        if (s->used[i]) continue;
        const unused why = why_unused(name, layers);
        if (!count[why]++ && why == UNUSED_UNKNOWN) other = name;
        runs |= why == UNUSED_UNKNOWN && layer_of(name) >= 0;
        all++;
    }
    *notes = NULL;
    if (!all && !warning) return COT_OK;
    const size_t told = warning ? strlen(warning) + 1 : 0, room = told + 500 + strlen(other);
    *notes = malloc(room);
    if (!*notes) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    snprintf(*notes, room, "%s", warning ? warning : "");
    if (!all) return COT_OK;
    if (warning) strcat(*notes, "\n");
    char *const out = *notes + told;
    const size_t left = room - told;
    size_t at = (size_t)snprintf(out, left, "%s%zu tensor%s not used:", runs ? "warning: " : "", all,
                                 all == 1 ? " is" : "s are");
    const char *comma = "";
    for (int why = 0; why < UNUSED_UNKNOWN; why++) {
        if (!count[why]) continue;
        at += (size_t)snprintf(out + at, left - at, "%s %zu %s", comma, count[why], unused_words[why]);
        if (why == UNUSED_BEYOND)
            at += (size_t)snprintf(out + at, left - at, " %" PRId64 " and beyond", layers);
        comma = ",";
    }
    if (count[UNUSED_UNKNOWN])
        snprintf(out + at, left - at, "%s %zu unknown%s '%s'", comma, count[UNUSED_UNKNOWN],
                 count[UNUSED_UNKNOWN] > 1 ? ", the first" : ",", other);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return COT_OK;
}

/* Adds a line to the others, which are malloc'd or NULL, and stay so after a failure. */
static cot_status add_note(char **notes, const char *line, cot_error *error)
{
    char *all, *own = *notes;
    *notes = NULL;
    if (asprintf(&all, "%s%s%s", own ? own : "", own ? "\n" : "", line) < 0) {
        free(own);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    for (char *c = all + (own ? strlen(own) + 1 : 0); *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    free(own);
    *notes = all;
    return COT_OK;
}

/* Where weights are in a file of another name. */
static cot_status tell_other_name(char **notes, const char *name, cot_error *error)
{
    char line[320];
    if (!*name) return COT_OK;
    snprintf(line, sizeof line, "'%s' is read for model.safetensors", name);
    return add_note(notes, line, error);
}

/* Where attention would be sparse beyond the context, or RoPE's factors others. */
static cot_status tell_context(char **notes, const cot_config *config, cot_error *error)
{
    char line[240];
    if (!config->context_field) return COT_OK;
    const bool sparse = config->context_field == config->family->sizes[COT_SIZE_DENSE_CONTEXT].name;
    snprintf(line, sizeof line,
             "the context ends at %" PRId64 " tokens, its '%s': longer texts need its %s not supported",
             config->max_context, config->context_field,
             sparse ? "sparse attention, which is" : "long RoPE factors, which are");
    return add_note(notes, line, error);
}

cot_status cot_checkpoint_survey(cot_checkpoint *checkpoint, char **notes, const char *folder,
                                 cot_error *error)
{
    cot_error detail = {0};
    const char *warning;
    survey s = {
        .checkpoint = checkpoint, .error = &detail, .used = calloc(checkpoint->shards.tensor_count + 1, 1)};
    if (!s.used) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", folder);
    const cot_shard_tensor *divisors = cot_shards_find(&checkpoint->shards, "rope_freqs.weight");
    if (checkpoint->config.gguf && divisors)
        s.used[divisors - checkpoint->shards.tensors] = true; // the config has it
    cot_status status = settle_head(checkpoint, &s, &warning, &detail);
    if (status == COT_OK) status = cot_weight_each(&checkpoint->config, &s, check_weight);
    if (status == COT_OK && !s.missing) status = refuse_norms(&s);
    if (s.missing)
        status = fail_missing(&s, folder, error);
    else if (status != COT_OK)
        cot_fail(error, status, "'%s': %s", folder, detail.message);
    else
        status = describe(notes, &s, warning, error);
    if (status == COT_OK) status = tell_other_name(notes, checkpoint->shards.other, error);
    if (status == COT_OK) status = tell_context(notes, &checkpoint->config, error);
    free(s.used);
    return status;
}
