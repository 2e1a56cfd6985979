/* Operators by name: those of the library, and those of modules, which are opened when they are asked for. */
#include "base/error.h"
#include "base/module.h"
#include "coterie/engine.h"
#include "cuda/module/module.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CUDA "cuda" // and, from the same module, CUDA "-bulk"
#define CUDA_MODULE "libcoterie-cuda.so"

const char *const *cot_engine_operators(void)
{
    return cot_moe_operator_names();
}

/* The module, whether or not there is a device. */
static cot_status open_cuda(const cot_cuda_module_calls **calls, cot_error *error)
{
    static const cot_module module = {.file = CUDA_MODULE,
                                      .symbol = "cot_cuda_module",
                                      .unloadable = "cannot load operators of a device",
                                      .absent = CUDA_MODULE " is not here: build with -DCOT_CUDA=ON"};
    const void *symbol;
    const cot_status status = cot_module_open(&symbol, &module, error);
    *calls = symbol;
    return status;
}

/* All that the module has, where `name` is asked for. */
static cot_status add_cuda(const char *name, cot_error *error)
{
    const cot_cuda_module_calls *calls;
    cot_error why = {0};
    cot_status status = open_cuda(&calls, &why);
    if (status == COT_OK) status = calls->find_device(&why);
    if (status != COT_OK) return cot_fail(error, status, "operator '%s': %s", name, why.message);
    for (int i = 0; calls->ops[i]; i++) cot_moe_operator_add(calls->ops[i]);
    return COT_OK;
}

cot_status cot_engine_find_operator(const char *name, cot_error *error)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    cot_status status = COT_OK;
    pthread_mutex_lock(&one_at_a_time);
    if (cot_moe_operator_find(name))
        ;
    else if (!strcmp(name, CUDA) || !strcmp(name, CUDA "-bulk"))
        status = add_cuda(name, error);
    else
        status =
            cot_fail(error, COT_INVALID_ARGUMENT, "unknown operator '%s' (%s, %s, " CUDA " or " CUDA "-bulk)",
                     name, cot_moe_operator_names()[0], cot_moe_operator_names()[1]);
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

void cot_engine_describe_cuda(char *text, size_t bytes)
{
    const cot_cuda_module_calls *calls;
    cot_error error;
    char device[192];
    if (open_cuda(&calls, &error) != COT_OK) {
        snprintf(text, bytes, "%s", error.message);
    } else if (calls->find_device(&error) == COT_OK) {
        calls->describe_device(device, sizeof device);
        snprintf(text, bytes, "kernels for %s; %s", calls->made_for, device);
    } else {
        snprintf(text, bytes, "kernels for %s; %s", calls->made_for, error.message);
    }
}
