/* Fibers, the scheduler, the launch. */
#include "machine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <sys/mman.h>

#ifndef __x86_64__
#error "the emulator switches contexts on x86-64 alone"
#endif

/* Saves what a call must keep, and goes on where the other stack was left. */
extern "C" void emulate_switch(void **leave, void *enter);
__asm__(".text\n"
        ".globl emulate_switch\n"
        ".type emulate_switch, @function\n"
        "emulate_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size emulate_switch, .-emulate_switch\n");

namespace emulate {

Machine *machine;
Thread *current;

static constexpr size_t STACK_BYTES = 64 << 10;
static constexpr unsigned THREADS_MOST = 16384;
static constexpr uint64_t CLOCK_STEP = 8;                   // ns that a step of the scheduler takes
static constexpr uint64_t CLOCK_END = 1000ull * 1000000000; // ns after which polling is taken for endless
static constexpr uint64_t QUIET_ROUNDS = 16;

const char *name_of(Fault fault)
{
    static const char *const names[] = {"none",    "race", "bounds", "alignment", "unwritten",
                                        "barrier", "mask", "copy",   "deadlock",  "misuse"};
    return names[static_cast<int>(fault)];
}

std::string name_of(const Thread *thread)
{
    char text[80];
    snprintf(text, sizeof text, "block %d warp %d lane %d", thread->block->number, thread->warp->number,
             thread->lane);
    return text;
}

/* FILE:LINE of a return address, where addr2line can tell; of what is inlined, the place outside the emulator. */
std::string name_of_site(const void *site)
{
    static std::map<const void *, std::string> known;
    const auto found = known.find(site);
    if (found != known.end()) return found->second;
    Dl_info where;
    if (!site || !dladdr(site, &where)) return "?";
    const uintptr_t offset = reinterpret_cast<uintptr_t>(site) - reinterpret_cast<uintptr_t>(where.dli_fbase);
    char command[4200], line[4096] = "";
    snprintf(command, sizeof command, "addr2line -ie '%s' 0x%zx 2>/dev/null", where.dli_fname,
             static_cast<size_t>(offset - 1));
    if (FILE *pipe = popen(command, "r")) {
        do
            if (!fgets(line, sizeof line, pipe)) break;
        while (strstr(line, "/emulate/"));
        pclose(pipe);
    }
    line[strcspn(line, " \n")] = 0;
    const char *name = strrchr(line, '/');
    if (!*line || line[0] == '?') snprintf(line, sizeof line, "+0x%zx", static_cast<size_t>(offset));
    return known[site] = name ? name + 1 : line;
}

void fail(Fault fault, const char *format, ...)
{
    current = nullptr;
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    machine->result.fault = fault;
    machine->result.message = std::string(name_of(fault)) + ": " + text;
    void *left;
    emulate_switch(&left, machine->host_stack); // the fibers are left as they are
    abort();
}

uint64_t draw(uint64_t below)
{
    uint64_t x = machine->random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (x >> 11) % below;
}

Frozen freeze(const Thread *thread, uint32_t chain)
{
    Clocks all;
    tell(all, thread);
    all.chain = chain;
    return std::make_shared<const Clocks>(std::move(all));
}

static std::string waiting_for(const Thread &t)
{
    return std::string(t.waits_for) + (t.waits_number < 0 ? "" : " " + std::to_string(t.waits_number)) +
           " (" + name_of_site(t.waits_at) + ")";
}

[[noreturn]] static void deadlock(const char *what)
{
    find_starved_words();
    std::map<std::string, std::vector<const Thread *>> by_reason;
    for (const Thread &t : machine->all)
        if (t.state == State::WAITING)
            by_reason[waiting_for(t)].push_back(&t);
        else if (t.state == State::PARKED) {
            std::string reason = "polling";
            for (const Poll &p : t.polls) reason += " " + name_of_address(p.address);
            by_reason[reason].push_back(&t);
        }
    std::string text;
    for (auto &[reason, threads] : by_reason) {
        if (!text.empty()) text += "; ";
        text += name_of(threads[0]);
        if (threads.size() > 1) text += " and " + std::to_string(threads.size() - 1) + " more";
        text += ": " + reason;
    }
    fail(Fault::DEADLOCK, "%s: %s", what, text.c_str());
}

static void make_ready(Thread *thread)
{
    thread->state = State::READY;
    machine->ready.push_back(thread);
}

/* All ready threads are used up: what polls looks again, and where somebody reads the clock that moves on. */
static void stir()
{
    Machine &m = *machine;
    if (m.parked.empty()) deadlock("all threads wait");
    bool clock = false;
    for (Thread *t : m.parked) clock |= t->reads_clock;
    if (clock) {
        m.now += std::max<uint64_t>(1000, m.now / 8);
        if (m.now > CLOCK_END) deadlock("threads poll without an end");
    } else if (m.quiet_rounds++ >= QUIET_ROUNDS) {
        deadlock("all threads wait");
    }
    for (Thread *t : m.parked) {
        if (clock && !t->reads_clock) continue;
        t->polls.clear();
        make_ready(t);
    }
    m.parked.erase(std::remove_if(m.parked.begin(), m.parked.end(),
                                  [](const Thread *t) { return t->state != State::PARKED; }),
                   m.parked.end());
}

static Thread *next_ready()
{
    Machine &m = *machine;
    while (m.ready.empty() && land_some_tile()) {}
    if (m.ready.empty()) stir();
    if (++m.steps > m.options.most_steps) deadlock("no end after as many steps as were allowed");
    m.now += CLOCK_STEP;
    const size_t i = draw(m.ready.size());
    Thread *thread = m.ready[i];
    m.ready[i] = m.ready.back();
    m.ready.pop_back();
    return thread;
}

static void run_another(Thread *thread)
{
    Thread *next = next_ready();
    if (next == thread) return;
    machine->result.counters.switches++;
    current = next;
    emulate_switch(&thread->stack_pointer, next->stack_pointer);
    current = nullptr; // whoever called goes on, in the emulator
}

void pause(Thread *thread)
{
    land_copies(thread);
    land_tiles(thread->block);
    if (draw(machine->switch_one_in)) return;
    make_ready(thread);
    run_another(thread);
}

void wait(Thread *thread, const char *for_what, int number, const void *site)
{
    thread->state = State::WAITING;
    thread->waits_for = for_what;
    thread->waits_number = number;
    thread->waits_at = site;
    run_another(thread);
}

void park(Thread *thread)
{
    thread->state = State::PARKED;
    machine->parked.push_back(thread);
    run_another(thread);
}

void wake(Thread *thread)
{
    thread->polls.clear();
    make_ready(thread);
}

void progress(Thread *thread)
{
    machine->quiet_rounds = 0;
    thread->polls.clear();
    thread->reads_clock = false;
}

void wake_pollers(uintptr_t address)
{
    std::vector<Thread *> &parked = machine->parked;
    for (size_t i = 0; i < parked.size();) {
        bool polls = false;
        for (const Poll &p : parked[i]->polls) polls |= p.address == address;
        if (!polls) {
            i++;
            continue;
        }
        wake(parked[i]);
        parked[i] = parked.back();
        parked.pop_back();
    }
}

/* Where a fiber begins. */
static void begin()
{
    Thread *me = current;
    machine->run(machine->parameters);
    current = nullptr;
    end_thread_copies(me);
    end_thread_warp(me);
    end_thread_barriers(me);
    end_thread_tiles(me);
    me->state = State::DONE;
    machine->quiet_rounds = 0;
    void *left;
    if (static_cast<uint32_t>(++machine->done) == machine->threads)
        emulate_switch(&left, machine->host_stack);
    Thread *next = next_ready();
    current = next;
    emulate_switch(&left, next->stack_pointer);
    abort();
}

static void prepare(Thread *thread, char *stack)
{
    thread->stack = stack;
    thread->stack_end = stack + STACK_BYTES;
    void **top =
        reinterpret_cast<void **>(thread->stack_end) - 2; // begin() finds the stack as a call leaves it
    top[0] = reinterpret_cast<void *>(begin);
    top[1] = nullptr;
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    thread->stack_pointer = top;
}

static char *stacks()
{
    static char *memory;
    if (!memory) {
        memory = static_cast<char *>(mmap(nullptr, THREADS_MOST * STACK_BYTES, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (memory == MAP_FAILED) perror("emulate: no memory for stacks"), exit(1);
    }
    return memory;
}

Result launch_erased(const Shape &shape, const Options &options, void (*run)(void *), void *parameters,
                     size_t parameter_bytes)
{
    Machine m = {};
    m.shape = shape;
    m.options = options;
    m.threads = shape.blocks * shape.threads;
    if (!shape.blocks || !shape.threads || shape.threads % 32 || shape.threads > 1024 ||
        m.threads > THREADS_MOST) {
        m.result.fault = Fault::MISUSE;
        m.result.message = "misuse: a launch has 1 to 16384 threads, 32, 64, ... 1024 a block";
        return m.result;
    }
    machine = &m;
    m.random = options.seed * 0x2545f4914f6cdd1du;
    m.switch_one_in = 1u << draw(4);
    m.tick = uint64_t{1} << 5 * draw(3); // 1, 32 or 1024 ns
    m.run = run;
    m.parameters = parameters;
    m.parameter_bytes = parameter_bytes;
    m.clocks = m.threads + shape.blocks + m.threads / 32;
    begin_launch_memory();
    const Clocks first_known(m.clocks, first_clock());
    m.all.resize(m.threads);
    m.blocks.resize(shape.blocks);
    m.warps.resize(m.threads / 32);
    for (uint32_t t = 0; t < m.threads; t++) {
        Thread &thread = m.all[t];
        const uint32_t b = t / shape.threads;
        Block &block = m.blocks[b];
        if (t % shape.threads == 0) {
            block.number = static_cast<int>(b);
            block.device = options.devices.empty() ? 0 : options.devices[b];
            block.shared = take_shared(shape.shared_bytes);
            block.tiles_issued = first_clock();
        }
        Warp &warp = m.warps[t / 32];
        warp.block = &block;
        warp.number = static_cast<int>(t % shape.threads / 32);
        warp.lanes[t % 32] = &thread;
        warp.products_read = first_clock();
        thread.number = t;
        thread.lane = static_cast<int>(t % 32);
        thread.device = block.device;
        thread.block = &block;
        thread.warp = &warp;
        thread.now = first_clock() + 1;
        thread.known = first_known;
        block.threads.push_back(&thread);
        prepare(&thread, stacks() + t * STACK_BYTES);
        make_ready(&thread);
    }
    Thread *first = next_ready();
    current = first;
    emulate_switch(&m.host_stack, first->stack_pointer);
    current = nullptr;
    for (Warp &warp : m.warps) close_uses(&warp);
    Clock last = first_clock();
    for (const Thread &thread : m.all) last = std::max(last, thread.now);
    for (const Block &block : m.blocks) last = std::max(last, block.tiles_issued);
    for (const Warp &warp : m.warps) last = std::max(last, warp.products_read);
    keep_clock(last);
    end_launch_memory();
    machine = nullptr;
    m.result.counters.prefetched_in_vain = m.prefetched.size() * 32;
    return m.result;
}

} // namespace emulate
