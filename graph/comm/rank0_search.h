// Looks at all places where rank 0 may be at once, so that strangers who hold one up hold up no other.
#ifndef REPRISE_GRAPH_COMM_RANK0_SEARCH_H_
#define REPRISE_GRAPH_COMM_RANK0_SEARCH_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/comm/channel.h"
#include "graph/comm/deadline.h"
#include "graph/comm/handshake.h"
#include "graph/comm/socket.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::internal {

// A place where rank 0 may be.
struct Place {
  Address address;
  Nonce nonce;
};

class Rank0Search {
 public:
  // As a rank of `launch`'s job, which must outlive this.
  explicit Rank0Search(const LaunchEnvironment& launch) : launch_(launch) {}

  // Those of earlier places that stay are not asked anew.
  void SetPlaces(const std::vector<Place>& places);
  bool empty() const { return probes_.empty(); }

  // A connection to rank 0 once it answered with its greeting, and heard a whole hello; nothing by the deadline.
  // FailedPrecondition if rank 0 is of another version.
  absl::StatusOr<std::optional<Channel>> Run(const Deadline& deadline);

  // Nobody listens at any place, or a stranger.
  bool hopeless() const;
  // What was found instead: "127.0.0.1:29501 did not answer". A stranger says more than nobody.
  std::string Found() const;

 private:
  struct Probe {
    Place place;
    FileDescriptor socket = {};  // while somebody is asked
    bool connected = false;
    std::string received = {};
    Deadline until = Deadline(absl::ZeroDuration());  // patience with who is asked, or the next attempt
    absl::Duration pause = absl::ZeroDuration();
    std::string failure = {};  // of the last attempt
    bool stranger = false;     // somebody was there, but not rank 0
  };

  void Ask(Probe& probe);
  // A channel if the probe found rank 0.
  absl::StatusOr<std::optional<Channel>> Hear(Probe& probe, short events);
  void GiveUp(Probe& probe, bool stranger, const std::string& failure);

  const LaunchEnvironment& launch_;
  std::vector<Probe> probes_;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_RANK0_SEARCH_H_
