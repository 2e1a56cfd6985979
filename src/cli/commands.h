/* The commands, in the order that help shows them: X(NAME) is cli_cmd_NAME, defined in cmd_NAME.c. */
#ifndef COT_CLI_COMMANDS_H
#define COT_CLI_COMMANDS_H
#include "cli/frame/command.h"

// clang-format off
#define CLI_COMMAND_LIST(X) \
    X(run) \
    X(chat) \
    X(serve) \
    X(router) \
    X(rebalance) \
    X(eval) \
    X(tokenize) \
    X(convert) \
    X(profile) \
    X(trace_info) \
    X(trace_convert) \
    X(group) \
    X(predict) \
    X(place_convert) \
    X(place) \
    X(topology_show) \
    X(topology_distances) \
    X(bench_roof) \
    X(bench_model) \
    X(bench_kernels) \
    X(bench_moe) \
    X(bench_fabric) \
    X(bench_pipeline) \
    X(bench_serve) \
    X(bench_router) \
    X(bench_schedule) \
    X(bench_signature) \
    X(bench_affinity) \
    X(bench_drift) \
    X(info) \
    X(models) \
    X(man) \
    X(completions)
// clang-format on

#define CLI_COMMAND_EXTERN(name) extern const cli_command cli_cmd_##name;
CLI_COMMAND_LIST(CLI_COMMAND_EXTERN)
#undef CLI_COMMAND_EXTERN

extern const cli_command *const cli_commands[]; // all of them; NULL ends

#endif
