/* TensorRT-LLM's load balancer configuration, YAML: "num_slots" and "initial_global_assignments", from the model's
 * number of a layer to its slots in rank order. Read event by event, so that nothing is built that is not wanted;
 * aliases are refused, with which a few lines can mean any number of slots. */
#include "placement/formats/formats.h"

#include "base/error.h"
#include "routing/scan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct layer_row {
    int32_t layer;
    size_t first, count; // in `slots`
} layer_row;

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; // the one that is looked at
    const char *path;
    cot_error *error;
    int32_t num_slots; // 0 while not read
    layer_row *rows;
    int32_t *slots;
    size_t n_rows, n_slots, room;
} reader;

static cot_status broken(const reader *r, const char *what)
{
    return cot_fail(r->error, COT_MALFORMED, "'%s' line %zu is no placement: %s", r->path,
                    r->event.start_mark.line + 1, what);
}

/* Moves on to the next event. */
static cot_status advance(reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event))
        return r->parser.error == YAML_MEMORY_ERROR
                   ? cot_map_no_memory(r->path, r->error)
                   : cot_fail(r->error, COT_MALFORMED, "'%s' line %zu is no YAML: %s", r->path,
                              r->parser.problem_mark.line + 1, r->parser.problem ? r->parser.problem : "?");
    return r->event.type == YAML_ALIAS_EVENT ? broken(r, "aliases are not read") : COT_OK;
}

static cot_status want(const reader *r, yaml_event_type_t type, const char *what)
{
    return r->event.type == type ? COT_OK : broken(r, what);
}

/* The current event as a number. */
static cot_status whole(const reader *r, int32_t most, int32_t *n)
{
    uint32_t value;
    if (r->event.type == YAML_SCALAR_EVENT) {
        const char *text = (const char *)r->event.data.scalar.value;
        cot_scan scan = {text, text + r->event.data.scalar.length};
        if (cot_scan_number(&scan, (uint32_t)most, &value) && scan.at == scan.end) {
            *n = (int32_t)value;
            return COT_OK;
        }
    }
    return broken(r, "expected a whole number");
}

/* Moves past the value that begins with the current event. */
static cot_status skip(reader *r)
{
    size_t depth = 0;
    for (;;) {
        yaml_event_type_t type = r->event.type;
        if (type == YAML_SEQUENCE_START_EVENT || type == YAML_MAPPING_START_EVENT) depth++;
        if (type == YAML_SEQUENCE_END_EVENT || type == YAML_MAPPING_END_EVENT) depth--;
        cot_status status = advance(r);
        if (status != COT_OK || !depth) return status;
    }
}

/* "[0, 1, 2]" or a list of lines, as the next row */
static cot_status read_row(reader *r, int32_t layer)
{
    cot_status status = want(r, YAML_SEQUENCE_START_EVENT, "the slots of a layer are no list");
    if (status == COT_OK && r->n_rows == COT_TRACE_MAX_LAYERS) return broken(r, "too many layers");
    layer_row *row = &r->rows[r->n_rows];
    *row = (layer_row){layer, r->n_slots, 0};
    while (status == COT_OK && (status = advance(r)) == COT_OK && r->event.type != YAML_SEQUENCE_END_EVENT) {
        if (r->n_slots == r->room) {
            size_t room = r->room ? 2 * r->room : 1024;
            int32_t *larger = realloc(r->slots, room * sizeof *larger);
            if (!larger) return cot_map_no_memory(r->path, r->error);
            r->slots = larger;
            r->room = room;
        }
        status = whole(r, COT_TRACE_MAX_EXPERTS - 1, &r->slots[r->n_slots++]);
        row->count++;
    }
    r->n_rows++;
    return status == COT_OK ? advance(r) : status;
}

static cot_status read_assignments(reader *r)
{
    cot_status status =
        want(r, YAML_MAPPING_START_EVENT, "'initial_global_assignments' are no mapping of layers");
    if (status == COT_OK) status = advance(r);
    while (status == COT_OK && r->event.type != YAML_MAPPING_END_EVENT) {
        int32_t layer = 0;
        status = whole(r, INT32_MAX, &layer);
        if (status == COT_OK) status = advance(r);
        if (status == COT_OK) status = read_row(r, layer);
    }
    return status == COT_OK ? advance(r) : status;
}

static bool is_text(const reader *r, const char *text)
{
    return r->event.type == YAML_SCALAR_EVENT && !strcmp((const char *)r->event.data.scalar.value, text);
}

/* The document: a mapping of which two keys matter. */
static cot_status read_document(reader *r)
{
    cot_status status = COT_OK;
    for (int i = 0; i < 3 && status == COT_OK; i++) status = advance(r); // stream, document, its content
    if (status == COT_OK) status = want(r, YAML_MAPPING_START_EVENT, "expected a mapping");
    if (status == COT_OK) status = advance(r);
    while (status == COT_OK && r->event.type != YAML_MAPPING_END_EVENT) {
        bool assignments = is_text(r, "initial_global_assignments"), slots = is_text(r, "num_slots");
        status = skip(r); // the key
        if (status != COT_OK) break;
        if (assignments && !r->n_rows) {
            status = read_assignments(r);
        } else if (slots) {
            status = whole(r, INT32_MAX, &r->num_slots);
            if (status == COT_OK) status = advance(r);
        } else {
            status = assignments ? broken(r, "it has 'initial_global_assignments' twice") : skip(r);
        }
    }
    return status;
}

static int by_layer(const void *a, const void *b)
{
    int32_t x = ((const layer_row *)a)->layer, y = ((const layer_row *)b)->layer;
    return x < y ? -1 : x > y;
}

static cot_status build(cot_expert_map *map, reader *r, const cot_map_source *source)
{
    if (!r->n_rows)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s' is no placement: it has no 'initial_global_assignments'", r->path);
    size_t width = r->rows[0].count;
    qsort(r->rows, r->n_rows, sizeof *r->rows, by_layer);
    for (size_t l = 0; l < r->n_rows; l++)
        if (r->rows[l].count != width || (r->num_slots && width != (size_t)r->num_slots))
            return cot_fail(r->error, COT_MALFORMED, "'%s': layer %" PRId32 " has %zu slots, expected %zu",
                            r->path, r->rows[l].layer, r->rows[l].count,
                            r->num_slots ? (size_t)r->num_slots : width);
    cot_status status = cot_map_new_rows(map, r->n_rows, width, source, r->error);
    for (size_t l = 0; status == COT_OK && l < r->n_rows; l++) {
        map->layers[l] = r->rows[l].layer; // of equal ones the check complains
        memcpy(map->expert + l * width, r->slots + r->rows[l].first, width * sizeof *map->expert);
    }
    if (status == COT_OK) cot_map_count_experts(map);
    return status;
}

cot_status cot_map_read_tensorrt(cot_expert_map *map, const cot_map_source *source, cot_error *error)
{
    reader r = {.path = source->path, .error = error};
    if (!(r.rows = calloc(COT_TRACE_MAX_LAYERS, sizeof *r.rows)) || !yaml_parser_initialize(&r.parser)) {
        free(r.rows);
        return cot_map_no_memory(source->path, error);
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)source->text, source->bytes);
    cot_status status = read_document(&r);
    if (status == COT_OK) status = build(map, &r, source);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    free(r.rows);
    free(r.slots);
    return status;
}

cot_status cot_map_write_tensorrt(FILE *stream, const cot_expert_map *map, const char *path,
                                  const cot_expert_map_options *options, cot_error *error)
{
    int32_t slots = map->n_ranks * map->slots_per_rank;
    cot_status status = cot_map_want_full(map, path, options, error);
    if (status != COT_OK) return status;
    fputs("initial_global_assignments:\n", stream);
    for (int32_t l = 0; l < map->n_layers; l++) {
        if (cot_map_is_dense(map, l, options)) continue;
        fprintf(stream, "  %" PRId32 ": ", map->layers[l]);
        cot_map_print_row(stream, map->expert + (size_t)l * (size_t)slots, (size_t)slots);
        putc('\n', stream);
    }
    fprintf(stream, "layer_updates_per_iter: 0\nnum_slots: %" PRId32 "\n", slots);
    return COT_OK;
}
