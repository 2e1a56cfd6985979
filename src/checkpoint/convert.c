#include "checkpoint/convert.h"

#include "base/error.h"
#include "base/integers.h"
#include "base/json_load.h"
#include "checkpoint/gguf_config.h"
#include "coterie/model.h"
#include "coterie/roof.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_BYTES = 4 << 20, MOST_NAME = 64, MAX_CONFIG_BYTES = 16 << 20 };

/* A folder that is being written. */
typedef struct target {
    const cot_checkpoint *checkpoint;
    const cot_convert_plan *plan;
    const cot_model_convert_options *options;
    cot_pool *pool;
    char *path, *beside; // the folder, and where it is until it is whole
    size_t done_bytes;
} target;

static cot_status fail_errno(cot_error *error, const char *what, const char *path)
{
    const int code = errno;
    return cot_fail(error, code == ENOENT ? COT_NOT_FOUND : COT_IO, "cannot %s '%s': %s", what, path,
                    strerror(code));
}

/* ---- weights ---- */

static cot_status put(FILE *stream, const void *data, size_t bytes, const char *path, cot_error *error)
{
    return fwrite(data, 1, bytes, stream) == bytes ? COT_OK : fail_errno(error, "write", path);
}

/* Bytes that are written now, and whether to go on. */
static cot_status tell(target *t, size_t bytes, cot_error *error)
{
    const cot_model_convert_options *o = t->options;
    t->done_bytes += bytes;
    if (!o->progress || o->progress(o->progress_context, t->done_bytes, t->plan->bytes)) return COT_OK;
    return cot_fail(error, COT_IO, "writing '%s' was given up", t->path);
}

static cot_status put_copy(target *t, FILE *stream, const cot_convert_unit *u, cot_error *error)
{
    const cot_tensor *tensor = u->source->tensor;
    const cot_file_map *map = cot_shards_map(&t->checkpoint->shards, u->source);
    const uint8_t *data = tensor->data;
    cot_status status = COT_OK;
    for (size_t at = 0; at < tensor->bytes && status == COT_OK; at += COPY_BYTES) {
        const size_t bytes = tensor->bytes - at < COPY_BYTES ? tensor->bytes - at : COPY_BYTES;
        status = put(stream, data + at, bytes, t->path, error);
        cot_file_map_drop(map, (size_t)(data - map->data) + at, bytes);
        if (status == COT_OK) status = tell(t, bytes, error);
    }
    return status;
}

static cot_status put_rounded(target *t, FILE *stream, const cot_convert_unit *u, cot_error *error)
{
    const size_t codes_bytes = (size_t)(u->rows * cot_convert_code_bytes(u->format, u->columns)),
                 scales_bytes = (size_t)(u->rows * cot_convert_scale_bytes(u->format, u->columns)),
                 all_scales = (size_t)u->matrices * scales_bytes;
    uint8_t *codes = malloc(codes_bytes + 1), *scales = malloc(all_scales + 1);
    cot_status status = COT_OK;
    if (!codes || !scales) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory to round weights");
    for (int64_t m = 0; m < u->matrices && status == COT_OK; m++) {
        status =
            cot_convert_round(codes, scales + (size_t)m * scales_bytes, u, m, t->checkpoint, t->pool, error);
        if (status == COT_OK) status = put(stream, codes, codes_bytes, t->path, error);
        if (status == COT_OK) status = tell(t, codes_bytes + scales_bytes, error);
    }
    if (status == COT_OK) status = put(stream, scales, all_scales, t->path, error);
    const int64_t shape[2] = {u->rows, u->columns};
    if (status == COT_OK && u->count == 3) {
        status = put(stream, shape, sizeof shape, t->path, error);
        t->done_bytes += sizeof shape;
    }
    free(codes);
    free(scales);
    return status;
}

static cot_status put_units(target *t, FILE *stream, const cot_convert_unit *units, size_t count,
                            cot_error *error)
{
    cot_status status = COT_OK;
    for (size_t i = 0; i < count && status == COT_OK; i++)
        status = units[i].source ? put_copy(t, stream, &units[i], error)
                                 : put_rounded(t, stream, &units[i], error);
    return status;
}

static cot_status open_beside(cot_file_writer *writer, const target *t, const char *name, cot_error *error)
{
    char *path = cot_path_join(t->beside, name);
    const cot_status status = path ? cot_file_writer_open(writer, path, error)
                                   : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    free(path);
    return status;
}

/* Ends a file of the folder; what failed before wins. */
static cot_status close_beside(cot_file_writer *writer, cot_status status, cot_error *error)
{
    if (status == COT_OK) return cot_file_writer_commit(writer, error);
    cot_file_writer_abort(writer);
    return status;
}

static cot_status write_file(target *t, const char *name, const cot_convert_unit *units, size_t count,
                             cot_error *error)
{
    static const char *const meta[] = {"format", "pt"}; // transformers asks for it
    cot_file_writer writer;
    cot_status status = open_beside(&writer, t, name, error);
    if (status != COT_OK) return status;
    cot_tensor *tensors = malloc((3 * count + 1) * sizeof *tensors);
    size_t n = 0;
    for (size_t i = 0; tensors && i < count; i++)
        for (int k = 0; k < units[i].count; k++) tensors[n++] = units[i].tensors[k];
    status = tensors ? cot_safetensors_begin(writer.stream, t->path, tensors, n, meta, 1, error)
                     : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the list of tensors");
    free(tensors);
    if (status == COT_OK) status = put_units(t, writer.stream, units, count, error);
    return close_beside(&writer, status, error);
}

static cot_status write_json(const target *t, const char *name, const json_t *json, cot_error *error)
{
    cot_file_writer writer;
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    if (!text) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %s", name);
    cot_status status = open_beside(&writer, t, name, error);
    if (status == COT_OK) {
        status = put(writer.stream, text, strlen(text), t->path, error);
        if (status == COT_OK) status = put(writer.stream, "\n", 1, t->path, error);
        status = close_beside(&writer, status, error);
    }
    free(text);
    return status;
}

/* Units from `first` on that share a file. */
static size_t units_of_file(const target *t, size_t first)
{
    const cot_convert_plan *plan = t->plan;
    size_t end = first, bytes = 0;
    while (end < plan->count &&
           (end == first || bytes + plan->units[end].bytes <= (size_t)t->options->file_bytes))
        bytes += plan->units[end++].bytes;
    return end - first;
}

static cot_status write_weights(target *t, cot_error *error)
{
    const cot_convert_plan *plan = t->plan;
    size_t files = 0, file = 0;
    for (size_t i = 0; i < plan->count; i += units_of_file(t, i)) files++;
    if (files == 1) return write_file(t, "model.safetensors", plan->units, plan->count, error);
    json_t *map = json_object();
    int failed = !map;
    cot_status status = COT_OK;
    for (size_t i = 0, count; i < plan->count && status == COT_OK; i += count) {
        char name[MOST_NAME];
        count = units_of_file(t, i);
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", ++file, files);
        status = write_file(t, name, plan->units + i, count, error);
        for (size_t u = i; u < i + count; u++)
            for (int k = 0; k < plan->units[u].count; k++)
                failed |= json_object_set_new(map, plan->units[u].tensors[k].name, json_string(name));
    }
    json_t *index = failed ? NULL
                           : json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)plan->bytes,
                                       "weight_map", map);
    if (status == COT_OK) status = write_json(t, "model.safetensors.index.json", index, error);
    json_decref(index);
    json_decref(map);
    return status;
}

/* ---- what lies beside the weights ---- */

static cot_status read_config(json_t **config, const char *folder, cot_error *error)
{
    char *path = cot_path_join(folder, "config.json"), *text = NULL;
    size_t bytes;
    json_error_t detail;
    cot_status status = path ? cot_file_read(&text, &bytes, path, MAX_CONFIG_BYTES, error)
                             : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (status == COT_OK &&
        !(*config = cot_json_load(text, bytes, 0, &detail))) // read before, when the checkpoint was opened
        status = cot_fail(error, COT_MALFORMED, "'%s': not valid JSON: %s", path, detail.text);
    free(path);
    free(text);
    return status;
}

static cot_status write_config(const target *t, const char *model, cot_error *error)
{
    const cot_config *own = &t->checkpoint->config;
    json_t *config = NULL;
    cot_status status = own->gguf ? cot_config_tell_gguf(&config, &t->checkpoint->shards, model, error)
                                  : read_config(&config, model, error);
    if (status != COT_OK) return status;
    const bool untied = json_is_true(json_object_get(config, "tie_word_embeddings")) &&
                        !own->tied_embeddings; // a head of its own is stored
    json_t *quantised = own->gguf ? cot_convert_tell_gguf(t->plan, own) : cot_convert_tell(t->plan, own);
    if (!quantised || (!json_is_null(quantised) && json_object_set(config, "quantization_config", quantised)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for config.json");
    else if (untied && json_object_set_new(config, "tie_word_embeddings", json_false()))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for config.json");
    if (status == COT_OK) status = write_json(t, "config.json", config, error);
    json_decref(quantised);
    json_decref(config);
    return status;
}

/* Tokenizers, templates, settings of generation, code and licences: what is neither weights nor about them. */
static bool comes_along(const char *name)
{
    static const char *const ends[] = {".json", ".txt", ".model", ".jinja", ".py"};
    static const char *const of_files[] = {"config.json", "quantize_config.json", "quant_config.json",
                                           "hf_quant_config.json"}; // what the source's weights are in
    for (size_t i = 0; i < sizeof of_files / sizeof *of_files; i++)
        if (!strcmp(name, of_files[i])) return false;
    if (cot_path_ends(name, ".index.json")) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (*name != '.' && cot_path_ends(name, ends[i])) return true;
    return !strncmp(name, "LICENSE", strlen("LICENSE"));
}

static cot_status copy_file(const target *t, const char *folder, const char *name, cot_error *error)
{
    struct stat info;
    cot_file_map map;
    cot_file_writer writer;
    char *path = cot_path_join(folder, name);
    cot_status status = COT_OK;
    if (!path) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (stat(path, &info) || S_ISREG(info.st_mode)) { // folders stay where they are
        status = cot_file_map_open(&map, path, error);
        if (status == COT_OK) {
            status = open_beside(&writer, t, name, error);
            if (status == COT_OK)
                status =
                    close_beside(&writer, put(writer.stream, map.data, map.bytes, t->path, error), error);
            cot_file_map_close(&map);
        }
    }
    free(path);
    return status;
}

static cot_status copy_others(const target *t, const char *folder, cot_error *error)
{
    DIR *list = opendir(folder);
    cot_status status = list ? COT_OK : fail_errno(error, "read", folder);
    for (const struct dirent *entry; status == COT_OK && (entry = readdir(list));)
        if (comes_along(entry->d_name)) status = copy_file(t, folder, entry->d_name, error);
    if (list) closedir(list);
    return status;
}

static cot_status write_told(const target *t, const char *path, cot_error *error)
{
    json_t *tokenizer = NULL, *settings = NULL;
    cot_status status = cot_convert_beside_gguf(&tokenizer, &settings, path, error);
    if (status == COT_OK) status = write_json(t, "tokenizer.json", tokenizer, error);
    if (status == COT_OK) status = write_json(t, "tokenizer_config.json", settings, error);
    json_decref(tokenizer);
    json_decref(settings);
    return status;
}

/* ---- the folder ---- */

static cot_status make_beside(target *t, cot_error *error)
{
    struct stat info;
    if (!lstat(t->path, &info))
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' exists: name a new folder", t->path);
    if (errno != ENOENT) return fail_errno(error, "make", t->path);
    if (asprintf(&t->beside, "%s.XXXXXX", t->path) < 0) {
        t->beside = NULL;
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    if (mkdtemp(t->beside)) {
        const mode_t mask = umask(0);
        umask(mask);
        if (!chmod(t->beside, 0777 & ~mask)) return COT_OK;
    } else {
        free(t->beside);
        t->beside = NULL;
    }
    return fail_errno(error, "make", t->path);
}

static void remove_beside(const target *t)
{
    DIR *list = opendir(t->beside);
    for (const struct dirent *entry; list && (entry = readdir(list));)
        unlinkat(dirfd(list), entry->d_name, 0);
    if (list) closedir(list);
    rmdir(t->beside);
}

static cot_status write_folder(target *t, const char *model, cot_error *error)
{
    cot_status status = make_beside(t, error);
    if (status == COT_OK)
        status = t->checkpoint->config.gguf ? write_told(t, model, error) : copy_others(t, model, error);
    if (status == COT_OK) status = write_config(t, model, error);
    if (status == COT_OK) status = tell(t, 0, error);
    if (status == COT_OK) status = write_weights(t, error);
    if (status == COT_OK) status = tell(t, 0, error);
    if (status == COT_OK && rename(t->beside, t->path)) status = fail_errno(error, "make", t->path);
    if (status != COT_OK && t->beside) remove_beside(t);
    free(t->beside);
    return status;
}

void cot_model_convert_options_init(cot_model_convert_options *options)
{
    *options = (cot_model_convert_options){.size = sizeof *options, .file_bytes = 5000000000};
}

/* "as-stored" (COT_FORMATS), or a format that is written; bf16 is for what no folder holds as it is. */
static cot_status format_of(cot_format *format, const char *word, bool gguf, cot_error *error)
{
    *format = COT_FORMATS;
    if (!strcmp(word, "as-stored")) return COT_OK;
    *format = cot_format_parse(word);
    if (*format == COT_FORMAT_INT4 || *format == COT_FORMAT_INT8 || *format == COT_FORMAT_MXFP4 ||
        (*format == COT_FORMAT_BF16 && gguf))
        return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "no checkpoint is written in '%s' (int4, int8 or mxfp4)%s",
                    word, *format == COT_FORMAT_BF16 ? ", but of a GGUF file" : "");
}

static cot_status formats_of(cot_convert_formats *f, const cot_model_convert_options *o,
                             const cot_config *config, cot_error *error)
{
    const bool gguf = config->gguf;
    const char *experts = o->weights ? o->weights
                          : gguf     ? "as-stored"
                                     : "int4",
               *attention = config->family->stacked         ? "as-stored"
                            : !strcmp(experts, "as-stored") ? "as-stored"
                            : !strcmp(experts, "bf16")      ? "bf16"
                                                            : "int8",
               *head = !strcmp(experts, "bf16") && !config->tied_embeddings ? "bf16" : "as-stored";
    cot_status status = format_of(&f->experts, experts, gguf, error);
    if (status == COT_OK && f->experts == COT_FORMATS && !gguf)
        return cot_fail(error, COT_INVALID_ARGUMENT, "networks that stay as stored are nothing to convert");
    if (status == COT_OK)
        status =
            format_of(&f->attention, o->weights_attention ? o->weights_attention : attention, gguf, error);
    if (status == COT_OK) status = format_of(&f->head, o->weights_head ? o->weights_head : head, gguf, error);
    if (status != COT_OK) return status;
    f->scheme = f->attention != COT_FORMATS ? f->attention : f->head != COT_FORMATS ? f->head : f->experts;
    f->others = f->scheme == f->experts || gguf ? f->experts : COT_FORMATS;
    return COT_OK;
}

static cot_status add_note(char **notes, const char *text, cot_error *error)
{
    char *own = *notes, *all;
    if (asprintf(&all, "%s%s%s", own ? own : "", own ? "\n" : "", text) < 0)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    free(own);
    *notes = all;
    return COT_OK;
}

/* Of GGUF: what no layout of folders holds. */
static cot_status add_notes_gguf(char **notes, const cot_convert_plan *plan, cot_error *error)
{
    char text[200];
    if (!plan->widened) return COT_OK;
    snprintf(
        text, sizeof text,
        "tensors of types that no folder holds become fp32, which is exact: %zu, %.1f of %.1f MB (--weights "
        "bf16 rounds those of networks, attention and head, to half of that)",
        plan->widened, (double)plan->widened_bytes / 1e6, (double)plan->bytes / 1e6);
    return add_note(notes, text, error);
}

/* What the plan leaves as it lies or widens, or some readers do not read, in lines after those that are there. */
static cot_status add_notes(char **notes, const cot_convert_plan *plan, const cot_config *config,
                            cot_error *error)
{
    const cot_convert_formats *f = &plan->formats;
    const bool others = config->shared_intermediate || config->moe_layers < config->layers,
               kept = others && f->others == COT_FORMATS,
               two = f->head != COT_FORMATS && f->head != f->scheme;
    char *all, *own = *notes;
    if (!kept && !two) return COT_OK;
    const int length = asprintf(
        &all, "%s%s%s%s%s%s%s", own ? own : "", own ? "\n" : "",
        kept ? "networks of dense layers and shared experts " : "",
        !kept                 ? ""
        : plan->widens_others ? "that are stored in few bits become bf16, others stay as stored"
                              : "stay as stored",
        kept ? ": readers take one kind for all that is no expert's, here attention's or the head's" : "",
        kept && two ? "\n" : "",
        two ? "attention and head are of two kinds, which transformers reads as one or refuses where it "
              "widens them while it loads"
            : "");
    if (length < 0) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    free(own);
    *notes = all;
    return COT_OK;
}

static cot_status check_options(const cot_model_convert_options *o, cot_error *error)
{
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->threads < 0 || o->threads > 1024)
        return cot_fail(error, COT_INVALID_ARGUMENT, "threads %d is not in [0, 1024]", o->threads);
    if (o->file_bytes < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "bytes of a file %" PRId64 " are below 1",
                        o->file_bytes);
    cot_format networks;
    return o->weights ? format_of(&networks, o->weights, true, error) : COT_OK;
}

static int workers(const cot_model_convert_options *o)
{
    return (o->threads ? o->threads : cot_cores()) - 1;
}

cot_status cot_model_convert(const char *folder, const char *output, const cot_model_convert_options *options,
                             char **notes, cot_error *error)
{
    cot_checkpoint *checkpoint = NULL;
    cot_convert_plan plan = {0};
    cot_convert_formats formats;
    char *own_notes = NULL;
    target t = {.options = options, .plan = &plan, .path = strdup(output)};
    if (notes) *notes = NULL;
    cot_status status = check_options(options, error);
    size_t length = t.path ? strlen(t.path) : 0;
    while (length > 1 && t.path[length - 1] == '/') t.path[--length] = 0;
    if (status == COT_OK && !length)
        status = cot_fail(error, t.path ? COT_INVALID_ARGUMENT : COT_OUT_OF_MEMORY, "no folder is named");
    if (status == COT_OK) status = cot_checkpoint_open(&checkpoint, folder, &own_notes, error);
    if (status == COT_OK) status = formats_of(&formats, options, &checkpoint->config, error);
    if (status == COT_OK) status = cot_convert_plan_make(&plan, checkpoint, formats, error);
    if (status == COT_OK)
        status = checkpoint->config.gguf ? add_notes_gguf(&own_notes, &plan, error)
                                         : add_notes(&own_notes, &plan, &checkpoint->config, error);
    if (status == COT_OK) status = cot_pool_open(&t.pool, workers(options), error);
    t.checkpoint = checkpoint;
    if (status == COT_OK) status = write_folder(&t, folder, error);
    cot_pool_close(t.pool);
    cot_convert_plan_clear(&plan);
    cot_checkpoint_close(checkpoint);
    free(t.path);
    if (notes && status == COT_OK)
        *notes = own_notes;
    else
        free(own_notes);
    return status;
}
