#include "thread_pool.h"

#include <algorithm>
#include <chrono>

namespace batchgen {
namespace {

constexpr uint64_t kPieces = 0xffffffffu;
constexpr std::chrono::microseconds kSpin{50};
constexpr int kSpinsPerClock = 64;  // pauses between two looks at the clock

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins until ready() or until kSpin has passed; returns ready().
template <typename Ready>
bool spin_until(const Ready& ready) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < kSpinsPerClock; ++i) {
            if (ready()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const Loop& loop) {
    if (loop.count <= 0) return;
    const int pieces = (loop.count + loop.grain - 1) / loop.grain;
    if (pieces == 1 || workers_.empty()) {
        for (int begin = 0; begin < loop.count; begin += loop.grain)
            loop.call(loop.context, 0, begin, std::min(begin + loop.grain, loop.count));
        return;
    }
    loop_ = loop;
    unfinished_.store(pieces, std::memory_order_relaxed);
    const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(number << 32 | static_cast<uint64_t>(pieces));
    // Sequentially consistent with the sleeper's own order (announce, then look at the ticket): one sees the other.
    if (sleepers_.load() > 0) {
        { const std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    while (run_piece(0)) {
    }
    wait_for_pieces();
}

void ThreadPool::wait_for_pieces() {
    const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
    // A worker that lost its core needs one more than it needs our spinning.
    while (!spin_until(finished)) std::this_thread::yield();
}

bool ThreadPool::run_piece(int worker) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
        if ((ticket & kPieces) == 0) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel));
    const Loop loop = loop_;
    // Ascending, so that neighbours in time are neighbours in memory.
    const int pieces = (loop.count + loop.grain - 1) / loop.grain;
    const int begin = (pieces - static_cast<int>(ticket & kPieces)) * loop.grain;
    loop.call(loop.context, worker, begin, std::min(begin + loop.grain, loop.count));
    unfinished_.fetch_sub(1, std::memory_order_release);
    return true;
}

void ThreadPool::work(int worker) {
    const auto called = [this] { return (ticket_.load(std::memory_order_acquire) & kPieces) != 0 || stop_.load(); };
    while (!stop_.load()) {
        if (run_piece(worker) || spin_until(called)) continue;
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1);
        wake_.wait(lock, [this] { return (ticket_.load() & kPieces) != 0 || stop_.load(); });
        sleepers_.fetch_sub(1);
    }
}

}  // namespace batchgen
