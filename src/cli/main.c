#include "commands.h"

const cot_command *const cot_commands[] = {
#define COT_COMMAND_ADDRESS(name) &cot_cmd_##name,
    COT_COMMAND_LIST(COT_COMMAND_ADDRESS)
#undef COT_COMMAND_ADDRESS
        NULL};

int main(int argc, char **argv)
{
    return cot_command_main(cot_commands, argc, argv);
}
