#include "cli/plan/cmd_place.h"

#include <stdlib.h>

cot_status cli_place_say_launch(const char *format, const char *path, const cot_expert_map *map,
                                cot_error *error)
{
    char *text;
    const cot_status status = cot_expert_map_launch(&text, map, path, format, error);
    if (status == COT_OK && text) cli_complain("note: %s", text);
    free(text);
    return status;
}
