// Keeps a second thread out of a world, and out of what is made from it, while a first one is inside a call.
#ifndef REPRISE_GRAPH_IN_USE_H_
#define REPRISE_GRAPH_IN_USE_H_

#include <atomic>
#include <cstdint>
#include <thread>

#include "absl/status/status.h"
#include "graph/machine.h"

namespace reprise::internal {

// Who leaves and then enters comes after the one who left: what they did is seen.
class InUse {
 public:
  // False, and nothing is entered, while another thread is inside. Each true needs a Leave.
  bool Enter(const char* call) {
    const std::thread::id me = std::this_thread::get_id();
    if (thread_.load(std::memory_order_relaxed) == me) {  // nobody else stores it
      ++depth_;
      return true;
    }
    std::thread::id nobody;
    if (!thread_.compare_exchange_strong(nobody, me, std::memory_order_acquire, std::memory_order_relaxed))
      return false;
    call_.store(call, std::memory_order_relaxed);
    depth_ = 1;
    return true;
  }
  void Leave() {
    if (--depth_ == 0) thread_.store(std::thread::id(), std::memory_order_release);
  }
  // A number for what is made from the world: the same on all ranks that make the same things in the same order.
  int64_t NextNumber() { return ++numbered_; }
  // FailedPrecondition for `call`, which names the one that another thread is inside.
  absl::Status Refuse(const char* call) const;

 private:
  std::atomic<std::thread::id> thread_ = std::thread::id();
  std::atomic<const char*> call_ = nullptr;  // the outermost
  int64_t numbered_ = 0;
  int depth_ = 0;  // of the thread's calls
};

// Inside a call of a world, or of something that is made from it. Calls of one thread may nest.
class Entry {
 public:
  Entry(const World& world, const char* call)
      : in_use_(MachineOf(world).in_use()), call_(call), entered_(in_use_.Enter(call)) {}
  ~Entry() {
    if (entered_) in_use_.Leave();
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  bool ok() const { return entered_; }
  absl::Status status() const { return entered_ ? absl::OkStatus() : in_use_.Refuse(call_); }

 private:
  InUse& in_use_;
  const char* const call_;
  const bool entered_;
};

}  // namespace reprise::internal

// The first line of a function that returns a status or a StatusOr; the function is left if another thread is inside.
#define REPRISE_ENTER(world, call)                             \
  const ::reprise::internal::Entry reprise_entry(world, call); \
  if (!reprise_entry.ok()) return reprise_entry.status()

#endif  // REPRISE_GRAPH_IN_USE_H_
