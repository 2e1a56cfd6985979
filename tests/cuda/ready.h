/* An emulated device for operators to be opened on, and layers for them. */
#ifndef COT_TESTS_CUDA_READY_H
#define COT_TESTS_CUDA_READY_H
#include "fused_variants.h"

#include "emulate/driver.h"

#include "cuda/module/operator.h"

static const int all_majors[] = {8, 9, 10, 12, 0};
static const cot_cuda_image image = {"kernels", "more kernels", 13000, all_majors,
                                     "compute capability 8.x, 9.x, 10.x, 12.x"};

/* An emulated device that operators are opened on. */
struct Ready {
    emulate::Device device;
    cot_cuda_device found;

    /* wgmma: with the shared memory of compute capability 9.0, without which the emulated device multiplies tiles of 128 rows by mma.sync. */
    explicit Ready(uint64_t seed, int blocks = 6, bool wgmma = false)
    {
        if (wgmma)
            device.shared_bytes_most = 232448, device.resident = 2; // of which such tiles' blocks are alone
        cot_error error;
        device.options.seed = seed;
        device.multiprocessors = blocks;
        if (cot_cuda_device_open(&found, device.driver(), &image, &error) != COT_OK)
            fail_msg("%s", error.message);
        cot_cuda_operator_use(&found);
    }
    ~Ready()
    {
        cot_cuda_operator_use(nullptr);
        cot_cuda_device_close(&found);
        assert_int_equal(device.contexts, 0);
        assert_int_equal(device.pushed, 0);
        assert_int_equal(device.taken, device.given_back);
        assert_int_equal(device.events, 0);
        assert_int_equal(device.unwritten, 0);
        assert_int_equal(device.pinned.size(), 0);
        assert_true(device.work.empty());
        if (!device.rows_anywhere) assert_int_equal(device.unpinned, 0);
    }
};

/* Numbers in pages of their own, pinned as operator `cuda` wants rows. */
template <typename T> struct Pinned {
    size_t bytes;
    T *at;

    explicit Pinned(int64_t count) : bytes((static_cast<size_t>(count) * sizeof(T) / 4096 + 1) * 4096)
    {
        at = static_cast<T *>(aligned_alloc(4096, bytes));
        memset(static_cast<void *>(at), 0xff, bytes);
        assert_int_equal(cot_cuda_operator.memory->pin(at, bytes, nullptr), COT_OK);
    }
    ~Pinned()
    {
        cot_cuda_operator.memory->unpin(at, bytes);
        free(at);
    }
    Pinned(const Pinned &) = delete;
};

inline struct world world_on(const cot_moe_operator *op, const Variant &v, int64_t tokens, struct draw *draw)
{
    struct world w = world_of(v, tokens, draw);
    w.op = op;
    w.options.combine_type = v.type;
    return w;
}

/* A world whose calls go another way as long as this lives. */
class Calling {
    struct world &world;
    const cot_moe_operator *const before;

  public:
    cot_moe_operator op;

    Calling(struct world &w, decltype(cot_moe_operator::forward) forward) : world(w), before(w.op), op(*w.op)
    {
        op.forward = forward;
        world.op = &op;
    }
    ~Calling() { world.op = before; }
    Calling(const Calling &) = delete;
};

/* A call ends so, with these words, on all ranks. */
inline void all_say(const struct world *w, const struct plan *p, cot_status status, const char *text)
{
    struct outcome *const found = world_run(w, p);
    for (int r = 0; r < p->ranks; r++)
        if (found->status[r] != status || !strstr(found->message[r], text))
            fail_msg("rank %d: %d '%s', expected '%s'", r, found->status[r], found->message[r], text);
    outcome_free(found, w);
}

#endif
