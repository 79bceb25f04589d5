// A call that may block for longer than anybody wants to wait, as a name server or a network's file system may.
#ifndef REPRISE_GRAPH_COMM_BACKGROUND_H_
#define REPRISE_GRAPH_COMM_BACKGROUND_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "graph/comm/deadline.h"

namespace reprise::internal {

// Runs in a thread that is left alone if its result comes too late: what it uses, it owns.
template <typename Result>
class Background {
 public:
  explicit Background(std::function<Result()> function) : shared_(std::make_shared<Shared>()) {
    const auto run = [shared = shared_, function = std::move(function)] {
      Result result = function();
      const std::lock_guard<std::mutex> lock(shared->mutex);
      shared->result = std::move(result);
      shared->changed.notify_all();
    };
    try {
      std::thread(run).detach();
    } catch (const std::system_error&) {  // no thread left
      run();
    }
  }

  // The result, once; nothing if it is not there by then.
  std::optional<Result> Await(const Deadline& deadline) {
    constexpr absl::Duration kHour = absl::Hours(1);  // more overflows a clock
    std::unique_lock<std::mutex> lock(shared_->mutex);
    while (!shared_->result.has_value() && !deadline.passed()) {
      shared_->changed.wait_for(lock, absl::ToChronoNanoseconds(std::min(deadline.left(), kHour)));
    }
    return std::exchange(shared_->result, std::nullopt);
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result> result;
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_BACKGROUND_H_
