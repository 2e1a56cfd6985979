/* Preloaded into a router of the tests: the name fleet.test has the addresses that the file COT_FAKE_DNS lists, one a line. */
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int finder(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    finder *real;
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!name || strcmp(name, "fleet.test") != 0) return real(name, service, hints, found);
    FILE *file = fopen(getenv("COT_FAKE_DNS"), "r");
    struct addrinfo **end = found;
    char line[128];
    *found = NULL;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (real(line, service, hints, end)) break;
        while (*end) end = &(*end)->ai_next;
    }
    if (file) fclose(file);
    return *found ? 0 : EAI_NONAME;
}
