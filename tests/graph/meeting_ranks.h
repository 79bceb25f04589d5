// Ranks of one job, each a world and a thread of its own, that meet to exchange bytes. Nothing of them can be replayed.
#ifndef REPRISE_TESTS_GRAPH_MEETING_RANKS_H_
#define REPRISE_TESTS_GRAPH_MEETING_RANKS_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "reprise/graph/host_world.h"
#include "tests/graph/forwarding_world.h"

namespace reprise::testing {

class Meeting {
 public:
  explicit Meeting(int size) : bytes_(size) {}

  std::vector<std::string> Exchange(int rank, std::string mine) {
    std::unique_lock lock(mutex_);
    const int round = round_;
    if (rank == 0) {
      sent_ += mine.size();
      ++exchanges_;
    }
    bytes_[rank] = std::move(mine);
    if (++here_ == static_cast<int>(bytes_.size())) {
      all_ = bytes_;
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ != round; });
    return all_;  // of this round: the next one needs this rank too
  }
  // By rank 0.
  size_t sent() const { return sent_; }
  int exchanges() const { return exchanges_; }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<std::string> bytes_, all_;
  int here_ = 0, round_ = 0, exchanges_ = 0;
  size_t sent_ = 0;
};

class MeetingRank : public ForwardingWorld {
 public:
  MeetingRank(int rank, int size, Meeting& meeting)
      : ForwardingWorld(*CreateHostWorld({.size = 1})), ranks_{rank}, size_(size), meeting_(meeting) {}
  int size() const override { return size_; }
  absl::Span<const int> local_ranks() const override { return ranks_; }
  absl::StatusOr<std::vector<std::string>> ExchangeBytes(absl::string_view,
                                                         absl::Span<const std::string> mine) override {
    return meeting_.Exchange(ranks_[0], mine.front());
  }

 private:
  const std::vector<int> ranks_;
  const int size_;
  Meeting& meeting_;
};

// What `run` returns on each rank. The ranks must make the same exchanges.
inline std::vector<absl::Status> OnRanks(
    Meeting& meeting, int size,
    const std::function<absl::Status(int rank, const std::shared_ptr<internal::Machine>& world)>& run) {
  std::vector<absl::Status> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { results[rank] = run(rank, std::make_shared<MeetingRank>(rank, size, meeting)); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_MEETING_RANKS_H_
