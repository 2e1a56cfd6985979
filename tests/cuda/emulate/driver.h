/* CUDA's driver as the module sees it, over the emulator: one device, whose memory is a session's and whose launches are the
 * emulator's. Rank threads may call at once. */
#ifndef COT_TESTS_CUDA_EMULATE_DRIVER_H
#define COT_TESTS_CUDA_EMULATE_DRIVER_H
#include "launch.h"

#include "cuda/module/driver.h"

#include <map>

namespace emulate {

/* What a device does wrongly without a word: it keeps other numbers than it was given, gives others than it has, or does not run
 * what it launches. */
enum class Wrong { NOTHING, TAKES, GIVES, LAUNCHES };

/* What the device is, and what was done with it; one at a time. */
struct Device {
    int version = 13000, devices = 1, major = 9, minor = 0, cooperative = 1, multiprocessors = 6,
        resident = 1;
    int shared_bytes_most = 101376;             // as on sm_120
    std::map<void *, unsigned> shared_bytes_of; // that a block of this kernel may have; others have 48 KiB
    size_t free_bytes = size_t{1} << 32;
    Options options; // of launches, each with the next seed
    Result last;
    unsigned blocks = 0; // of the last launch
    int launches = 0, taken = 0, given_back = 0, contexts = 0, events = 0;
    size_t taken_bytes = 0; // in all
    size_t unwritten = 0;   // bytes that were copied to the host and that nobody had written
    Wrong wrong = Wrong::NOTHING;
    int fails_at = 0; // this many-th call of take fails; 0: none
    Session session;

    Device();
    ~Device();
    static Device *in_use();
    /* Functions that work on this device. */
    const cot_cuda_driver *driver() const;
};

} // namespace emulate

#endif
