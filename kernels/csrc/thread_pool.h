// One pool of threads for all parallel loops of a program.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace batchgen {

// Runs loops over the caller and threads - 1 workers. One loop at a time; the caller takes part as worker 0.
// Idle workers spin for some tens of microseconds, so that the loops of one step follow each other without system
// calls, then sleep.
class ThreadPool {
  public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(worker, begin, end) for consecutive pieces of [0, count) of at most `grain` items, each item exactly
    // once, in any order, on any thread; returns when all are done. worker is in [0, size()). body must not throw.
    template <typename Body>
    void parallel_for(int count, int grain, const Body& body) {
        run({[](const void* context, int worker, int begin, int end) {
                 (*static_cast<const Body*>(context))(worker, begin, end);
             },
             &body, count, grain < 1 ? 1 : grain});
    }

  private:
    struct Loop {
        void (*call)(const void* context, int worker, int begin, int end);
        const void* context;
        int count;
        int grain;
    };

    void run(const Loop& loop);
    void work(int worker);
    bool run_piece(int worker);
    void wait_for_pieces();

    // High 32 bits: the loop's number. Low 32 bits: how many of its pieces nobody has taken yet. Whoever takes one by
    // compare-and-swap knows that the loop is still running, so only then is loop_ read.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<int> unfinished_{0};
    Loop loop_{};

    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::thread> workers_;
};

}  // namespace batchgen
