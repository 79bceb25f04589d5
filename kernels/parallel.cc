#include "kernels/parallel.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace reprise::kernels {
namespace {

constexpr int kMaxThreads = 16;

// One ParallelFor. Lives on its caller's stack: the caller leaves only when no worker is using it.
struct Region {
  absl::FunctionRef<void(int64_t)> body;
  const int64_t count;
  int more_threads = 0;  // that may join; this and `workers` are guarded by Pool::mutex_
  std::atomic<int64_t> next = 0;
  int workers = 0;
};

thread_local bool inside_region = false;
thread_local int thread_limit = 0;

void RunCalls(Region& region) {
  inside_region = true;
  for (int64_t i = region.next.fetch_add(1); i < region.count; i = region.next.fetch_add(1)) region.body(i);
  inside_region = false;
}

class Pool {
 public:
  Pool() {
    const int threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
    try {
      for (int i = 1; i < threads; ++i) std::thread([this] { Work(); }).detach();
    } catch (const std::exception&) {
      // The process may have no more threads: those that there are do the work.
    }
  }

  // False, with nothing run, if another thread has the pool.
  bool TryRun(Region& region) {
    {
      std::lock_guard lock(mutex_);
      if (region_ != nullptr) return false;
      region_ = &region;
      ++generation_;
    }
    wake_.notify_all();
    RunCalls(region);
    std::unique_lock lock(mutex_);
    // No worker joins from here on; in a forked child, which has no workers, none ever did.
    open_ = false;
    done_.wait(lock, [&] { return region.workers == 0; });
    region_ = nullptr;
    open_ = true;
    return true;
  }

 private:
  void Work() {
    int64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return region_ != nullptr && open_ && generation_ != seen && region_->more_threads > 0; });
      seen = generation_;
      Region& region = *region_;
      ++region.workers;
      --region.more_threads;
      lock.unlock();
      RunCalls(region);
      lock.lock();
      if (--region.workers == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Region* region_ = nullptr;
  bool open_ = true;
  int64_t generation_ = 0;
};

}  // namespace

ThreadLimit::ThreadLimit(int threads) : outer_(std::exchange(thread_limit, threads)) {}
ThreadLimit::~ThreadLimit() { thread_limit = outer_; }
int ThreadLimit::Current() { return thread_limit; }

void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t)> body) {
  if (count > 1 && !inside_region && thread_limit != 1) {
    static Pool& pool = *new Pool;  // never destroyed: its threads may outlive every static object
    Region region{body, count, thread_limit == 0 ? kMaxThreads : thread_limit - 1};
    if (pool.TryRun(region)) return;
  }
  for (int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace reprise::kernels
