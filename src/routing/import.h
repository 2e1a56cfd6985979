/* What the importers share. */
#ifndef COT_ROUTING_IMPORT_H
#define COT_ROUTING_IMPORT_H
#include "routing/store.h"

/* What one import is asked to do, with the options' gaps filled. */
typedef struct cot_import {
    const char *path;
    const cot_trace_import_options *options; // never NULL
    uint64_t done_bytes, total_bytes;
} cot_import;

/* Each reads its format into `*trace`, which has an owner and nothing else; it sets all fields but the model.
 */
cot_status cot_import_gpt_oss(cot_trace *trace, cot_import *import, cot_error *error);
cot_status cot_import_deepseek(cot_trace *trace, cot_import *import, cot_error *error);
cot_status cot_import_table(cot_trace *trace, cot_import *import, cot_error *error);
cot_status cot_import_sglang(cot_trace *trace, cot_import *import, cot_error *error);

/* What lies at `path` where it is routing data of another format than a trace: its description; else NULL. */
const char *cot_import_description(const char *path);

/* Whether the folder holds an expert_weights_<layer>.txt. */
bool cot_import_is_deepseek(const char *folder);

/* Tells the caller's `say`, if any. */
void cot_import_note(const cot_import *import, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `bytes` more of the input are read. */
void cot_import_advance(cot_import *import, uint64_t bytes);
/* Sets the number of experts: the option's where one was given; else `known`, what the format tells (0: nothing), or
 * one more than the `largest` id that occurs where that is more. Tells the caller which it was. Errors:
 * INVALID_ARGUMENT (the option is too small for `largest`). */
cot_status cot_import_experts(cot_trace *trace, const cot_import *import, uint32_t largest, uint32_t known,
                              cot_error *error);
/* Hands malloc'd experts [L][T][K] to the trace, as uint8 where E allows. Frees them on failure. */
cot_status cot_import_set_experts(cot_trace *trace, uint16_t *experts, cot_error *error);
cot_status cot_import_no_memory(const cot_import *import, cot_error *error);

#endif
