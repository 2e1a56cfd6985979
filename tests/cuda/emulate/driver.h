/* CUDA's driver as the module sees it, over the emulator: one device, whose memory is a session's and whose launches are the
 * emulator's. Rank threads may call at once. It refuses what a driver refuses: a thread without a context, memory that is not
 * there, more shared memory, threads or blocks than a kernel may have, a process that was forked (which it aborts); and once a
 * launch has failed, all that comes later. Launches, and asynchronous copies of pinned memory, happen when somebody waits for
 * them, but for copies to the device that are drawn to happen at once; until then what a copy is to bring is junk. Pages that are pinned twice,
 * or in pieces, are refused; pages that are freed while they are pinned, or unpinned while a copy is under way, abort. */
#ifndef COT_TESTS_CUDA_EMULATE_DRIVER_H
#define COT_TESTS_CUDA_EMULATE_DRIVER_H
#include "launch.h"

#include "cuda/module/driver.h"

#include <deque>
#include <functional>
#include <map>

#include <sys/types.h>

namespace emulate {

/* What a device does wrongly: without a word it keeps other numbers than it was given, gives others than it has, or does not run what
 * it launches; or it refuses a launch. */
enum class Wrong { NOTHING, TAKES, GIVES, LAUNCHES, REFUSES };

/* What is under way, in its order; of a copy, the host's memory. */
struct Work {
    std::function<void()> run;
    uint64_t host;
    size_t bytes;
};

/* What the device is, and what was done with it; one at a time. */
struct Device {
    int version = 13000, devices = 1, major = 9, minor = 0, cooperative = 1, multiprocessors = 6,
        resident = 1;
    int shared_bytes_most = 101376; // as on sm_120
    int cache_bytes = 16384;        // the second cache
    std::map<const void *, unsigned>
        shared_bytes_of;                 // that a block of this kernel may have; others have 48 KiB
    size_t free_bytes = size_t{1} << 32; // before anything is taken
    Options options;                     // of launches, each with the next seed
    Result last;
    unsigned blocks = 0; // of the last launch
    int launches = 0, taken = 0, given_back = 0, contexts = 0, events = 0;
    int many_launches = 0, wgmma_launches = 0,
        maps = 0; // of kernels in tiles of 128 rows, and of those by wgmma; maps of tiles that were made
    cot_cuda_fused many_call = {};   // what the last of them was given
    int ended = 0;                   // launches that somebody has waited for
    int pushed = 0;                  // contexts that threads have current
    std::map<uint64_t, size_t> live; // memory that is taken
    size_t used = 0, most_used = 0;  // bytes of it; at most so far
    bool begun = false;              // init was called
    const pid_t process;
    std::map<uint64_t, size_t> pinned; // host memory
    size_t pinned_most = SIZE_MAX;     // bytes of it at once
    std::deque<Work> work;
    int sent = 0, brought = 0,
        unpinned = 0;          // asynchronous copies to the device and from it; of memory that is not pinned
    int waits = 0, waited = 0; // for all that is under way; copies that the host waits for
    size_t unwritten = 0;      // bytes that were copied to the host and that nobody had written
    Wrong wrong = Wrong::NOTHING;
    int fails_at = 0; // this many-th call of take fails; 0: none
    Session session;

    bool rows_anywhere = false; // they need not be pinned
    void (*in_bf16)(const cot_cuda_fused call) =
        nullptr; // a kernel in the place of the fused operator's in bf16

    Device();
    ~Device();
    static Device *in_use();
    /* Functions that work on this device. */
    const cot_cuda_driver *driver() const;
};

} // namespace emulate

#endif
