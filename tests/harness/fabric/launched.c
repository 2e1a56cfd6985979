#include "harness/fabric/launched.h"

#include "harness/cmocka.h"

cot_launch_options launch_options_of(int ranks, cot_rank_main *main)
{
    return (cot_launch_options){.ranks = ranks,
                                .threads = ranks,
                                .heap_bytes = 1 << 16,
                                .timeout_ns = launch_timeout_ns,
                                .main = main};
}

const cot_rank *must_launch(cot_launch **launch, const cot_fabric_backend *backend,
                            const cot_launch_options *options)
{
    const cot_rank *root;
    cot_error error;
    if (cot_launch_open(launch, &root, backend, options, &error) != COT_OK) fail_msg("%s", error.message);
    return root;
}
