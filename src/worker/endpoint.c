#include "worker/endpoint.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool cot_endpoint_read_port(int *port, const char *text)
{
    const size_t digits = strspn(text, "0123456789");
    if (!digits || digits > 5 || text[digits]) return false;
    *port = atoi(text);
    return *port >= 1 && *port <= 65535;
}

static bool is_address(const char *address)
{
    struct in_addr four;
    struct in6_addr six;
    char inner[64];
    if (strcmp(address, "*") == 0 || inet_pton(AF_INET, address, &four) == 1) return true;
    const size_t n = strlen(address);
    if (n < 2 || *address != '[' || address[n - 1] != ']') return false;
    snprintf(inner, sizeof inner, "%.*s", (int)(n - 2), address + 1);
    return inet_pton(AF_INET6, inner, &six) == 1;
}

bool cot_endpoint_read(cot_endpoint *endpoint, const char *text)
{
    static const char scheme[] = "tcp://";
    const char *colon = strrchr(text, ':');
    if (strncmp(text, scheme, sizeof scheme - 1) != 0) return false;
    const char *address = text + sizeof scheme - 1;
    if (!colon || colon < address || (size_t)(colon - address) >= sizeof endpoint->address) return false;
    snprintf(endpoint->address, sizeof endpoint->address, "%.*s", (int)(colon - address), address);
    if (strcmp(endpoint->address, "localhost") == 0)
        snprintf(endpoint->address, sizeof endpoint->address, "127.0.0.1");
    return is_address(endpoint->address) && cot_endpoint_read_port(&endpoint->port, colon + 1);
}

void cot_endpoint_write(char text[96], const cot_endpoint *endpoint, int rank)
{
    snprintf(text, 96, "tcp://%s:%d", endpoint->address, endpoint->port + rank);
}

bool cot_endpoint_is_loopback(const char *host)
{
    struct in_addr four;
    struct in6_addr six;
    if (strcasecmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

bool cot_endpoint_is_own(const cot_endpoint *endpoint)
{
    char inner[64];
    const char *address = endpoint->address;
    const size_t n = strlen(address);
    if (*address != '[') return cot_endpoint_is_loopback(address);
    snprintf(inner, sizeof inner, "%.*s", (int)(n - 2), address + 1);
    return cot_endpoint_is_loopback(inner);
}

bool cot_ports_overlap(int first, int count, int other, int other_count)
{
    return first < other + other_count && other < first + count;
}
