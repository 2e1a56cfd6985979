#include "harness/refused.h"

#include "harness/cmocka.h"

#include <string.h>

void assert_refused(cot_status status, const cot_error *error, const char *words)
{
    assert_int_not_equal(status, COT_OK);
    assert_int_equal(status, error->status);
    if (!strstr(error->message, words)) fail_msg("message \"%s\" lacks \"%s\"", error->message, words);
}
