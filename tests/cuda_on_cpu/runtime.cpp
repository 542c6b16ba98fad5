// Runs the blocks of a launch one after another, the threads of a block as fibres (see runtime.h), and watches them.
//
// Kernels are compiled with -fsanitize=thread and some of -fsanitize=undefined, but linked with neither library. The
// functions that compilers then call, at every access to memory and where a check fails, are those at the end of this
// file. So memory outside of an array is found to be so even where no fence is near, and two threads that use the same
// byte of shared memory without a barrier between them even where no order of threads shows it.

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime.h"

namespace cuda_on_cpu {

// Memory that a kernel may use, [data, data_end), and what else is mapped around it.
struct Region {
    char *mapping, *mapping_end, *data, *data_end;
};

// One run of a kernel, as compile.py describes it.
struct Launch {
    void (*kernel)(void* const* arguments);
    void* const* arguments;
    Index grid, block;
    const Module* module;
    const Region* regions;  // of global memory
    int region_count;
    Region dynamic;  // the dynamic shared memory
    uint64_t seed;   // 0: threads run in their order, copies arrive late; else in random order, copies arrive early
    int seconds;     // of CPU time, after which the run is given up
};

// What went wrong.
struct Report {
    char message[2000];
    Index block, thread;
    int in_thread;     // whether a thread was running
    const char* file;  // where it was in the source, if known,
    int line;
    void* program;  // or else in the compiled code
    void* address;  // of the memory that should not have been used
};

Index thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t STACK = 128 * 1024, FENCE = 64 * 1024;  // FENCE: a multiple of every machine's pages
constexpr unsigned char POISON = 0xff;                   // as a float or a half: nan
constexpr int NOBODY = -1;                               // instead of a thread
constexpr int ATOMIC = -2;                               // instead of a thread of warp 0; of warp 1: -3, ...
constexpr int ATOMIC_BY_MANY = -100;                     // of several warps

struct Copy {
    void* to;
    const void* from;
    unsigned bytes;
    bool valid;
    int group;
};

enum State { READY, AT_BARRIER, IN_WARP_FUNCTION, DONE };

struct Fibre {
    State state;
    Index index;
    const char *name, *file;  // what it waits in, and where
    int line;
    unsigned mask;  // IN_WARP_FUNCTION: the lanes that take part
    const void* in;
    void* out;
    std::vector<Copy> copies;  // under way
    int groups;                // of copies, committed
    bool started = false;
    sigjmp_buf place;  // where it goes on
    ucontext_t start;
    char* stack;
};

// Who used a byte of shared memory last, and when: behind which barrier of the block, which __syncwarp of the warp.
struct Use {
    uint32_t wrote_at, wrote_sync, read_at, read_sync;
    int16_t writer, reader;
    bool more_readers, other_warps_read;  // besides `reader`, since that barrier
};

const Launch* launch;
std::vector<Fibre*> fibres;  // never freed: their stacks serve the next launch
int threads, current, waiting;
const char* stack;  // of the thread that runs
uint32_t barriers, syncs[32];  // the clock of the block, and those of its warps
std::vector<Use> static_uses, dynamic_uses;
std::vector<char> is_guard;
const Region *last_region, nowhere = {};
const void* last_stray;  // code that used other memory than what it was given
sigjmp_buf scheduler, failure;
Report report;
volatile sig_atomic_t running;

// ------------------------------------------------------------------------------------------------------------ errors

// End the launch with an error in a line of the kernel.
[[noreturn]] __attribute__((format(printf, 3, 4))) void fail(const char* file, int line, const char* format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(report.message, sizeof report.message, format, values);
    va_end(values);
    report.file = file;
    report.line = line;
    report.block = block_index;
    report.thread = thread_index;
    report.in_thread = current != NOBODY;
    siglongjmp(failure, 1);
}

// The same in code whose line compile.py looks up.
[[noreturn]] void fail_at(const void* code, const void* address, const char* message) {
    Dl_info info;
    if (code && dladdr(code, &info))
        report.program = reinterpret_cast<void*>(static_cast<const char*>(code) - static_cast<char*>(info.dli_fbase));
    report.address = const_cast<void*>(address);
    fail(nullptr, 0, "%s", message);
}

// ------------------------------------------------------------------------------------------------- watching memory

// An error if two threads use the same byte, one of them writes it, and no barrier is between, whatever came of it. In
// a warp a __syncwarp is enough (one of some lanes counts as one of all). Atomic changes may meet one another.
void check_race(Use& use, bool write, bool atomic, const void* code, const void* address) {
    int warp = current / 32, who = atomic ? ATOMIC - warp : current, other = NOBODY;
    const char* what = nullptr;
    if (use.wrote_at == barriers && use.writer != current && !(atomic && use.writer <= ATOMIC)) {
        bool same_warp = use.writer >= 0 ? use.writer / 32 == warp : use.writer == ATOMIC - warp;
        if (!same_warp || use.wrote_sync == syncs[warp]) {
            what = "shared memory that another thread wrote";
            other = use.writer;
        }
    }
    bool read = use.read_at == barriers;
    if (write && read && !what) {
        bool ordered = use.reader / 32 == warp && use.read_sync != syncs[warp];
        if (use.other_warps_read || !(ordered || (use.reader == current && !use.more_readers))) {
            what = "shared memory that another thread read";
            other = use.reader;
        }
    }
    if (what) {
        char text[200], whom[60] = "";
        if (other >= 0 && other != current) {
            Index i = fibres[other]->index;
            snprintf(whom, sizeof whom, ", (%u, %u, %u),", i.x, i.y, i.z);
        }
        snprintf(text, sizeof text, "%s %s%s without a barrier between", write ? "writes" : "reads", what, whom);
        fail_at(code, address, text);
    }
    if (write) {
        bool many = atomic && use.wrote_at == barriers && use.writer <= ATOMIC && use.writer != who;
        use.writer = many ? ATOMIC_BY_MANY : who;
        use.wrote_at = barriers;
        use.wrote_sync = syncs[warp];
    } else if (!read) {
        use.reader = current;
        use.read_at = barriers;
        use.read_sync = syncs[warp];
        use.more_readers = use.other_warps_read = false;
    } else if (use.reader / 32 != warp) {
        use.other_warps_read = true;
    } else {
        use.more_readers = use.read_sync == syncs[warp] && (use.more_readers || use.reader != current);
        use.reader = current;
        use.read_sync = syncs[warp];
    }
}

enum Kind { READ, WRITE, ATOMICALLY };

// The same of several bytes. Most often they have been used alike so far, and then stay so.
void check_races(Use* use, size_t bytes, Kind kind, const void* code, const void* address) {
    Use before = *use;
    check_race(*use, kind != READ, kind == ATOMICALLY, code, address);
    for (size_t i = 1; i < bytes; i++)
        if (!memcmp(&use[i], &before, sizeof before))
            use[i] = *use;
        else
            check_race(use[i], kind != READ, kind == ATOMICALLY, code, address);
}

// A thread is going to use memory that is neither its stack nor what was used last.
[[gnu::noinline]] void access_elsewhere(char* at, size_t bytes, Kind kind, const void* code) {
    auto check = [&](bool inside) {
        if (inside) return;
        fail_at(code, at, kind == READ ? "reads memory that is not its own" : "writes memory that is not its own");
    };
    const Module& module = *launch->module;
    const Region& dynamic = launch->dynamic;
    if (at >= module.shared && at < module.shared_end) {
        size_t first = at - module.shared;
        for (size_t i = first; i < first + bytes; i++) check(i < is_guard.size() && !is_guard[i]);
        check_races(&static_uses[first], bytes, kind, code, at);
    } else if (at >= dynamic.mapping && at < dynamic.mapping_end) {
        check(at >= dynamic.data && at + bytes <= dynamic.data_end);
        check_races(&dynamic_uses[at - dynamic.data], bytes, kind, code, at);
    } else {
        for (const Region* r = launch->regions; r < launch->regions + launch->region_count; r++)
            if (at >= r->mapping && at < r->mapping_end) {
                check(at >= r->data && at + bytes <= r->data_end);
                last_region = r;
                return;
            }
        last_stray = code;  // constants; or it will fail
    }
}

// A thread is going to use memory.
inline void access(const void* p, size_t bytes, Kind kind, const void* code) {
    auto at = static_cast<char*>(const_cast<void*>(p));
    if (static_cast<size_t>(at - stack) < STACK) return;  // its own variables
    if (at >= last_region->data && at + bytes <= last_region->data_end) return;
    if (current != NOBODY) access_elsewhere(at, bytes, kind, code);
}

bool in_shared(const void* p, size_t bytes) {
    auto at = static_cast<const char*>(p);
    return (at >= launch->dynamic.data && at + bytes <= launch->dynamic.data_end) ||
           (at >= launch->module->shared && at + bytes <= launch->module->shared_end);
}

// ------------------------------------------------------------------------------------------------------------ fibres

// Let the others run, until `state` is READY again.
void yield() {
    if (!_setjmp(fibres[current]->place)) _longjmp(scheduler, 1);
}

void fibre_main() {
    for (;;) {
        launch->kernel(launch->arguments);
        fibres[current]->state = DONE;
        yield();
    }
}

// Run a thread until it waits. The first time on a stack of its own by ucontext, which is slow; then by longjmp.
void resume(int thread) {
    Fibre& fibre = *fibres[thread];
    current = thread;
    stack = fibre.stack;
    thread_index = fibre.index;
    if (_setjmp(scheduler)) return;
    if (fibre.started) _longjmp(fibre.place, 1);
    fibre.started = true;
    getcontext(&fibre.start);
    fibre.start.uc_stack.ss_sp = fibre.stack;
    fibre.start.uc_stack.ss_size = STACK;
    fibre.start.uc_link = nullptr;
    makecontext(&fibre.start, fibre_main, 0);
    setcontext(&fibre.start);
}

Fibre* new_fibre() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, FENCE + STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) fail(nullptr, 0, "no memory for the stacks of the threads");
    mprotect(memory, FENCE, PROT_NONE);  // stacks grow down
    auto* fibre = new Fibre;
    fibre->stack = static_cast<char*>(memory) + FENCE;
    return fibre;
}

void fail_in_deadlock() {
    // One thread of every kind of waiting, and how many are like it.
    char text[1500];
    size_t used = 0;
    auto left = std::count_if(fibres.begin(), fibres.begin() + threads, [](Fibre* f) { return f->state == DONE; });
    if (left) used += snprintf(text, sizeof text, " %d have left the kernel;", static_cast<int>(left));
    std::vector<bool> told(threads);
    for (int k = 0; k < threads && used < 1200; k++) {
        Fibre& a = *fibres[k];
        if (a.state == DONE || told[k]) continue;
        int alike = 0;
        for (int j = k; j < threads; j++) {
            Fibre& b = *fibres[j];
            if (b.state == a.state && b.name == a.name && b.line == a.line && b.mask == a.mask) told[j] = true, alike++;
        }
        used += snprintf(text + used, sizeof text - used, " %d wait in %s (%s:%d", alike, a.name, a.file, a.line);
        if (a.mask) used += snprintf(text + used, sizeof text - used, ", mask %#x", a.mask);
        Index i = a.index;
        used += snprintf(text + used, sizeof text - used, "), the first is (%u, %u, %u);", i.x, i.y, i.z);
    }
    current = NOBODY;
    text[used - 1] = 0;
    fail(nullptr, 0, "threads wait for one another: of %d,%s", threads, text);
}

void run_block(uint64_t& random) {
    const Module& module = *launch->module;
    const Region& dynamic = launch->dynamic;
    memset(module.shared, POISON, module.shared_end - module.shared);
    memset(dynamic.data, POISON, dynamic.data_end - dynamic.data);
    waiting = 0;
    barriers++;
    for (int i = 0; i < threads; i++) {
        fibres[i]->state = READY;
        fibres[i]->copies.clear();
        fibres[i]->groups = 0;
    }
    std::vector<int> order(threads);
    for (int i = 0; i < threads; i++) order[i] = i;
    for (int left = threads; left > 0;) {
        if (launch->seed)
            for (int i = threads - 1; i > 0; i--) {
                random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                std::swap(order[i], order[random % (i + 1)]);
            }
        bool progress = false;
        for (int i : order) {
            if (fibres[i]->state != READY) continue;
            resume(i);
            progress = true;
            left -= fibres[i]->state == DONE;
        }
        if (!progress) fail_in_deadlock();
    }
    current = NOBODY;
}

// ---------------------------------------------------------------------------------------------------- warp functions

// Give `in`, wait for all lanes in `mask` to call the same function. Then `exchange` runs once, on what they gave, and
// writes what each of them gets, `out`.
template <class In, class Out, class Exchange>
void together(const char* name, unsigned mask, const In& in, Out& out, const char* file, int line, Exchange exchange) {
    Fibre& me = *fibres[current];
    int first = current / 32 * 32;
    if (!(mask >> current % 32 & 1))
        fail(file, line, "%s: the mask %#x leaves out lane %d, which calls it", name, mask, current % 32);
    me.state = IN_WARP_FUNCTION;
    me.name = name;
    me.file = file;
    me.line = line;
    me.mask = mask;
    me.in = &in;
    me.out = &out;
    bool all = true;
    for (int i = 31; i >= 0 && all; i--) {  // in their order they come, so that the last one most often is still to come
        if (!(mask >> i & 1)) continue;
        if (first + i >= threads)
            fail(file, line, "%s: the mask %#x names lane %d, the block ends before it", name, mask, i);
        Fibre& other = *fibres[first + i];
        if (other.state == DONE)
            fail(file, line, "%s: the mask %#x names lane %d, which has left the kernel", name, mask, i);
        all = other.state == IN_WARP_FUNCTION && other.mask == mask &&
              (other.name == name || !strcmp(other.name, name));
    }
    if (all) {
        const In* ins[32] = {};
        Out* outs[32] = {};
        for (int i = 0; i < 32; i++) {
            if (!(mask >> i & 1)) continue;
            ins[i] = static_cast<const In*>(fibres[first + i]->in);
            outs[i] = static_cast<Out*>(fibres[first + i]->out);
            fibres[first + i]->state = READY;
        }
        exchange(ins, outs);
    }
    yield();  // the last one, too: who goes first is the scheduler's choice
}

constexpr unsigned WARP = 0xffffffffu;

struct Shuffled {
    unsigned long long bits;
    int from;
};

struct Registers {
    unsigned at[4];
};

struct Operands {
    float d[4];
    unsigned a[4], b[2];
};

struct Accumulators {
    float d[4];
};

void perform(const Copy& copy) {
    if (copy.valid)
        memcpy(copy.to, copy.from, copy.bytes);
    else
        memset(copy.to, 0, copy.bytes);
}

half element(unsigned pair, int high) { return {static_cast<unsigned short>(high ? pair >> 16 : pair)}; }

}  // namespace

int lane() { return current % 32; }

unsigned char* dynamic_shared() { return reinterpret_cast<unsigned char*>(launch->dynamic.data); }

void block_barrier(const char* file, int line) {
    Fibre& me = *fibres[current];
    me.state = AT_BARRIER;
    me.name = "__syncthreads";
    me.file = file;
    me.line = line;
    me.mask = 0;
    if (++waiting == threads) {
        for (int i = 0; i < threads; i++) {
            Fibre& other = *fibres[i];
            if (other.line != line || strcmp(other.file, file))
                fail(file, line, "__syncthreads, while thread (%u, %u, %u) waits in that of %s:%d", other.index.x,
                     other.index.y, other.index.z, other.file, other.line);
            other.state = READY;
        }
        waiting = 0;
        barriers++;
    }
    yield();
}

void warp_barrier(unsigned mask, const char* file, int line) {
    int warp = current / 32, nothing = 0;
    together("__syncwarp", mask, nothing, nothing, file, line, [&](auto&, auto&) { syncs[warp]++; });
}

unsigned ballot(const char* name, unsigned mask, bool yes, const char* file, int line) {
    unsigned result;
    together(name, mask, yes, result, file, line, [&](auto& in, auto& out) {
        unsigned all = 0;
        for (int i = 0; i < 32; i++) all |= static_cast<unsigned>(in[i] && *in[i]) << i;
        for (int i = 0; i < 32; i++)
            if (out[i]) *out[i] = all;
    });
    return result;
}

unsigned long long shuffle(const char* name, unsigned mask, unsigned long long bits, int from, const char* file,
                           int line) {
    unsigned long long result;
    together(name, mask, Shuffled{bits, from}, result, file, line, [&](auto& in, auto& out) {
        for (int i = 0; i < 32; i++) {
            if (!in[i]) continue;
            int from = in[i]->from;
            if (!(mask >> from & 1))
                fail(file, line, "%s: lane %d reads lane %d, which the mask %#x leaves out", name, i, from, mask);
            *out[i] = in[from]->bits;
        }
    });
    return result;
}

void check_aligned(const char* name, const void* p, unsigned bytes, const char* file, int line) {
    report.address = const_cast<void*>(p);
    if (reinterpret_cast<size_t>(p) % bytes)
        fail(file, line, "%s: the address %p is not a multiple of %u", name, p, bytes);
    report.address = nullptr;
}

void load_matrices(unsigned* to, const void* row, bool transposed, const char* file, int line) {
    const char* name = transposed ? "ldmatrix_x4_trans" : "ldmatrix_x4";
    check_aligned(name, row, 16, file, line);
    if (!in_shared(row, 16)) fail(file, line, "%s: the address %p is not in shared memory", name, row);
    access(row, 16, READ, __builtin_return_address(0));
    together(name, WARP, row, *reinterpret_cast<Registers*>(to), file, line, [&](auto& in, auto& out) {
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                auto at = [&](int r, int c) -> unsigned { return static_cast<const half*>(*in[8 * i + r])[c].bits; };
                int r = lane / 4, c = 2 * (lane % 4);
                out[lane]->at[i] = transposed ? at(c, r) | at(c + 1, r) << 16 : at(r, c) | at(r, c + 1) << 16;
            }
    });
}

void multiply(float* d, const unsigned* a, unsigned b0, unsigned b1, const char* file, int line) {
    Operands operands{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    together("mma_16816", WARP, operands, *reinterpret_cast<Accumulators*>(d), file, line, [&](auto& in, auto& out) {
        double a[16][16], b[8][16];  // products are exact, and as good as exact their sums
        for (int lane = 0; lane < 32; lane++) {
            int g = lane / 4, t = lane % 4;
            for (int j = 0; j < 2; j++) {
                for (int i = 0; i < 4; i++) a[g + i % 2 * 8][2 * t + i / 2 * 8 + j] = widen(element(in[lane]->a[i], j));
                for (int i = 0; i < 2; i++) b[g][2 * t + i * 8 + j] = widen(element(in[lane]->b[i], j));
            }
        }
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
                double sum = in[lane]->d[i];
                for (int k = 0; k < 16; k++) sum += a[row][k] * b[column][k];
                out[lane]->d[i] = static_cast<float>(sum);
            }
    });
}

void atomic_access(void* p, unsigned bytes) { access(p, bytes, ATOMICALLY, __builtin_return_address(0)); }

void copy_async(void* to, const void* from, unsigned bytes, bool valid, const char* file, int line) {
    Fibre& me = *fibres[current];
    check_aligned("cp_async", to, bytes, file, line);
    check_aligned("cp_async", from, bytes, file, line);
    if (!in_shared(to, bytes)) fail(file, line, "cp_async: the address %p is not in shared memory", to);
    if (valid && in_shared(from, bytes)) fail(file, line, "cp_async: the address %p is not in global memory", from);
    access(to, bytes, WRITE, __builtin_return_address(0));
    if (valid) access(from, bytes, READ, __builtin_return_address(0));
    me.copies.push_back({to, from, bytes, valid, me.groups});
    if (launch->seed) perform(me.copies.back());
}

void commit_copies() { fibres[current]->groups++; }

// The copy writes at some time between copy_async and here: at both, nobody else may use that memory.
void wait_for_copies(int groups_left) {
    Fibre& me = *fibres[current];
    auto later = std::find_if(me.copies.begin(), me.copies.end(),
                              [&](const Copy& copy) { return copy.group >= me.groups - groups_left; });
    for (auto copy = me.copies.begin(); copy < later; copy++) {
        access(copy->to, copy->bytes, WRITE, __builtin_return_address(0));
        if (!launch->seed) perform(*copy);
    }
    me.copies.erase(me.copies.begin(), later);
}

}  // namespace cuda_on_cpu

using namespace cuda_on_cpu;

// --------------------------------------------------------------------------------------------------------- launching

namespace {

void on_signal(int signal, siginfo_t* info, void*) {
    if (!running) return;
    if (signal == SIGSEGV || signal == SIGBUS) {
        fail_at(last_stray, info->si_addr, "uses memory that is not its own");
    }
    if (signal == SIGVTALRM) fail(nullptr, 0, "does not end: given up after %d s", launch->seconds);
    fail(nullptr, 0, "signal %d (%s)", signal, strsignal(signal));
}

void run_all() {
    const Module& module = *launch->module;
    static_uses.resize(std::max<size_t>(static_uses.size(), module.shared_end - module.shared));
    dynamic_uses.resize(std::max<size_t>(dynamic_uses.size(), launch->dynamic.data_end - launch->dynamic.data));
    is_guard.assign(module.shared_end - module.shared, false);
    for (const Guard* guard = module.guards; guard < module.guards_end; guard++)
        std::fill_n(is_guard.begin() + (guard->at - module.shared), guard->bytes, true);
    last_region = &nowhere;
    last_stray = nullptr;
    grid_size = launch->grid;
    block_size = launch->block;
    threads = block_size.x * block_size.y * block_size.z;
    while (static_cast<int>(fibres.size()) < threads) fibres.push_back(new_fibre());
    for (unsigned i = 0; i < static_cast<unsigned>(threads); i++)
        fibres[i]->index = {i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y};
    uint64_t random = launch->seed, blocks = uint64_t{grid_size.x} * grid_size.y * grid_size.z;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t at = launch->seed ? blocks - 1 - i : i, row = at / grid_size.x;
        block_index = {static_cast<unsigned>(at % grid_size.x), static_cast<unsigned>(row % grid_size.y),
                       static_cast<unsigned>(row / grid_size.y)};
        run_block(random);
    }
}

}  // namespace

// nullptr, or the error that ended the run.
extern "C" const Report* cuda_on_cpu_run(const Launch* what) {
    static char signal_stack[64 * 1024];  // of its own: a fibre may have overrun its stack
    constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGVTALRM}, COUNT = std::size(SIGNALS);
    struct sigaction ours = {}, before[COUNT];
    stack_t stack = {}, stack_before;
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&stack, &stack_before);
    for (int i = 0; i < COUNT; i++) sigaction(SIGNALS[i], &ours, &before[i]);
    itimerval limit = {{0, 0}, {what->seconds, 0}}, none = {};
    setitimer(ITIMER_VIRTUAL, &limit, nullptr);

    launch = what;
    report = {};
    current = NOBODY;
    running = 1;
    Flush flush;
    bool failed = sigsetjmp(failure, 1);
    if (!failed)
        run_all();
    else
        for (Fibre* fibre : fibres) fibre->started = false;  // they hang somewhere in the kernel
    running = 0;

    setitimer(ITIMER_VIRTUAL, &none, nullptr);
    for (int i = 0; i < COUNT; i++) sigaction(SIGNALS[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
    return failed ? &report : nullptr;
}

// ------------------------------------------------------------------------------------------------ called by compilers

// -fsanitize=thread: before every access to memory.
#define ACCESS(name, bytes, kind) \
    extern "C" void name(void* p) { access(p, bytes, kind, __builtin_return_address(0)); }
#define ACCESSES(bytes)                                 \
    ACCESS(__tsan_read##bytes, bytes, READ)             \
    ACCESS(__tsan_write##bytes, bytes, WRITE)           \
    ACCESS(__tsan_unaligned_read##bytes, bytes, READ)   \
    ACCESS(__tsan_unaligned_write##bytes, bytes, WRITE) \
    ACCESS(__tsan_volatile_read##bytes, bytes, READ)    \
    ACCESS(__tsan_volatile_write##bytes, bytes, WRITE)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

extern "C" void __tsan_read_range(void* p, size_t bytes) { access(p, bytes, READ, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void* p, size_t bytes) { access(p, bytes, WRITE, __builtin_return_address(0)); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}

// -fsanitize=undefined: after a check failed. All their data begin with the place in the source.
struct Place {
    const char* file;
    uint32_t line, column;
};
#define UNDEFINED(name, message) \
    extern "C" void __ubsan_handle_##name##_abort(const Place* place) { fail(place->file, place->line, message); }
UNDEFINED(out_of_bounds, "an index is outside of its array")
UNDEFINED(type_mismatch_v1, "the address is null, or not a multiple of what its type asks for")
UNDEFINED(shift_out_of_bounds, "shifts by more bits than there are")
UNDEFINED(add_overflow, "integer overflow in +")
UNDEFINED(sub_overflow, "integer overflow in -")
UNDEFINED(mul_overflow, "integer overflow in *")
UNDEFINED(negate_overflow, "integer overflow in -")
UNDEFINED(divrem_overflow, "integer division by zero, or overflow in it")
