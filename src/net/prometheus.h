/* Text of the Prometheus exposition format 0.0.4, built line by line. */
#ifndef COT_NET_PROMETHEUS_H
#define COT_NET_PROMETHEUS_H
#include "base/buffer.h"

#define COT_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* All zero is an empty text. After an allocation failed the text says nothing more and `failed` stays true. */
typedef struct cot_prometheus {
    cot_buffer text;
    bool failed;
} cot_prometheus;

typedef struct cot_prometheus_label {
    const char *name, *value; // the value may hold any character: it is escaped
} cot_prometheus_label;

/* A histogram that is counted into: `buckets` upper bounds in rising order, and one more bucket for what exceeds them
 * all. */
typedef struct cot_prometheus_histogram {
    const double *bounds; // [buckets]
    uint64_t *counts;     // [buckets + 1], of each bucket alone
    size_t buckets;
    double sum;
} cot_prometheus_histogram;

/* Counts one value: in the first bucket whose bound is at least the value. NaN counts beyond all bounds. */
void cot_prometheus_observe(cot_prometheus_histogram *histogram, double value);

/* Starts the metrics of one name: # HELP and # TYPE ("counter", "gauge", "histogram"). Once a name, before its lines.
 * */
void cot_prometheus_metric(cot_prometheus *out, const char *name, const char *type, const char *help);
/* One line `name{labels} value`. */
void cot_prometheus_value(cot_prometheus *out, const char *name, const cot_prometheus_label *labels,
                          size_t count, double value);
/* The lines of a histogram: name_bucket (cumulative, le), name_sum, name_count. */
void cot_prometheus_histogram_lines(cot_prometheus *out, const char *name, const cot_prometheus_label *labels,
                                    size_t count, const cot_prometheus_histogram *histogram);
void cot_prometheus_free(cot_prometheus *out);

#endif
