#include "commands.h"

int main(int argc, char **argv)
{
    static const cot_command *const commands[] = {
#define COT_COMMAND_ADDRESS(name) &cot_cmd_##name,
        COT_COMMAND_LIST(COT_COMMAND_ADDRESS)
#undef COT_COMMAND_ADDRESS
            NULL};
    return cot_command_main(commands, argc, argv);
}
