/* A field of a head that is sent. */
#ifndef COT_NET_HTTP_FIELD_H
#define COT_NET_HTTP_FIELD_H

/* Control characters in a value are sent as spaces. */
typedef struct cot_http_field {
    const char *name, *value;
} cot_http_field;

#endif
