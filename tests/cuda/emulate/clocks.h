/* Vector clocks: what a thread knows of every thread of its launch. They are kept in pages that all who know the same share, so that
 * a launch of thousands of threads takes little memory, and what is known alike is compared by where it lies. A thread's own clock
 * is not among them until it tells what it knows: lanes that have met share all their pages. */
#ifndef COT_TESTS_CUDA_EMULATE_CLOCKS_H
#define COT_TESTS_CUDA_EMULATE_CLOCKS_H
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace emulate {

using Clock = uint32_t; // how many releases a thread has made

class Clocks {
    static constexpr uint32_t THREADS = 64; // a page
    struct Page {
        uint32_t users;
        Clock clocks[THREADS];
    };
    std::vector<Page *> pages;

    static void leave(Page *page)
    {
        if (!--page->users) delete page;
    }
    static void put(Page *&at, Page *page)
    {
        page->users++;
        leave(at);
        at = page;
    }
    /* A page that nobody else sees. */
    static Page *own(Page *&at)
    {
        if (at->users > 1) {
            Page *const copy = new Page(*at);
            copy->users = 0;
            put(at, copy);
        }
        return at;
    }

  public:
    uint32_t chain =
        0; // of the releases that led to what is known, the most behind each other that other blocks acquired

    Clocks() = default;
    Clocks(uint32_t threads, Clock all) : pages((threads + THREADS - 1) / THREADS)
    {
        if (pages.empty()) return;
        Page *const page = new Page;
        page->users = static_cast<uint32_t>(pages.size());
        std::fill_n(page->clocks, THREADS, all);
        std::fill(pages.begin(), pages.end(), page);
    }
    Clocks(const Clocks &other) : pages(other.pages), chain(other.chain)
    {
        for (Page *page : pages) page->users++;
    }
    Clocks(Clocks &&other) noexcept : pages(std::move(other.pages)), chain(other.chain)
    {
        other.pages.clear();
    }
    Clocks &operator=(Clocks other) noexcept
    {
        pages.swap(other.pages);
        chain = other.chain;
        return *this;
    }
    ~Clocks()
    {
        for (Page *page : pages) leave(page);
    }

    bool empty() const { return pages.empty(); }
    Clock operator[](uint32_t thread) const { return pages[thread / THREADS]->clocks[thread % THREADS]; }

    void raise(uint32_t thread, Clock clock)
    {
        Page *&page = pages[thread / THREADS];
        if (page->clocks[thread % THREADS] < clock) own(page)->clocks[thread % THREADS] = clock;
    }

    /* All that either knows. */
    void join(const Clocks &other)
    {
        if (empty()) return void(*this = other);
        chain = std::max(chain, other.chain);
        for (size_t i = 0; i < pages.size(); i++) {
            Page *const theirs = other.pages[i];
            if (pages[i] == theirs) continue;
            bool more = false, less = false; // whether they know something newer, or older
            for (uint32_t t = 0; t < THREADS; t++) {
                more |= pages[i]->clocks[t] < theirs->clocks[t];
                less |= pages[i]->clocks[t] > theirs->clocks[t];
            }
            if (!less) {
                put(pages[i], theirs);
            } else if (more) {
                Page *const mine = own(pages[i]);
                for (uint32_t t = 0; t < THREADS; t++)
                    mine->clocks[t] = std::max(mine->clocks[t], theirs->clocks[t]);
            }
        }
    }
};

} // namespace emulate

#endif
