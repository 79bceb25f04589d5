// How the ranks of a job meet and agree: connections between rank 0 and each other rank that stay open. NCCL has
// neither a deadline nor a reason where a rank is missing or differs, so that everything which can go wrong is settled
// here first.
#ifndef REPRISE_GRAPH_COMM_BOOTSTRAP_H_
#define REPRISE_GRAPH_COMM_BOOTSTRAP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "graph/comm/channel.h"
#include "graph/comm/collective_call.h"
#include "graph/comm/deadline.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::testing {
class ExchangeInHalves;
}

namespace reprise::internal {

// Threads: one at a time. Whoever can reach the port and knows the job's name can take part: it is for networks that
// trust their users, as NCCL is.
class Bootstrap {
 public:
  // Collective: returns once all ranks are connected, on every rank. A job of one rank needs no network. Every rank
  // gets an error, with a reason where it can be told: InvalidArgument if `launch` makes no sense; DeadlineExceeded if
  // ranks are missing or rank 0 cannot be found; FailedPrecondition if ranks contradict each other; Unavailable if no
  // port is free or rank 0 died. No rank waits longer than `deadline` and as long again, 5 seconds at most: ranks that
  // do not hear rank 0's verdict at once wait for it, and rank 0 waits for those that come after it. With the program's
  // own connections: what they fail with, and what an exchange does.
  static absl::StatusOr<std::unique_ptr<Bootstrap>> Connect(const LaunchEnvironment& launch, absl::Duration deadline);

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Of every exchange from now on: `deadline` of Connect at first.
  void set_deadline(absl::Duration deadline) { deadline_ = deadline; }
  // More than that from one rank is refused: 16 GiB at first, the same on all ranks. Memory grows with what comes.
  void set_max_bytes(uint64_t max_bytes) { max_bytes_ = max_bytes; }

  // ---- collective calls ----
  // Each names itself, and is compared with those of the other ranks, as are the launches before it. Ranks that differ
  // all get the same FailedPrecondition, which names what each of them does; this call is then over on all of them, so
  // that later ones are in order. Only if they launched different things every later call repeats that error: what some
  // ranks launched alone waits on their devices for partners.
  //
  // Other errors: DeadlineExceeded names the ranks that did not answer; Unavailable the one whose connection closed;
  // ResourceExhausted the one that gave too many bytes; Internal the one that sent a message of a kind that does not
  // belong. All ranks that can be reached get the same error, if not in this call then in the next, and so does every
  // later call.

  // Gives `mine`, gets what all ranks gave, by rank.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view what, const std::string& mine);
  // OK if `mine` is OK and `values` are equal on all ranks; a rank whose own status is an error gets that.
  absl::Status AgreeOn(absl::string_view what, const absl::Status& mine, absl::Span<const AgreedValue> values);
  // The same without waiting for other ranks: Announced(ticket) waits, and returns what AgreeOn would. Every later
  // collective call comes after it, and waits for it too.
  absl::StatusOr<int64_t> Announce(absl::string_view what, const absl::Status& mine,
                                   absl::Span<const AgreedValue> values);
  absl::Status Announced(int64_t ticket);
  // Takes what came and passes on what can be; does not wait for other ranks. The error of Announced(ticket) if it is
  // known already, and that ranks do not launch the same for it.
  absl::Status Progress(int64_t ticket);
  // Not an exchange: a launch that all ranks make. `key` is the same on all of them, and differs from those of others.
  absl::Status NoteLaunch(uint64_t key, absl::string_view what);
  // Collective calls that are over, the same on all ranks.
  int64_t num_exchanges() const { return num_exchanges_; }

  // Tells the others now, and not in the next exchange, that this rank failed: their devices may be waiting for it.
  void TellFailure(const absl::Status& status);
  // The same of a rank that made its device's collectives leave: those of the others never end, now or later.
  void TellBroken(const absl::Status& status);
  // For a rank that waits for its device. Does not wait unless ranks differ for certain: if another one waits in a
  // collective call for this rank, which has launched more than that one had, this rank answers with what it does
  // instead. FailedPrecondition, in that rank's words, if one, this one too, told of a failure since the last exchange,
  // or ever that it broke, or what ranks that differ get; Unavailable if a connection closed; the error of a call that
  // failed.
  absl::Status CheckPeers();
  // For a rank that ends: the same, and also an error if the last call found ranks that make different ones. Ranks that
  // made the same calls all know of the same.
  absl::Status CheckTogether();
  // The first error of a rank that broke, this one or another, as far as was heard.
  const absl::Status& broken() const { return broken_; }

 private:
  friend class testing::ExchangeInHalves;
  Bootstrap(const LaunchEnvironment& launch, absl::Duration deadline, std::vector<Channel> peers)
      : rank_(launch.rank), size_(launch.size), deadline_(deadline), peers_(std::move(peers)), early_(peers_.size()) {}

  // A collective call of this rank that is not over.
  struct Call {
    std::string what;
    std::shared_ptr<const std::string> part = {};
    bool announces = false;  // values
    bool waits = true;       // at once, and not in Announced
    absl::Status mine = {};  // with values
    std::vector<AgreedValue> values = {};
    uint64_t launches = 0;                              // before it
    size_t num_bytes = 0;                               // of the part, without its header
    bool is_queued = false;                             // on its way to rank 0
    Deadline ask = Deadline(absl::InfiniteDuration());  // on rank 0: when to ask ranks that are missing
    std::optional<uint64_t> asked = {};                 // with so many launches, the fewest of all parts
  };

  // The error of all later calls, if there is one.
  absl::Status Usable() const { return error_.ok() ? differ_ : error_; }
  // Ends the call before it, then begins this one.
  absl::Status Start(Call call, absl::string_view bytes);
  // Goes on with the call as far as that is possible now. True if there is none left; its error if it is over with one.
  absl::StatusOr<bool> Look();
  absl::Status Wait();
  // True if the parts of all are there: in parts_, or not if all are equal.
  absl::StatusOr<bool> LookAtAll();    // on rank 0, which sends them
  absl::StatusOr<bool> LookAtRank0();  // on the others
  void Ask();
  absl::Status SendToAll(MessageKind kind, std::shared_ptr<const std::string> payload);
  absl::StatusOr<bool> Finish();
  // What the ranks' parts come to.
  absl::Status Judge(const Call& call, bool& same_launches);
  absl::Status TimeOut() const;
  absl::Status Fail(const absl::Status& status);

  // Reads what came from a peer up to the next part of an exchange, which goes to early_. Remembers, and on rank 0
  // passes on, what is told of a failure.
  absl::Status Pull(int peer);
  absl::Status Take(int peer, Message message);
  // Whether another rank waits for this one in vain.
  bool IsMissed() const;
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
  std::vector<std::optional<Message>> early_;  // by peer: its part, or rank 0's answer, of the next or current call
  std::optional<Call> call_;
  std::vector<std::string> parts_;  // of the last call that is over, by rank
  absl::Status unsent_;             // why rank 0 could not send them to all
  std::optional<uint64_t> asked_;   // by rank 0 for this rank's part, which comes after that many launches
  Launches launches_;
  int64_t num_exchanges_ = 0, tickets_ = 0;
  int64_t open_ticket_ = -1;  // of call_
  struct Refused {
    absl::Status status;
    bool same_launches = true;  // all the same
  };
  std::map<int64_t, Refused> refused_;  // announcements, by ticket
  absl::Status error_;                  // the first of a call
  absl::Status differ_;                 // ranks launched different things
  absl::Status told_;                   // of a failure, since the last exchange
  absl::Status apart_;                  // of ranks that made different calls, since the last exchange
  absl::Status broken_;                 // the first that was told or heard
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_BOOTSTRAP_H_
