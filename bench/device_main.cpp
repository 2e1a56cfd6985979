/* The program of bench/device_points.h on this machine's device. */
#include "bench/device_points.h"

int main(int argc, char **argv)
{
    cot_cuda_driver driver;
    cot_cuda_device device;
    cot_error error;
    cot_status status = cot_cuda_driver_open(&driver, "libcuda.so.1", &error);
    if (status == COT_OK) status = cot_cuda_device_open(&device, &driver, &cot_cuda_kernels, &error);
    if (status != COT_OK) {
        fprintf(stderr, "device_points: %s\n", error.message);
        return 1;
    }
    const int result = cot_cuda_points(&device, &cot_cuda_kernels, stdout, argc - 1, argv + 1);
    if (result == 2) fprintf(stderr, "device_points: see bench/device_points.h\n");
    cot_cuda_device_close(&device);
    return result;
}
