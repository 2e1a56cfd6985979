#include "driver.h"

#include <cstring>
#include <deque>
#include <mutex>

/* cuda/fused.cu, cuda/bulk.cu */
#define COT_KERNELS(X)                                                                                       \
    X(cot_cuda_fused_bf16)                                                                                   \
    X(cot_cuda_fused_f32)                                                                                    \
    X(cot_cuda_bulk_gate_bf16)                                                                               \
    X(cot_cuda_bulk_gate_f32)                                                                                \
    X(cot_cuda_bulk_dispatch)                                                                                \
    X(cot_cuda_bulk_receive)                                                                                 \
    X(cot_cuda_bulk_up_bf16)                                                                                 \
    X(cot_cuda_bulk_up_f32)                                                                                  \
    X(cot_cuda_bulk_down_bf16)                                                                               \
    X(cot_cuda_bulk_down_f32)                                                                                \
    X(cot_cuda_bulk_combine)
extern "C" {
#define COT_DECLARE(name) void name(const cot_cuda_fused call);
COT_KERNELS(COT_DECLARE)
#undef COT_DECLARE
}

namespace emulate {

static Device *here;
static std::mutex mutex;
static std::deque<std::string> names;

using Lock = std::lock_guard<std::mutex>;

enum { FINE, INVALID = 1, NO_MEMORY = 2, NO_DEVICE = 100, LAUNCH_FAILED = 719 };

static int init(unsigned)
{
    return here->devices ? FINE : NO_DEVICE;
}
static int driver_version(int *version)
{
    *version = here->version;
    return FINE;
}
static int error_name(int error, const char **name)
{
    *name = error == LAUNCH_FAILED ? here->last.message.c_str()
            : error == NO_MEMORY   ? "no memory"
                                   : "an error";
    return FINE;
}
static int device_count(int *count)
{
    *count = here->devices;
    return FINE;
}
static int device_get(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < here->devices ? FINE : INVALID;
}
static int device_name(char *name, int bytes, int)
{
    return snprintf(name, static_cast<size_t>(bytes), "Emulated") < bytes ? FINE : INVALID;
}
static int device_attribute(int *value, int attribute, int)
{
    *value = attribute == COT_CUDA_MULTIPROCESSORS      ? here->multiprocessors
             : attribute == COT_CUDA_CAPABILITY_MAJOR   ? here->major
             : attribute == COT_CUDA_CAPABILITY_MINOR   ? here->minor
             : attribute == COT_CUDA_COOPERATIVE_LAUNCH ? here->cooperative
             : attribute == COT_CUDA_SHARED_BYTES_MOST  ? here->shared_bytes_most
                                                        : -1;
    return *value < 0 ? INVALID : FINE;
}
static int context_retain(void **context, int)
{
    here->contexts++;
    *context = here;
    return FINE;
}
static int context_release(int)
{
    here->contexts--;
    return FINE;
}
/* Each thread has its own. */
static thread_local void *context_of_thread;
static int context_set(void *context)
{
    context_of_thread = context;
    return context == here ? FINE : INVALID;
}
static int synchronise()
{
    return context_of_thread == here ? FINE : INVALID;
}
static int module_load(void **module, const void *image)
{
    *module = const_cast<void *>(image);
    return image ? FINE : INVALID;
}
static const struct Kernel {
    const char *name;
    void (*run)(const cot_cuda_fused call);
} kernels[] = {
#define COT_LIST(name) {#name, name},
    COT_KERNELS(COT_LIST)
#undef COT_LIST
};
static int module_function(void **function, void *, const char *name)
{
    for (const Kernel &kernel : kernels)
        if (!strcmp(name, kernel.name)) return *function = const_cast<Kernel *>(&kernel), FINE;
    return INVALID;
}
static int function_attribute(void *function, int attribute, int value)
{
    if (attribute != COT_CUDA_FUNCTION_SHARED_BYTES || value > here->shared_bytes_most) return INVALID;
    here->shared_bytes_of[function] = static_cast<unsigned>(value);
    return FINE;
}
static int occupancy(int *blocks, void *, int threads, size_t)
{
    *blocks = here->resident;
    return threads == cot::FUSED_THREADS || threads == cot::FUSED_TEAM ? FINE : INVALID;
}
static int memory_info(size_t *free_bytes, size_t *all_bytes)
{
    *free_bytes = here->free_bytes;
    *all_bytes = size_t{1} << 33;
    return FINE;
}
static int take(uint64_t *at, size_t bytes)
{
    const Lock lock(mutex);
    if (context_of_thread != here || !bytes) return INVALID;
    if (++here->taken == here->fails_at) return --here->taken, here->fails_at = 0, NO_MEMORY;
    names.push_back("memory " + std::to_string(here->taken) + " of " + std::to_string(bytes) + " bytes");
    *at = reinterpret_cast<uint64_t>(here->session.allocate<unsigned char>(bytes, names.back().c_str()));
    here->taken_bytes += bytes;
    return FINE;
}
static int give_back(uint64_t)
{
    const Lock lock(mutex);
    here->given_back++;
    return FINE;
}
/* Turns the sign of every 16th number of four bytes, where there is more than tables have. */
static void spoil(void *numbers, size_t bytes)
{
    for (size_t i = 3; bytes >= 512 && i < bytes; i += 64) static_cast<unsigned char *>(numbers)[i] ^= 0x80;
}

static int fill(uint64_t at, unsigned char byte, size_t bytes)
{
    const Lock lock(mutex);
    if (context_of_thread != here) return INVALID;
    here->session.fill(reinterpret_cast<void *>(at), byte, bytes);
    return FINE;
}
static int to_device(uint64_t to, const void *from, size_t bytes)
{
    const Lock lock(mutex);
    if (context_of_thread != here) return INVALID;
    here->session.write(reinterpret_cast<void *>(to), from, bytes);
    if (here->wrong == Wrong::TAKES) spoil(reinterpret_cast<void *>(to), bytes);
    return FINE;
}
static int to_host(void *to, uint64_t from, size_t bytes)
{
    const Lock lock(mutex);
    if (context_of_thread != here) return INVALID;
    here->unwritten += here->session.unwritten(reinterpret_cast<const void *>(from), bytes);
    memcpy(to, reinterpret_cast<const void *>(from), bytes);
    if (here->wrong == Wrong::GIVES) spoil(to, bytes);
    return FINE;
}
static int run(void *function, unsigned blocks, unsigned threads, unsigned shared_bytes, void **parameters)
{
    const Lock lock(mutex);
    const auto most = here->shared_bytes_of.find(function);
    if (context_of_thread != here) return INVALID;
    if (shared_bytes > (most == here->shared_bytes_of.end() ? 48u << 10 : most->second)) return INVALID;
    here->launches++;
    here->blocks = blocks;
    here->options.seed++;
    if (here->wrong == Wrong::LAUNCHES) return FINE;
    here->last = launch({blocks, threads, shared_bytes}, here->options, static_cast<Kernel *>(function)->run,
                        *static_cast<const cot_cuda_fused *>(parameters[0]));
    return here->last.fault == Fault::NONE ? FINE : LAUNCH_FAILED;
}
/* A launch takes 20 ms, whatever it does. */
static int event_create(void **event, unsigned)
{
    here->events++;
    *event = new int(0);
    return FINE;
}
static int event_record(void *event, void *)
{
    *static_cast<int *>(event) = here->launches;
    return FINE;
}
static int event_elapsed(float *ms, void *begin, void *end)
{
    *ms = 20 * static_cast<float>(*static_cast<int *>(end) - *static_cast<int *>(begin));
    return FINE;
}
static int event_destroy(void *event)
{
    here->events--;
    delete static_cast<int *>(event);
    return FINE;
}
static int launch(void *function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                  unsigned shared_bytes, void *, void **parameters, void **)
{
    return run(function, blocks, threads, shared_bytes, parameters);
}
static int launch_cooperative(void *function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                              unsigned, unsigned shared_bytes, void *, void **parameters)
{
    if (blocks > static_cast<unsigned>(here->resident * here->multiprocessors)) return INVALID;
    return run(function, blocks, threads, shared_bytes, parameters);
}

Device::Device()
{
    here = this;
}

Device::~Device()
{
    here = nullptr;
    names.clear();
}

Device *Device::in_use()
{
    return here;
}

const cot_cuda_driver *Device::driver() const
{
    static const cot_cuda_driver table = {
#define COT_CUDA_DRIVER_GIVE(member, symbol, parameters) member,
        COT_CUDA_DRIVER_LIST(COT_CUDA_DRIVER_GIVE)
#undef COT_CUDA_DRIVER_GIVE
    };
    return &table;
}

} // namespace emulate
