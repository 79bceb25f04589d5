// How the ranks of a job meet and agree: connections between rank 0 and each other rank that stay open. NCCL has
// neither a deadline nor a reason where a rank is missing or differs, so that everything which can go wrong is settled
// here first.
#ifndef REPRISE_GRAPH_COMM_BOOTSTRAP_H_
#define REPRISE_GRAPH_COMM_BOOTSTRAP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "graph/comm/channel.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::internal {

// Threads: one at a time. Whoever can reach the port and knows the job's name can take part: it is for networks that
// trust their users, as NCCL is.
class Bootstrap {
 public:
  // Collective: returns once all ranks are connected, on every rank. A job of one rank needs no network. Every rank
  // gets an error, with a reason where it can be told: InvalidArgument if `launch` makes no sense; DeadlineExceeded if
  // ranks are missing or rank 0 cannot be found; FailedPrecondition if ranks contradict each other; Unavailable if no
  // port is free or rank 0 died. No rank waits longer than `deadline` and as long again, 5 seconds at most: ranks that
  // do not hear rank 0's verdict at once wait for it, and rank 0 waits for those that come after it.
  static absl::StatusOr<std::unique_ptr<Bootstrap>> Connect(const LaunchEnvironment& launch, absl::Duration deadline);

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Of every exchange from now on: `deadline` of Connect at first.
  void set_deadline(absl::Duration deadline) { deadline_ = deadline; }
  // More than that from one rank is refused: 16 GiB at first, the same on all ranks. Memory grows with what comes.
  void set_max_bytes(uint64_t max_bytes) { max_bytes_ = max_bytes; }

  // Collective: gives `mine`, gets what all ranks gave, by rank. Errors: DeadlineExceeded names the ranks that did not
  // answer; Unavailable the one whose connection closed; ResourceExhausted the one that gave too many bytes. All
  // ranks that can be reached get the same error, if not in this exchange then in the next, and so does every later
  // call.
  absl::StatusOr<std::vector<std::string>> Exchange(const std::string& mine);

  // Tells the others now, and not in the next exchange, that this rank failed: their devices may be waiting for it.
  void TellFailure(const absl::Status& status);
  // The same of a rank that made its device's collectives leave: those of the others never end, now or later.
  void TellBroken(const absl::Status& status);
  // Does not wait. FailedPrecondition, in that rank's words, if one told of a failure since the last exchange, or ever
  // that it broke; Unavailable if a connection closed; the error of an exchange that failed.
  absl::Status CheckPeers();
  // The first error of a rank that broke, this one or another, as far as was heard.
  const absl::Status& broken() const { return broken_; }

 private:
  Bootstrap(const LaunchEnvironment& launch, absl::Duration deadline, std::vector<Channel> peers)
      : rank_(launch.rank), size_(launch.size), deadline_(deadline), peers_(std::move(peers)), early_(peers_.size()) {}

  // On rank 0.
  absl::StatusOr<std::vector<std::string>> GatherAndSend(const std::string& mine);
  absl::Status Gather(std::vector<std::string>& parts);
  absl::Status SendToAll(const std::vector<std::string>& parts);
  // On the others.
  absl::StatusOr<std::vector<std::string>> SendAndReceive(const std::string& mine);

  // The next message of an exchange from a peer, if it has come. Remembers, and on rank 0 passes on, what is told of a
  // failure.
  absl::StatusOr<std::optional<Message>> Receive(int peer, uint64_t max_bytes);
  // As the other ranks hear of it.
  absl::Status FailureOf(const absl::Status& status) const;
  // All connections but one, and those that closed.
  std::vector<Channel*> PeersBut(int peer);
  // The largest message of an exchange that can come.
  uint64_t MaxBytes() const;

  const int rank_, size_;
  absl::Duration deadline_;
  uint64_t max_bytes_ = uint64_t{16} << 30;
  std::vector<Channel> peers_;  // on rank 0 by rank, of which its own is not open; on the others just that to rank 0
  std::vector<std::optional<Message>> early_;  // by peer: came before this rank's part in the exchange
  absl::Status error_;                         // the first of an exchange
  absl::Status told_;                          // of a failure, since the last exchange
  absl::Status broken_;                        // the first that was told or heard
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_BOOTSTRAP_H_
