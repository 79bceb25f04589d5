// The program's own connections between ranks that are threads of one process: through memory.
#ifndef REPRISE_TESTS_GRAPH_MEMORY_NETWORK_H_
#define REPRISE_TESTS_GRAPH_MEMORY_NETWORK_H_

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "reprise/graph/connection.h"

namespace reprise::testing {

// kAtOnce: all bytes are there as soon as they are sent. kSlowly: they are cut at random, few are under way at a time,
// and each piece takes a time of its own, drawn from a seed: what two ranks send to a third comes in another order than
// they sent it.
enum class Delivery { kAtOnce, kSlowly };

class MemoryNetwork {
 public:
  // Of one rank. The n-th connection that it makes to another one meets the n-th of that one to it.
  Connect ConnectOf(int rank, Delivery delivery) {
    return [this, rank, delivery,
            made = std::map<int, int>()](int to) mutable -> absl::StatusOr<std::unique_ptr<Connection>> {
      const int number = made[to]++;
      const std::lock_guard lock(mutex_);
      return std::make_unique<End>(PipeOf(rank, to, number), PipeOf(to, rank, number), delivery,
                                   static_cast<unsigned>(1000 * rank + to));
    };
  }

 private:
  static constexpr size_t kRoom = size_t{1} << 18;

  // One direction.
  struct Pipe {
    std::mutex mutex;
    std::deque<std::pair<absl::Time, std::string>> pieces;  // with when they are there
    size_t num_bytes = 0;
    bool no_more = false, unread = false;  // the sender, or the receiver, is gone
  };

  class End : public Connection {
   public:
    End(std::shared_ptr<Pipe> to, std::shared_ptr<Pipe> from, Delivery delivery, unsigned seed)
        : to_(std::move(to)), from_(std::move(from)), slow_(delivery == Delivery::kSlowly), random_(seed) {}
    ~End() override {
      const std::scoped_lock lock(to_->mutex, from_->mutex);
      to_->no_more = from_->unread = true;
    }

    absl::StatusOr<size_t> Send(absl::string_view bytes) override {
      const std::lock_guard lock(to_->mutex);
      if (to_->unread) return absl::UnavailableError("lost its connection");
      size_t taken = bytes.size();
      if (slow_) taken = std::min({taken, kRoom - to_->num_bytes, Draw(16) == 0 ? size_t{3} : kRoom / 2});
      if (taken == 0 || (slow_ && Draw(8) == 0)) return 0;
      const absl::Duration delay = absl::Microseconds(slow_ ? Draw(64) == 0 ? 5000 : Draw(300) : 0);
      to_->pieces.emplace_back(absl::Now() + delay, std::string(bytes.substr(0, taken)));
      to_->num_bytes += taken;
      return taken;
    }
    absl::Status Receive(std::string& received) override {
      const std::lock_guard lock(from_->mutex);
      if (from_->pieces.empty()) {
        return from_->no_more ? absl::UnavailableError("closed its connection") : absl::OkStatus();
      }
      auto& [there_at, piece] = from_->pieces.front();
      if (there_at > absl::Now()) return absl::OkStatus();
      const size_t taken = slow_ ? 1 + Draw(piece.size()) : piece.size();
      received.append(piece, 0, taken);
      piece.erase(0, taken);
      from_->num_bytes -= taken;
      if (piece.empty()) from_->pieces.pop_front();
      return absl::OkStatus();
    }

   private:
    size_t Draw(size_t below) { return random_() % below; }

    const std::shared_ptr<Pipe> to_, from_;
    const bool slow_;
    std::minstd_rand random_;
  };

  std::shared_ptr<Pipe>& PipeOf(int from, int to, int number) {
    std::shared_ptr<Pipe>& pipe = pipes_[{from, to, number}];
    if (pipe == nullptr) pipe = std::make_shared<Pipe>();
    return pipe;
  }

  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::shared_ptr<Pipe>> pipes_;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_MEMORY_NETWORK_H_
