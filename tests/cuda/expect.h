/* How a launch is asked for, and what it is expected to end with. */
#ifndef COT_TESTS_CUDA_EXPECT_H
#define COT_TESTS_CUDA_EXPECT_H
#include "emulate/launch.h"

extern "C" {
#include "harness/cmocka.h"
}

static inline emulate::Options seeded(uint64_t seed, const char *mutant = nullptr)
{
    emulate::Options options;
    options.seed = seed;
    options.mutant = mutant;
    return options;
}

/* Fails the test unless the launch found that fault, with that text in its message. */
static inline void expect(const emulate::Result &result, emulate::Fault fault, const char *text = "")
{
    if (result.fault != fault || result.message.find(text) == std::string::npos)
        fail_msg("expected %s '%s', found %s '%s'", emulate::name_of(fault), text,
                 emulate::name_of(result.fault), result.message.c_str());
}

static inline void expect_none(const emulate::Result &result)
{
    expect(result, emulate::Fault::NONE);
}

#endif
