/* The headers of the house, which are C, as the module's C++ sees them. */
#ifndef COT_CUDA_MODULE_HOUSE_H
#define COT_CUDA_MODULE_HOUSE_H
#include <assert.h>

#include "cuda/c_begin.h"
#include "base/error.h"
#include "base/integers.h"
#include "base/dtype.h"
#include "moe/check.h"
#include "moe/moe.h"
#include "cuda/c_end.h"

#include "cuda/call.h"

#endif
