/* Where the compiler's -fsanitize=thread calls in: every plain load and store of device code. */
#include "machine.h"

using namespace emulate;

static inline void seen(void *p, size_t bytes, Kind kind, const void *site)
{
    if (!current) return;
    Inside thread;
    access(thread.get(), reinterpret_cast<uintptr_t>(p), bytes, kind, site);
    note_use(thread.get(), reinterpret_cast<uintptr_t>(p), bytes, site, false);
}

/* A volatile access is a relaxed one that every thread may take part in; it orders nothing. */
static inline void seen_volatile(void *p, size_t bytes, Kind kind, const void *site)
{
    if (!current) return;
    Inside thread;
    access_volatile(thread.get(), reinterpret_cast<uintptr_t>(p), bytes, kind, site);
}

#define SITE __builtin_return_address(0)
#define ENTRY(bytes)                                                                                         \
    void __tsan_read##bytes(void *p)                                                                         \
    {                                                                                                        \
        seen(p, bytes, Kind::READ, SITE);                                                                    \
    }                                                                                                        \
    void __tsan_write##bytes(void *p)                                                                        \
    {                                                                                                        \
        seen(p, bytes, Kind::WRITE, SITE);                                                                   \
    }                                                                                                        \
    void __tsan_unaligned_read##bytes(void *p)                                                               \
    {                                                                                                        \
        seen(p, bytes, Kind::READ, SITE);                                                                    \
    }                                                                                                        \
    void __tsan_unaligned_write##bytes(void *p)                                                              \
    {                                                                                                        \
        seen(p, bytes, Kind::WRITE, SITE);                                                                   \
    }                                                                                                        \
    void __tsan_volatile_read##bytes(void *p)                                                                \
    {                                                                                                        \
        seen_volatile(p, bytes, Kind::READ, SITE);                                                           \
    }                                                                                                        \
    void __tsan_volatile_write##bytes(void *p)                                                               \
    {                                                                                                        \
        seen_volatile(p, bytes, Kind::WRITE, SITE);                                                          \
    }

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
ENTRY(1)
ENTRY(2)
ENTRY(4)
ENTRY(8)
ENTRY(16)
void __tsan_read_range(void *p, size_t bytes)
{
    seen(p, bytes, Kind::READ, SITE);
}
void __tsan_write_range(void *p, size_t bytes)
{
    seen(p, bytes, Kind::WRITE, SITE);
}
}
