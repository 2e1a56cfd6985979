/* `coterie info`: this machine and this build. */
#include "commands.h"

#include "coterie/engine.h"
#include "coterie/roof.h"
#include "coterie/version.h"

#include <stdio.h>
#include <unistd.h>

static void print_names(const char *title, const char *const *names)
{
    printf("%-12s", title);
    for (int i = 0; names[i]; i++) printf("%s%s", i ? ", " : "", names[i]);
    printf("\n");
}

static int info(const void *settings)
{
    (void)settings;
    printf("%-12s%s\n", "version", cot_version());
    printf("%-12s%s\n", "cpu", cot_cpu_name());
    printf("%-12s%ld\n", "cores", sysconf(_SC_NPROCESSORS_ONLN));
    printf("%-12s%.1f MiB\n", "last cache", (double)cot_last_level_cache_bytes() / (1 << 20));
    print_names("isa", cot_isa_names());
    print_names("operators", cot_engine_operators());
    print_names("phases", cot_engine_phases());
    printf("%-12s%s\n", "fabric", "threads, forked processes (one host)");
    return COT_EXIT_OK;
}

const cot_command cot_cmd_info = {
    .name = "info",
    .summary = "show the CPU, the instruction sets and operators that this build can use",
    .details = "Instruction sets are listed best first; the first is what runs unless --isa caps it. The "
               "first operator is the "
               "default of --op.",
    .examples = (const char *const[]){"coterie info", NULL},
    .settings_bytes = 1,
    .run = info};
