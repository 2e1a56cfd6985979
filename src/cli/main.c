#include "cli/commands.h"

const cli_command *const cli_commands[] = {
#define COT_COMMAND_ADDRESS(name) &cli_cmd_##name,
    CLI_COMMAND_LIST(COT_COMMAND_ADDRESS)
#undef COT_COMMAND_ADDRESS
        NULL};

int main(int argc, char **argv)
{
    return cli_command_main(cli_commands, argc, argv);
}
