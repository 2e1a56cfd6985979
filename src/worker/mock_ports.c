/* Where each worker of a mock publishes. */
#include "base/error.h"
#include "worker/kv_config.h"
#include "worker/mock.h"
#include "worker/step_reports.h"

#include <stdlib.h>
#include <string.h>

/* The same configuration with other endpoints; NULL: out of memory. */
static char *write_config(const char *config, const cot_kv_config *c, int by)
{
    char endpoint[96], replay[96];
    json_t *object = json_loads(config, 0, NULL);
    cot_endpoint_write(endpoint, &c->endpoint, by);
    cot_endpoint_write(replay, &c->replay_endpoint, by);
    const bool good = object && !json_object_set_new(object, "endpoint", json_string(endpoint)) &&
                      (!*c->replay_endpoint.address ||
                       !json_object_set_new(object, "replay_endpoint", json_string(replay)));
    char *text = good ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text;
}

static char *write_reports(const cot_endpoint *reports, int by)
{
    char text[96];
    cot_endpoint_write(text, reports, by);
    return strdup(text);
}

/* Whether reports of all workers find ports, the first one's is fine. */
static cot_status check_reports(const cot_endpoint *at, int workers, const cot_kv_config *kv, int ranks,
                                cot_error *error)
{
    if (at->port + workers - 1 > 65535)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "--step-reports-endpoint leaves no port for worker %d: workers take %d and those "
                        "behind it",
                        workers - 1, at->port);
    if (!kv->enabled || (!cot_ports_overlap(at->port, workers, kv->endpoint.port, ranks) &&
                         (!*kv->replay_endpoint.address ||
                          !cot_ports_overlap(at->port, workers, kv->replay_endpoint.port, ranks))))
        return COT_OK;
    return cot_fail(
        error, COT_INVALID_ARGUMENT,
        "--step-reports-endpoint: %d workers take ports %d to %d, of which --kv-events-config has "
        "some",
        workers, at->port, at->port + workers - 1);
}

cot_status cot_mock_ports(cot_mock_published *out, const cot_mock *mock, int index, const char *kv_events,
                          const char *step_reports, int http_port, bool no_auth, cot_error *error)
{
    const int ranks = (int)mock->homes, all = (int)mock->workers * ranks;
    cot_kv_config kv;
    cot_endpoint reports;
    *out = (cot_mock_published){0};
    cot_status status = cot_kv_config_read(&kv, kv_events, error);
    if (status == COT_OK) status = cot_kv_config_check(&kv, all, http_port, no_auth, error);
    if (status == COT_OK)
        status = cot_kv_config_read_beside(&reports, "--step-reports-endpoint", step_reports, &kv, all,
                                           http_port, NULL, no_auth, error);
    if (status == COT_OK && step_reports)
        status = check_reports(&reports, (int)mock->workers, &kv, all, error);
    if (status != COT_OK) return status;
    if (kv_events) out->kv_events_config = write_config(kv_events, &kv, index * ranks);
    if (step_reports) out->step_reports_endpoint = write_reports(&reports, index);
    if ((!kv_events || out->kv_events_config) && (!step_reports || out->step_reports_endpoint)) return COT_OK;
    cot_mock_published_free(out);
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a worker's endpoints");
}

void cot_mock_published_free(cot_mock_published *published)
{
    free(published->kv_events_config);
    free(published->step_reports_endpoint);
    *published = (cot_mock_published){0};
}
