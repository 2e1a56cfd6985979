/* Members of a request's JSON object, read as what they should be. Each function returns true when the member is absent,
 * null or good, and false after filling in `error` with its name. */
#ifndef COT_SERVER_API_FIELDS_H
#define COT_SERVER_API_FIELDS_H
#include "server/api_request.h"

/* The member; NULL when it is absent or null. */
json_t *cot_api_get(const json_t *object, const char *name);
/* What a value is, in words: "a string". */
const char *cot_api_type_name(const json_t *value);
/* Fills in `error`: "'NAME' is <type>, expected <expected>". Returns false. */
bool cot_api_mistyped(cot_api_error *error, const char *name, const json_t *value, const char *expected);

/* Each leaves `*out` as it is when the member is absent or null. */
bool cot_api_get_bool(bool *out, const json_t *object, const char *name, cot_api_error *error);
bool cot_api_get_integer(int64_t *out, const json_t *object, const char *name, int64_t least, int64_t most,
                         cot_api_error *error);
bool cot_api_get_real(double *out, const json_t *object, const char *name, double least, double most,
                      cot_api_error *error);
/* Where `bytes` is NULL the text may hold no NUL. */
bool cot_api_get_text(const char **out, size_t *bytes, const json_t *object, const char *name,
                      cot_api_error *error);
/* Whether a value is one of those that every field may have to say that it is off. */
bool cot_api_is_off(const json_t *value);
bool cot_api_is_text(const json_t *value, const char *text);
bool cot_api_has_nul(const json_t *text);

enum { COT_API_ANY_ID = INT32_MAX }; // the vocabulary of those who do not care: any id of 0 or more is taken
/* Token ids in [0, vocab) of a JSON array, whose name is for messages. `ids->ids` is allocated. */
bool cot_api_read_ids(cot_api_ids *ids, const json_t *array, const char *name, int64_t vocab,
                      cot_api_error *error);

/* Refuses what is asked for and not there (images, beam search, ...), by name. */
bool cot_api_check_refused(const json_t *object, cot_api_kind kind, cot_api_error *error);
/* Writes the names of members that nobody here knows, comma-separated, cut to `bytes`. */
void cot_api_list_unknown(char *names, size_t bytes, const json_t *object, cot_api_kind kind);

#endif
