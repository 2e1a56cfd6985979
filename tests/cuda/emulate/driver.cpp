#include "driver.h"

#include "cuda/c_begin.h"
#include "base/rng.h"
#include "cuda/c_end.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

/* cuda/fused.cu, cuda/bulk.cu */
#define COT_KERNELS(X)                                                                                       \
    X(cot_cuda_fused_bf16)                                                                                   \
    X(cot_cuda_fused_f32)                                                                                    \
    X(cot_cuda_fused_many_256_bf16)                                                                          \
    X(cot_cuda_bulk_gate_bf16)                                                                               \
    X(cot_cuda_bulk_gate_f32)                                                                                \
    X(cot_cuda_bulk_route)                                                                                   \
    X(cot_cuda_bulk_dispatch)                                                                                \
    X(cot_cuda_bulk_count)                                                                                   \
    X(cot_cuda_bulk_receive)                                                                                 \
    X(cot_cuda_bulk_enter)                                                                                   \
    X(cot_cuda_bulk_up_bf16)                                                                                 \
    X(cot_cuda_bulk_up_f32)                                                                                  \
    X(cot_cuda_bulk_down_bf16)                                                                               \
    X(cot_cuda_bulk_down_f32)                                                                                \
    X(cot_cuda_bulk_combine)                                                                                 \
    X(cot_cuda_bulk_many_up_bf16)                                                                            \
    X(cot_cuda_bulk_many_down_bf16)                                                                          \
    X(cot_cuda_bulk_many_256_up)                                                                             \
    X(cot_cuda_bulk_many_256_down)
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

#define EMULATED_ERRORS(X)                                                                                   \
    X(INVALID_VALUE, 1)                                                                                      \
    X(OUT_OF_MEMORY, 2)                                                                                      \
    X(NOT_INITIALIZED, 3)                                                                                    \
    X(NO_DEVICE, 100)                                                                                        \
    X(INVALID_DEVICE, 101)                                                                                   \
    X(INVALID_CONTEXT, 201)                                                                                  \
    X(INVALID_HANDLE, 400)                                                                                   \
    X(NOT_FOUND, 500)                                                                                        \
    X(NOT_READY, 600)                                                                                        \
    X(LAUNCH_OUT_OF_RESOURCES, 701)                                                                          \
    X(HOST_MEMORY_ALREADY_REGISTERED, 712)                                                                   \
    X(HOST_MEMORY_NOT_REGISTERED, 713)                                                                       \
    X(COOPERATIVE_LAUNCH_TOO_LARGE, 720)
enum {
    FINE,
#define EMULATED_ERROR(name, number) name = number,
    EMULATED_ERRORS(EMULATED_ERROR)
#undef EMULATED_ERROR
        LAUNCH_FAILED = 719
};

/* Contexts of this thread, the current one last. */
static thread_local std::vector<void *> stack;

/* What every call begins with: CUDA does not outlive a fork. */
static int begin_call()
{
    if (getpid() != here->process) {
        fprintf(stderr, "the emulated driver was called by a process that was forked\n");
        abort();
    }
    return here->begun ? FINE : NOT_INITIALIZED;
}

/* Of one that needs a context: it has to be current, and a launch that has failed is told by all that come later. */
static int begin_work()
{
    if (const int failed = begin_call()) return failed;
    if (stack.empty() || stack.back() != here) return INVALID_CONTEXT;
    return here->last.fault == Fault::NONE ? FINE : LAUNCH_FAILED;
}

/* Whether all of it is within one piece of memory that is taken. */
static bool is_taken(uint64_t at, size_t bytes)
{
    auto next = here->live.upper_bound(at);
    if (next == here->live.begin()) return false;
    --next;
    return at + bytes <= next->first + next->second;
}

/* All that is under way happens; nothing more once a launch has failed. */
static void drain()
{
    for (; !here->work.empty(); here->work.pop_front())
        if (here->last.fault == Fault::NONE) here->work.front().run();
}

static int init(unsigned flags)
{
    here->begun = !flags && here->devices;
    return flags ? INVALID_VALUE : here->devices ? FINE : NO_DEVICE;
}
static int driver_version(int *version)
{
    *version = here->version;
    return FINE;
}
static int error_name(int error, const char **name)
{
    *name = error == LAUNCH_FAILED ? here->last.message.c_str()
#define EMULATED_NAME(name, number) : error == number ? "CUDA_ERROR_" #name
                                         EMULATED_ERRORS(EMULATED_NAME)
#undef EMULATED_NAME
                                   : nullptr;
    return *name ? FINE : INVALID_VALUE;
}
static int device_count(int *count)
{
    if (const int failed = begin_call()) return failed;
    *count = here->devices;
    return FINE;
}
static int device_get(int *device, int ordinal)
{
    if (const int failed = begin_call()) return failed;
    *device = ordinal;
    return ordinal < here->devices ? FINE : INVALID_DEVICE;
}
static int device_name(char *name, int bytes, int)
{
    if (const int failed = begin_call()) return failed;
    return snprintf(name, static_cast<size_t>(bytes), "Emulated") < bytes ? FINE : INVALID_VALUE;
}
static int device_attribute(int *value, int attribute, int)
{
    if (const int failed = begin_call()) return failed;
    *value = attribute == COT_CUDA_MULTIPROCESSORS      ? here->multiprocessors
             : attribute == COT_CUDA_CACHE_BYTES        ? here->cache_bytes
             : attribute == COT_CUDA_CAPABILITY_MAJOR   ? here->major
             : attribute == COT_CUDA_CAPABILITY_MINOR   ? here->minor
             : attribute == COT_CUDA_COOPERATIVE_LAUNCH ? here->cooperative
             : attribute == COT_CUDA_SHARED_BYTES_MOST  ? here->shared_bytes_most
                                                        : -1;
    return *value < 0 ? INVALID_VALUE : FINE;
}
static int context_retain(void **context, int)
{
    if (const int failed = begin_call()) return failed;
    here->contexts++;
    *context = here;
    return FINE;
}
static int context_release(int)
{
    if (const int failed = begin_call()) return failed;
    here->contexts--;
    return FINE;
}
static int context_push(void *context)
{
    if (const int failed = begin_call()) return failed;
    if (context != here || !here->contexts) return INVALID_CONTEXT;
    const Lock lock(mutex);
    stack.push_back(context);
    here->pushed++;
    return FINE;
}
static int context_pop(void **context)
{
    if (const int failed = begin_call()) return failed;
    if (stack.empty()) return INVALID_CONTEXT;
    const Lock lock(mutex);
    *context = stack.back();
    stack.pop_back();
    here->pushed--;
    return FINE;
}
static int synchronise()
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    drain();
    here->waits++;
    here->ended = here->launches;
    return begin_work();
}
static int module_load(void **module, const void *image)
{
    if (const int failed = begin_work()) return failed;
    *module = const_cast<void *>(image);
    return image ? FINE : INVALID_VALUE;
}
static const struct Kernel {
    const char *name;
    void (*run)(const cot_cuda_fused call);

    bool is_fused() const { return strstr(name, "fused") != nullptr; }
    bool is_many() const { return strstr(name, "many") != nullptr; }
    bool is_wgmma() const { return strstr(name, "many_256") != nullptr; }
    unsigned most_threads() const // as its launch bounds say
    {
        return is_wgmma() ? cot::BULK_WGMMA_THREADS : is_fused() ? cot::FUSED_THREADS : cot::FUSED_TEAM;
    }
    unsigned most_shared_bytes() const
    {
        const auto said = here->shared_bytes_of.find(this);
        return said == here->shared_bytes_of.end() ? 48u << 10 : said->second;
    }
} kernels[] = {
#define COT_LIST(name) {#name, name},
    COT_KERNELS(COT_LIST)
#undef COT_LIST
};
static int module_function(void **function, void *module, const char *name)
{
    if (const int failed = begin_work()) return failed;
    for (const Kernel &kernel : kernels)
        if (!strcmp(name, kernel.name) && (!kernel.is_wgmma() || here->major == 9) &&
            kernel.is_fused() == !strcmp(static_cast<const char *>(module), "kernels"))
            return *function = const_cast<Kernel *>(&kernel), FINE;
    return NOT_FOUND;
}
static int function_attribute(void *function, int attribute, int value)
{
    if (const int failed = begin_work()) return failed;
    if (attribute != COT_CUDA_FUNCTION_SHARED_BYTES || value < 0 || value > here->shared_bytes_most)
        return INVALID_VALUE;
    here->shared_bytes_of[function] = static_cast<unsigned>(value);
    return FINE;
}
/* A block takes 1 KiB of shared memory besides its own, and a multiprocessor has that of the largest block. */
static int occupancy(int *blocks, void *function, int threads, size_t shared_bytes)
{
    if (const int failed = begin_work()) return failed;
    const Kernel *const kernel = static_cast<Kernel *>(function);
    const size_t all = static_cast<size_t>(here->shared_bytes_most) + 1024;
    *blocks = static_cast<int>(all / (shared_bytes + 1024));
    if (*blocks > here->resident) *blocks = here->resident;
    if (shared_bytes > kernel->most_shared_bytes()) *blocks = 0;
    return threads > 0 && static_cast<unsigned>(threads) <= kernel->most_threads() ? FINE : INVALID_VALUE;
}
static int memory_info(size_t *free_bytes, size_t *all_bytes)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    *free_bytes = here->free_bytes - here->used;
    *all_bytes = size_t{1} << 33;
    return FINE;
}
/* As a driver's memory is taken: by pieces of 256 bytes. */
static size_t whole(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}
static int take(uint64_t *at, size_t bytes)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    if (!bytes) return INVALID_VALUE;
    if (whole(bytes) > here->free_bytes - here->used) return OUT_OF_MEMORY;
    if (++here->taken == here->fails_at) return --here->taken, here->fails_at = 0, OUT_OF_MEMORY;
    names.push_back("memory " + std::to_string(here->taken) + " of " + std::to_string(bytes) + " bytes");
    *at = reinterpret_cast<uint64_t>(here->session.allocate<unsigned char>(bytes, names.back().c_str()));
    here->live[*at] = bytes;
    here->used += whole(bytes);
    if (here->used > here->most_used) here->most_used = here->used;
    return FINE;
}
static int give_back(uint64_t at)
{
    const Lock lock(mutex);
    const auto found = here->live.find(at);
    int failed = begin_work();
    if (failed && failed != LAUNCH_FAILED) return failed;
    if (found == here->live.end()) return INVALID_VALUE;
    drain();
    failed = begin_work();
    here->used -= whole(found->second);
    here->live.erase(found);
    here->given_back++;
    return failed;
}
/* Turns the sign of every 16th number of four bytes, where there is more than what passes of two ranks are told and leave. */
static void spoil(void *numbers, size_t bytes)
{
    for (size_t i = 3; bytes > 700 && i < bytes; i += 64) static_cast<unsigned char *>(numbers)[i] ^= 0x80;
}

/* Whether some of it, or with `whole` all of it, is pinned. */
static bool is_pinned(uint64_t at, size_t bytes, bool whole)
{
    auto next = here->pinned.lower_bound(at + bytes);
    if (next == here->pinned.begin()) return false;
    --next;
    const uint64_t end = next->first + next->second;
    return whole ? next->first <= at && at + bytes <= end : end > at;
}
/* Such a copy a driver refuses. */
static bool is_half_pinned(const void *host, size_t bytes)
{
    const uint64_t at = reinterpret_cast<uint64_t>(host);
    return is_pinned(at, bytes, false) && !is_pinned(at, bytes, true);
}

static int fill(uint64_t at, unsigned char byte, size_t bytes)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    if (!is_taken(at, bytes)) return INVALID_VALUE;
    drain();
    here->session.fill(reinterpret_cast<void *>(at), byte, bytes);
    return begin_work();
}
static void write(uint64_t to, const void *from, size_t bytes)
{
    here->session.write(reinterpret_cast<void *>(to), from, bytes);
    if (here->wrong == Wrong::TAKES) spoil(reinterpret_cast<void *>(to), bytes);
}
static void read(void *to, uint64_t from, size_t bytes)
{
    here->unwritten += here->session.unwritten(reinterpret_cast<const void *>(from), bytes);
    memcpy(to, reinterpret_cast<const void *>(from), bytes);
    if (here->wrong == Wrong::GIVES) spoil(to, bytes);
}
static int to_device(uint64_t to, const void *from, size_t bytes)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    if (!is_taken(to, bytes) || is_half_pinned(from, bytes)) return INVALID_VALUE;
    drain();
    here->waited++;
    write(to, from, bytes);
    return begin_work();
}
static int to_host(void *to, uint64_t from, size_t bytes)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    if (!is_taken(from, bytes) || is_half_pinned(to, bytes)) return INVALID_VALUE;
    drain();
    here->waited++;
    read(to, from, bytes);
    return begin_work();
}

/* ---- pinned memory ---- */

constexpr size_t PAGE = 4096;

static void check_mapped(uint64_t at, size_t bytes)
{
    std::vector<unsigned char> pages(bytes / PAGE);
    if (!mincore(reinterpret_cast<void *>(at), bytes, pages.data())) return;
    fprintf(stderr, "host memory was freed while the emulated driver had it pinned\n");
    abort();
}
static int host_register(void *memory, size_t bytes, unsigned flags)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    const uint64_t at = reinterpret_cast<uint64_t>(memory);
    size_t all = bytes;
    if (!bytes || at % PAGE || bytes % PAGE || flags) return INVALID_VALUE;
    if (is_pinned(at, bytes, false)) return HOST_MEMORY_ALREADY_REGISTERED;
    for (const auto &one : here->pinned) all += one.second;
    if (all > here->pinned_most) return OUT_OF_MEMORY;
    check_mapped(at, bytes);
    here->pinned[at] = bytes;
    return FINE;
}
static int host_unregister(void *memory)
{
    const Lock lock(mutex);
    const int failed = begin_work();
    const auto found = here->pinned.find(reinterpret_cast<uint64_t>(memory));
    if (failed && failed != LAUNCH_FAILED) return failed;
    if (found == here->pinned.end()) return HOST_MEMORY_NOT_REGISTERED;
    check_mapped(found->first, found->second);
    for (const Work &w : here->work)
        if (w.host < found->first + found->second && found->first < w.host + w.bytes) {
            fprintf(stderr, "host memory was unpinned while the emulated device copies it\n");
            abort();
        }
    here->pinned.erase(found);
    return failed;
}
/* When somebody waits, unless `at_once` and nothing comes before it; of memory that is not pinned at once, as a driver does it. */
static int copy_later(const void *host, size_t bytes, bool at_once, const std::function<void()> &run)
{
    const uint64_t at = reinterpret_cast<uint64_t>(host);
    const bool pinned = is_pinned(at, bytes, true);
    if (!pinned) here->unpinned++;
    if (!pinned) drain();
    if (!pinned || (at_once && here->work.empty()))
        run();
    else
        here->work.push_back({run, at, bytes});
    return begin_work();
}
/* Drawn: the host must neither write what it has given on its way nor give what it has not written. */
static int to_device_async(uint64_t to, const void *from, size_t bytes, void *)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    if (!is_taken(to, bytes) || is_half_pinned(from, bytes)) return INVALID_VALUE;
    const bool at_once = cot_mix64(here->options.seed ^ static_cast<uint64_t>(here->sent++)) & 1;
    return copy_later(from, bytes, at_once, [=] { write(to, from, bytes); });
}
static int to_host_async(void *to, uint64_t from, size_t bytes, void *)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    if (!is_taken(from, bytes) || is_half_pinned(to, bytes)) return INVALID_VALUE;
    here->brought++;
    memset(to, 0xa5, bytes);
    return copy_later(to, bytes, false, [=] { read(to, from, bytes); });
}

/* Of rows of bf16, of which tiles have 64 numbers of each and lie as cuda/tile_map.h says. It is asked of no device. */
static int map_tiles(void *map, int type, uint32_t rank, void *at, const uint64_t *sizes,
                     const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                     int swizzle, int promotion, int fill)
{
    bool sound = type == COT_CUDA_MAP_BF16 && rank == 3 && !interleave &&
                 swizzle == COT_CUDA_MAP_SWIZZLE_128 && promotion >= 0 && promotion <= 3 && !fill &&
                 reinterpret_cast<uintptr_t>(map) % 64 == 0 && reinterpret_cast<uintptr_t>(at) % 16 == 0;
    for (int i = 0; sound && i < 3; i++)
        sound = sizes[i] && sizes[i] <= uint64_t{1} << 32 && box[i] && box[i] <= 256 && steps[i] == 1;
    for (int i = 0; sound && i < 2; i++) sound = strides[i] % 16 == 0 && strides[i] < uint64_t{1} << 40;
    if (!sound || box[0] != 64 || box[2] != 1 || strides[0] != 2 * sizes[0]) return INVALID_VALUE;
    here->maps++;
    make_tile_map(map, at, static_cast<int64_t>(sizes[0]), static_cast<int64_t>(sizes[1]),
                  static_cast<int64_t>(sizes[2]), static_cast<int64_t>(strides[1]), box[1]);
    return FINE;
}

/* What goes wrong in it, later calls tell. */
static int run(void *function, unsigned blocks, unsigned threads, unsigned shared_bytes, void **parameters,
               bool cooperative)
{
    const Lock lock(mutex);
    if (const int failed = begin_work()) return failed;
    const Kernel *const kernel = static_cast<Kernel *>(function);
    const unsigned at_once = static_cast<unsigned>(here->resident * here->multiprocessors);
    if (!blocks || !threads || shared_bytes > kernel->most_shared_bytes()) return INVALID_VALUE;
    if (threads > kernel->most_threads()) return LAUNCH_OUT_OF_RESOURCES;
    if (cooperative && blocks > at_once) return COOPERATIVE_LAUNCH_TOO_LARGE;
    if (here->wrong == Wrong::REFUSES) return LAUNCH_OUT_OF_RESOURCES;
    here->launches++;
    here->many_launches += kernel->is_many();
    here->wgmma_launches += kernel->is_wgmma();
    here->blocks = blocks;
    here->options.seed++;
    if (here->wrong == Wrong::LAUNCHES) return FINE;
    const cot_cuda_fused call = *static_cast<const cot_cuda_fused *>(parameters[0]);
    if (kernel->is_many()) here->many_call = call;
    const Options options = here->options;
    const auto run = here->in_bf16 && kernel->run == cot_cuda_fused_bf16 ? here->in_bf16 : kernel->run;
    here->work.push_back({[=] {
                              here->last = launch({blocks, threads, shared_bytes}, options, run, call);
                          },
                          0, 0});
    return FINE;
}
/* A launch takes 20 ms, whatever it does. */
static int event_create(void **event, unsigned)
{
    if (const int failed = begin_work()) return failed;
    here->events++;
    *event = new int(-1);
    return FINE;
}
static int event_record(void *event, void *)
{
    if (const int failed = begin_work()) return failed;
    *static_cast<int *>(event) = here->launches;
    return FINE;
}
static int event_elapsed(float *ms, void *begin, void *end)
{
    const int began = *static_cast<int *>(begin), ended = *static_cast<int *>(end);
    if (const int failed = begin_work()) return failed;
    if (began < 0 || ended < 0) return INVALID_HANDLE;
    if (ended > here->ended) return NOT_READY;
    *ms = 20 * static_cast<float>(ended - began);
    return FINE;
}
static int event_destroy(void *event)
{
    here->events--;
    delete static_cast<int *>(event);
    return begin_work();
}
static int launch(void *function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                  unsigned shared_bytes, void *, void **parameters, void **)
{
    return run(function, blocks, threads, shared_bytes, parameters, false);
}
static int launch_cooperative(void *function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                              unsigned, unsigned shared_bytes, void *, void **parameters)
{
    return run(function, blocks, threads, shared_bytes, parameters, true);
}

Device::Device() : process(getpid())
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
        COT_CUDA_DRIVER_LIST(COT_CUDA_DRIVER_GIVE) COT_CUDA_DRIVER_NEWER_LIST(COT_CUDA_DRIVER_GIVE)
#undef COT_CUDA_DRIVER_GIVE
    };
    return &table;
}

} // namespace emulate
