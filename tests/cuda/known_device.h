/* An emulated device that the program knows as operator `cuda` while its tests run, for engines to be opened on. */
#ifndef COT_TESTS_CUDA_KNOWN_DEVICE_H
#define COT_TESTS_CUDA_KNOWN_DEVICE_H
#include "emulate/driver.h"

#include "cuda/module/operator.h"

extern "C" {
#include "harness/seed.h"
}

static const int all_majors[] = {8, 9, 10, 12, 0};
static const cot_cuda_image image = {"kernels", "more kernels", 13000, all_majors, "compute capability 9.x"};

static emulate::Device *device;
static cot_cuda_device found;

/* Of a group of tests, before the first one and behind the last. */
static int begin(void **)
{
    device = new emulate::Device;
    device->options.seed = test_seed();
    device->multiprocessors = 3;
    if (cot_cuda_device_open(&found, device->driver(), &image, nullptr) != COT_OK) return -1;
    cot_cuda_operator_use(&found);
    cot_moe_operator_add(&cot_cuda_operator);
    return 0;
}

static int end(void **)
{
    cot_cuda_device_close(&found);
    delete device;
    return 0;
}

#endif
