/* The headers of the house, which are C, as the module's C++ sees them. */
#ifndef COT_CUDA_MODULE_HOUSE_H
#define COT_CUDA_MODULE_HOUSE_H
#include <assert.h>

#define _Static_assert static_assert
#define _Atomic
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wc++20-extensions"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
extern "C" {
#include "base/error.h"
#include "base/integers.h"
#include "moe/check.h"
#include "moe/moe.h"
}
#pragma GCC diagnostic pop
#undef _Static_assert
#undef _Atomic

#include "cuda/call.h"

#endif
