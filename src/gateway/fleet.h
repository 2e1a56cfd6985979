/* The list of workers, as a file or a request says it: JSON, checked key by key. Pure, but for files of keys. */
#ifndef COT_GATEWAY_FLEET_H
#define COT_GATEWAY_FLEET_H
#include "coterie/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { COT_FLEET_MOST_RANKS = 64, COT_FLEET_MOST_WORKERS = 1024 };

/* A worker as it is listed; texts are owned. */
typedef struct cot_fleet_entry {
    char *name;   // by which it is told from others; default: the URL without its scheme
    char *url;    // "http://HOST[:PORT][/PREFIX]" or https, without "/v1" or slashes at its end
    char *key;    // that it wants; NULL: none
    bool foreign; // an engine is named that is not Coterie: it is not asked for /worker
    int ranks;    // that hold a KV cache of their own; 0: not said
    char *kv_events, *kv_replay;     // endpoints of rank 0, rank r's is r ports higher; NULL: not said
    char *step_reports, *popularity; // NULL: not said
} cot_fleet_entry;

typedef struct cot_fleet {
    cot_fleet_entry *entry; // [count]
    size_t count;
} cot_fleet;

/* Reads a list of workers. `name` is used in messages. Errors: MALFORMED (no such list: the worker and the key are named, duplicate
 * names), UNSUPPORTED (a key that is not known), IO and NOT_FOUND (a file of a key), OUT_OF_MEMORY. */
cot_status cot_fleet_read(cot_fleet *fleet, const char *text, size_t bytes, const char *name,
                          cot_error *error);
void cot_fleet_free(cot_fleet *fleet);
/* One worker. `what` names it in messages. */
cot_status cot_fleet_read_entry(cot_fleet_entry *entry, const json_t *json, const char *what,
                                cot_error *error);
/* One that is known by its URL alone. */
cot_status cot_fleet_entry_of_url(cot_fleet_entry *entry, const char *url, cot_error *error);
/* The bytes of a URL before its host; 0: it has neither scheme. */
size_t cot_fleet_scheme(const char *url);
void cot_fleet_entry_free(cot_fleet_entry *entry);
bool cot_fleet_entry_equals(const cot_fleet_entry *a, const cot_fleet_entry *b);

#endif
