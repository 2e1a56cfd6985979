/* What the metadata of a GGUF file say of a model, in the words of config.json, which cot_config_resolve reads. */
#ifndef COT_CHECKPOINT_GGUF_CONFIG_H
#define COT_CHECKPOINT_GGUF_CONFIG_H
#include "checkpoint/config.h"
#include "checkpoint/shards.h"

/* The configuration of a model whose parts are open. `name` stands in messages. Errors: MALFORMED (a key that is missing, of a wrong
 * type or no number), UNSUPPORTED (no model that is run: which one, by name), OUT_OF_MEMORY. On failure `*config` is empty. */
cot_status cot_config_of_gguf(cot_config *config, const cot_shards *shards, const char *name,
                              cot_error *error);
/* The same words themselves, as config.json has them. Errors: the same. */
cot_status cot_config_tell_gguf(json_t **told, const cot_shards *shards, const char *name, cot_error *error);

#endif
