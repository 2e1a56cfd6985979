/* Words that threads and copies arrive at (mbarrier), copies of whole tiles (cp.async.bulk.tensor), and wgmma.
 *
 * A tile lands at a step drawn behind its issue, and until the phase of its word is over its bytes are nobody's. A wgmma reads at a step drawn
 * before it is waited for; until then its sums are NaN. What either does is no thread's: blocks have a clock for their copies, which is handed on by
 * the word, and warps one for what their wgmma read, which is known to who has waited. */
#include "machine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace emulate {

/* What the emulator's driver writes in a tile_map. */
struct Map {
    const char *values;
    int64_t k, rows, slots, slot_bytes, tile_rows;
    uint64_t magic;
};
static constexpr uint64_t MAP_MAGIC = 0x7469656c73616d70u;
static constexpr int TILE_K = 64, LINE = 128;

void make_tile_map(void *map, const void *values, int64_t k, int64_t rows, int64_t slots, int64_t slot_bytes,
                   int64_t tile_rows)
{
    const Map made = {static_cast<const char *>(values), k, rows, slots, slot_bytes, tile_rows, MAP_MAGIC};
    memset(map, 0, 128);
    memcpy(map, &made, sizeof made);
}

static std::string name_of_word(uintptr_t word)
{
    return "the word at " + name_of_address(word);
}

void init_word(void *word, int arrivals)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    const uintptr_t at = reinterpret_cast<uintptr_t>(word);
    if (arrivals < 1)
        fail(Fault::COPY, "%s of %d arrivals (%s)", name_of_word(at).c_str(), arrivals,
             name_of_site(site).c_str());
    access(me, at, 8, Kind::WRITE, site);
    memset(word, 0, 8);
    const uint32_t count = static_cast<uint32_t>(arrivals);
    me->block->words[at] = {count, count, 0, 0, 0, 0, {}, {}, {}};
}

/* The word that a thread names, which it knows to have been made. */
static Word &find_word(Thread *me, uintptr_t at, const void *site)
{
    access(me, at, 8, Kind::READ, site);
    const auto found = me->block->words.find(at);
    if (found == me->block->words.end())
        fail(Fault::COPY, "%s takes %s for a word, which it is not (%s)", name_of(me).c_str(),
             name_of_address(at).c_str(), name_of_site(site).c_str());
    return found->second;
}

/* Ends the phase, where all arrivals and bytes have come. */
static void end_phase(Block *block, uintptr_t at, const void *site)
{
    Word &w = block->words.at(at);
    if (w.left) return;
    if (w.issued > w.expected)
        fail(Fault::COPY, "%s is brought %llu bytes in a phase that expects %llu (%s)",
             name_of_word(at).c_str(), static_cast<unsigned long long>(w.issued),
             static_cast<unsigned long long>(w.expected), name_of_site(site).c_str());
    if (w.landed < w.expected) return;
    for (size_t i = 0; i < block->tiles.size();) {
        TileCopy &copy = block->tiles[i];
        if (copy.word != at) {
            i++;
            continue;
        }
        end_tile(copy);
        if (w.known.empty()) w.known = Clocks(machine->clocks, 0);
        w.known.raise(copies_clock(block), copy.clock);
        block->tiles.erase(block->tiles.begin() + static_cast<std::ptrdiff_t>(i));
    }
    w.before = std::move(w.known);
    w.known = {};
    w.left = w.arrivals;
    w.phase++;
    w.expected = w.issued = w.landed = 0;
    std::vector<Thread *> waiting;
    waiting.swap(w.waiting);
    for (Thread *t : waiting) {
        learn(t, w.before);
        wake(t);
    }
}

void arrive_at_word(void *word, int bytes)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    const uintptr_t at = reinterpret_cast<uintptr_t>(word);
    pause(me);
    Word &w = find_word(me, at, site);
    if (!w.left)
        fail(Fault::COPY, "%s arrives at %s beyond its count of %u (%s)", name_of(me).c_str(),
             name_of_word(at).c_str(), w.arrivals, name_of_site(site).c_str());
    progress(me);
    tell(w.known, me);
    release(me);
    w.left--;
    w.expected += static_cast<uint64_t>(bytes);
    end_phase(me->block, at, site);
}

void wait_for_word(void *word, uint32_t parity)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    const uintptr_t at = reinterpret_cast<uintptr_t>(word);
    pause(me);
    Word &w = find_word(me, at, site);
    const auto waited = me->waited.find(at);
    const int64_t last = waited == me->waited.end() ? -2 : waited->second,
                  meant =
                      ((last + 1) & 1) == (parity & 1) ? last + 1 : last + 2, // the next one of that parity
        found = (w.phase & 1) == (parity & 1) ? w.phase : w.phase - 1;        // which a device takes it for
    if (found > meant)
        fail(Fault::COPY, "%s waits for phase %lld of %s when phase %lld is over (%s)", name_of(me).c_str(),
             static_cast<long long>(meant), name_of_word(at).c_str(), static_cast<long long>(w.phase - 1),
             name_of_site(site).c_str());
    me->waited[at] = found;
    if (found < w.phase) {
        if (!w.before.empty()) learn(me, w.before);
        return;
    }
    w.waiting.push_back(me);
    wait(me, "a word's phase", static_cast<int>(found), site);
}

/* ---- copies of tiles ---- */

void acquire_map(const void *map)
{
    Inside thread;
    thread->maps.insert(reinterpret_cast<uintptr_t>(map));
}

void copy_tile(void *to, const void *map, int k, int row, int slot, void *word)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    Block *block = me->block;
    const uintptr_t at = reinterpret_cast<uintptr_t>(to), shared = reinterpret_cast<uintptr_t>(block->shared),
                    word_at = reinterpret_cast<uintptr_t>(word);
    Map m;
    pause(me);
    if (reinterpret_cast<uintptr_t>(map) % 64 || at % 1024)
        fail(Fault::ALIGNMENT, "a tile to %s by a map at %s (%s)", name_of_address(at).c_str(),
             name_of_address(reinterpret_cast<uintptr_t>(map)).c_str(), name_of_site(site).c_str());
    access(me, reinterpret_cast<uintptr_t>(map), sizeof m, Kind::READ, site);
    memcpy(&m, map, sizeof m);
    if (m.magic != MAP_MAGIC)
        fail(Fault::COPY, "%s is no map of tiles (%s)",
             name_of_address(reinterpret_cast<uintptr_t>(map)).c_str(), name_of_site(site).c_str());
    if (!me->maps.count(reinterpret_cast<uintptr_t>(map)))
        fail(Fault::COPY, "%s copies a tile by %s, which it has not acquired (%s)", name_of(me).c_str(),
             name_of_address(reinterpret_cast<uintptr_t>(map)).c_str(), name_of_site(site).c_str());
    Word &w = find_word(me, word_at, site);
    TileCopy copy = {static_cast<char *>(to),
                     word_at,
                     static_cast<size_t>(m.tile_rows * LINE),
                     machine->steps + draw(200),
                     false,
                     ++block->tiles_issued,
                     {},
                     {},
                     me,
                     site};
    if (at < shared || at + copy.bytes > shared + machine->shape.shared_bytes)
        fail(Fault::BOUNDS, "%s copies a tile outside its shared memory: %s (%s)", name_of(me).c_str(),
             name_of_address(at).c_str(), name_of_site(site).c_str());
    const int64_t left = m.k - k, live = left < TILE_K ? left : TILE_K;
    for (int64_t r = 0; r < m.tile_rows && slot >= 0 && slot < m.slots && k >= 0 && live > 0; r++) {
        if (row + r < 0 || row + r >= m.rows) continue;
        copy.pieces.push_back({m.values + slot * m.slot_bytes + ((row + r) * m.k + k) * 2,
                               static_cast<size_t>(r * LINE), static_cast<size_t>(live) * 2});
    }
    for (const TileCopy::Piece &piece : copy.pieces) machine->result.counters.tile_bytes += piece.bytes;
    machine->result.counters.tiles++;
    if (machine->options.tiles) machine->options.tiles->push_back({k, row, slot});
    begin_tile(copy);
    w.issued += copy.bytes;
    block->tiles.push_back(std::move(copy));
    end_phase(block, word_at, site); // which finds what is too much for a phase that all have arrived at
}

static void land(Block *block, size_t i)
{
    TileCopy &copy = block->tiles[i];
    const uintptr_t word = copy.word;
    const void *site = copy.site;
    land_tile(copy);
    copy.landed = true;
    block->words.at(word).landed += copy.bytes;
    end_phase(block, word, site);
}

void land_tiles(Block *block)
{
    for (size_t i = 0; i < block->tiles.size();)
        if (!block->tiles[i].landed && block->tiles[i].lands <= machine->steps) {
            land(block, i);
            i = 0; // a phase's end takes some away
        } else {
            i++;
        }
}

bool land_some_tile()
{
    for (Block &block : machine->blocks)
        for (size_t i = 0; i < block.tiles.size(); i++)
            if (!block.tiles[i].landed) {
                land(&block, i);
                return true;
            }
    return false;
}

void find_starved_words()
{
    for (const Block &block : machine->blocks)
        for (const auto &[at, w] : block.words)
            if (!w.waiting.empty() && !w.left && w.landed < w.expected)
                fail(Fault::COPY, "%s expects %llu bytes, and %llu are on their way (%s)",
                     name_of_word(at).c_str(), static_cast<unsigned long long>(w.expected),
                     static_cast<unsigned long long>(w.issued), name_of_site(w.waiting[0]->waits_at).c_str());
}

void fence_copies()
{
    Inside thread;
    thread->async_fences.push_back(thread->now);
    release(thread.get()); // what it writes from now on is not fenced
}

/* ---- wgmma ---- */

static void run(Product &product)
{
    Warp *const first = product.first;
    const auto value = [&](size_t row, int k) {
        uint16_t bits;
        memcpy(&bits,
               reinterpret_cast<const char *>(product.operands[2 * row + static_cast<size_t>(k / 8)]) +
                   k % 8 * 2,
               sizeof bits);
        return bf16_to_float(bits);
    };
    std::vector<std::array<float, 16>> rows(static_cast<size_t>(64 + product.columns)); // of a, then of b
    std::vector<bool> zero(rows.size(), true), finite(rows.size(), true);
    for (size_t row = 0; row < rows.size(); row++)
        for (int k = 0; k < 16; k++) {
            const float v = value(row, k);
            rows[row][static_cast<size_t>(k)] = v;
            zero[row] = zero[row] && v == 0;
            finite[row] = finite[row] && std::isfinite(v);
        }
    for (int i = 0; i < 128; i++) {
        const int lane = i % 32, warp = i / 32;
        std::vector<float> &sums = product.sums[static_cast<size_t>(i)]->values;
        for (int s = 0; s < product.columns / 2; s++) {
            const int row = 16 * warp + lane / 4 + s / 2 % 2 * 8, column = 8 * (s / 4) + lane % 4 * 2 + s % 2;
            const size_t a = static_cast<size_t>(row), b = static_cast<size_t>(64 + column);
            if ((zero[a] && finite[b]) || (zero[b] && finite[a])) continue; // zeros change no sum
            sums[static_cast<size_t>(s)] =
                add_products(sums[static_cast<size_t>(s)], rows[a].data(), rows[b].data());
        }
    }
    product.done = true;
    first->products.pop_front();
}

/* Those that are due, in their order; or all up to that one. */
static void run_products(Warp *first, const Product *until)
{
    while (!first->products.empty() &&
           (until ? !until->done : first->products.front()->reads <= machine->steps)) {
        const std::shared_ptr<Product> next = first->products.front();
        run(*next);
    }
}

static Warp *first_of_four(Thread *me, const void *site)
{
    const int number = me->warp->number / 4 * 4;
    if (static_cast<unsigned>(number + 4) * 32 > machine->shape.threads)
        fail(Fault::MASK, "%s calls wgmma, and its block has no four warps there (%s)", name_of(me).c_str(),
             name_of_site(site).c_str());
    return me->warp - (me->warp->number - number);
}

static Sums *find_sums(Thread *me, float *at, int count)
{
    for (const std::shared_ptr<Sums> &s : me->sums)
        if (s->at == at) return s.get();
    me->sums.push_back(std::make_shared<Sums>(Sums{at, std::vector<float>(at, at + count), 0}));
    std::fill(at, at + count, NAN);
    return me->sums.back().get();
}

void multiply_group(float *sums, int columns, const void *a, const void *b)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    Warp *const first = first_of_four(me, site);
    const uintptr_t at_a = reinterpret_cast<uintptr_t>(a), at_b = reinterpret_cast<uintptr_t>(b);
    if (!me->sums_fenced)
        fail(Fault::COPY, "%s calls wgmma without a wgmma_fence behind what its sums were before (%s)",
             name_of(me).c_str(), name_of_site(site).c_str());
    if (at_a % 1024 >= LINE || at_b % 1024 >= LINE || at_a % 32 || at_b % 32)
        fail(Fault::ALIGNMENT, "wgmma of matrices at %s and %s (%s)", name_of_address(at_a).c_str(),
             name_of_address(at_b).c_str(), name_of_site(site).c_str());
    pause(me);
    run_products(first, nullptr);
    std::vector<Thread *> &all = first->multiplying;
    if (!all.empty() && (first->multiplies_at != site || all[0]->in[0] != at_a || all[0]->in[1] != at_b))
        fail(Fault::MASK, "wgmma of four warps is called in two places, or of two matrices (%s, %s)",
             name_of_site(first->multiplies_at).c_str(), name_of_site(site).c_str());
    first->multiplies_at = site;
    me->in[0] = at_a, me->in[1] = at_b;
    me->out[0] = reinterpret_cast<uint64_t>(find_sums(me, sums, columns / 2));
    all.push_back(me);
    if (all.size() < 128) {
        wait(me, "wgmma", -1, site);
        return;
    }
    auto product = std::make_shared<Product>(
        Product{at_a, at_b, columns, machine->steps + draw(400), false, first, {}, {}, {}, {}, site});
    begin_operands(*product);
    for (int i = 0; i < 128; i++) {
        Thread *const t = first[i / 32].lanes[i % 32];
        Sums *const of_thread = reinterpret_cast<Sums *>(t->out[0]);
        of_thread->products++;
        product->sums[static_cast<size_t>(i)] = of_thread;
        t->products.push_back(product);
    }
    first->products.push_back(product);
    machine->result.counters.group_mma++;
    std::vector<Thread *> others;
    others.swap(all);
    for (Thread *t : others)
        if (t != me) wake(t);
}

/* A launch gives each thread as many as all of a multiprocessor's 65,536 are for, by eights. */
void set_registers(int count, bool more)
{
    const void *site = __builtin_return_address(0);
    Inside thread;
    Thread *me = thread.get();
    Block *const block = me->block;
    first_of_four(me, site);
    if (!me->registers) me->registers = static_cast<int>(65536 / machine->shape.threads / 8 * 8);
    const int change = count - me->registers;
    if (count % 8 || count < 24 || count > 256 || (more ? change < 0 : change > 0))
        fail(Fault::MISUSE, "%s goes from %d registers to %d (%s)", name_of(me).c_str(), me->registers, count,
             name_of_site(site).c_str());
    pause(me);
    while (change > block->spare_registers) {
        block->wanting.push_back(me);
        wait(me, "registers", count, site);
    }
    progress(me);
    block->spare_registers -= change;
    me->registers = count;
    std::vector<Thread *> others;
    others.swap(block->wanting);
    for (Thread *t : others) wake(t);
}

void fence_products()
{
    Inside thread;
    thread->sums_fenced = true;
}

void commit_products()
{
    Inside thread;
    thread->product_groups.push_back(std::move(thread->products));
    thread->products.clear();
}

void wait_products(int groups_left)
{
    Inside thread;
    Thread *me = thread.get();
    pause(me);
    while (me->product_groups.size() > static_cast<size_t>(groups_left)) {
        for (const std::shared_ptr<Product> &p : me->product_groups.front()) {
            const size_t warp = static_cast<size_t>(me->warp - p->first);
            run_products(p->first, p.get());
            if (!p->read[warp]) {
                p->read[warp] = ++me->warp->products_read;
                end_operands(*p, me->warp);
            }
            me->known.raise(products_clock(me->warp), p->read[warp]);
            p->sums[warp * 32 + static_cast<size_t>(me->lane)]->products--;
        }
        me->product_groups.pop_front();
    }
    for (size_t i = 0; i < me->sums.size();) {
        Sums &s = *me->sums[i];
        if (s.products) {
            i++;
            continue;
        }
        std::copy(s.values.begin(), s.values.end(), s.at);
        me->sums.erase(me->sums.begin() + static_cast<std::ptrdiff_t>(i));
    }
    me->sums_fenced = false;
}

void end_thread_tiles(Thread *me)
{
    if (!me->products.empty() || !me->product_groups.empty())
        fail(Fault::COPY, "%s ends while its wgmma are on their way", name_of(me).c_str());
    if (++me->block->ended == machine->shape.threads && !me->block->tiles.empty())
        fail(Fault::COPY, "block %d ends while %zu copies of tiles are on their way (%s)", me->block->number,
             me->block->tiles.size(), name_of_site(me->block->tiles[0].site).c_str());
}

} // namespace emulate
