/* Where something is published over ZeroMQ. */
#ifndef COT_WORKER_ENDPOINT_H
#define COT_WORKER_ENDPOINT_H
#include <stdbool.h>

/* "tcp://ADDRESS:PORT" in parts. */
typedef struct cot_endpoint {
    char address[64]; // a number, or "*"; of version 6 in brackets; empty: no endpoint
    int port;
} cot_endpoint;

/* False where the text is none: an address in numbers, localhost, or * for all of them, and a port of 1 to 65535. */
bool cot_endpoint_read(cot_endpoint *endpoint, const char *text);
/* A port of 1 to 65535, in digits alone; false: the text is none. */
bool cot_endpoint_read_port(int *port, const char *text);
/* A rank's endpoint, as ZeroMQ spells it: ports follow each other. */
void cot_endpoint_write(char text[96], const cot_endpoint *endpoint, int rank);
/* Whether an address, in numbers, or a name is this machine's own and no other's. */
bool cot_endpoint_is_loopback(const char *host);
/* Whether nobody on another machine can reach it. */
bool cot_endpoint_is_own(const cot_endpoint *endpoint);
/* Whether `count` ports from the first on and the others have one in common. */
bool cot_ports_overlap(int first, int count, int other, int other_count);

#endif
