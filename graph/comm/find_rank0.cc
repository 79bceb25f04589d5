#include "graph/comm/find_rank0.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/comm/background.h"
#include "graph/comm/rank0_search.h"
#include "graph/comm/rendezvous_file.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// A file may come or change at any moment. So may the addresses of a name, but that is seldom.
constexpr absl::Duration kFirstPause = absl::Milliseconds(5), kLongestPause = absl::Milliseconds(200);
constexpr absl::Duration kNamePause = absl::Seconds(5);

absl::StatusOr<std::vector<Place>> PlacesByFile(const LaunchEnvironment& launch) {
  REPRISE_ASSIGN_OR_RETURN(const Rendezvous rendezvous, ReadRendezvous(RendezvousPath(launch)));
  std::vector<Place> places;
  for (const Address& address : Loopback(rendezvous.port)) places.push_back({address, rendezvous.nonce});
  return places;
}

absl::StatusOr<std::vector<Place>> PlacesByPort(const LaunchEnvironment& launch) {
  std::vector<Address> addresses = Loopback(launch.port);
  if (launch.local_size < launch.size) {
    REPRISE_ASSIGN_OR_RETURN(addresses, Resolve(launch.host, launch.port));
  }
  std::vector<Place> places;
  for (int port = launch.port; port < launch.port + kNumPorts && port <= 65535; ++port) {
    for (const Address& address : addresses) places.push_back({WithPort(address, port), NonceOf(launch)});
  }
  return places;
}

absl::StatusOr<std::vector<Place>> Places(const LaunchEnvironment& launch) {
  return launch.host.empty() ? PlacesByFile(launch) : PlacesByPort(launch);
}

std::string PlacesText(const LaunchEnvironment& launch) {
  if (launch.host.empty()) return absl::StrCat("by the file ", RendezvousPath(launch));
  return absl::StrCat("at ", launch.host, ", ports ", launch.port, " to ",
                      std::min(launch.port + kNumPorts - 1, 65535));
}

}  // namespace

absl::Duration GraceOf(absl::Duration deadline) { return std::min(deadline, absl::Seconds(5)); }
absl::Duration WithGrace(absl::Duration deadline) { return deadline + GraceOf(deadline); }

absl::Status AwaitBegin(Channel& rank0, const LaunchEnvironment& launch, const Deadline& deadline) {
  constexpr uint64_t kMaxReasonBytes = 1 << 20;
  while (PollOne(rank0.fd(), POLLIN, deadline)) {
    absl::StatusOr<std::optional<Message>> message = rank0.Read(kMaxReasonBytes);
    if (!message.ok()) {
      return absl::Status(message.status().code(),
                          absl::StrCat("rank 0 ", std::string(message.status().message()), " before all ", launch.size,
                                       " ranks were connected; look at its output"));
    }
    if (!message->has_value()) continue;
    if ((*message)->kind == MessageKind::kAbort) return DecodeStatus((*message)->payload);
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", launch.rank, " of ", launch.size,
                   " is connected to rank 0, which did not say in time that all are; look at its output"));
}

absl::StatusOr<Channel> FindRank0(const LaunchEnvironment& launch, absl::Duration deadline) {
  using FoundPlaces = absl::StatusOr<std::vector<Place>>;
  const Deadline found_by(deadline), begun_by(WithGrace(deadline));
  const Deadline now(absl::ZeroDuration());
  Rank0Search search(launch);
  std::unique_ptr<Background<FoundPlaces>> lookup;
  Deadline look_up_at = now;
  std::string no_places = launch.host.empty() ? "reading it takes long" : "looking up its address takes long";
  absl::Duration pause = kFirstPause;
  while (!found_by.passed()) {
    if (lookup == nullptr && look_up_at.passed()) {
      lookup = std::make_unique<Background<FoundPlaces>>([launch] { return Places(launch); });
    }
    const Deadline turn = found_by.OrAfter(pause);
    if (lookup != nullptr) {
      if (const std::optional<FoundPlaces> places = lookup->Await(search.empty() ? turn : now)) {
        lookup = nullptr;
        look_up_at = Deadline(places->ok() && !launch.host.empty() ? kNamePause : pause);
        if (places->ok()) search.SetPlaces(**places);
        no_places = std::string(places->status().message());
      }
    }
    REPRISE_ASSIGN_OR_RETURN(std::optional<Channel> rank0, search.Run(turn));
    if (rank0.has_value()) {
      REPRISE_RETURN_IF_ERROR(AwaitBegin(*rank0, launch, begun_by));
      return *std::move(rank0);
    }
    absl::SleepFor(std::max(turn.left(), absl::ZeroDuration()));
    pause = std::min(2 * pause, kLongestPause);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", launch.rank, " of ", launch.size, " did not find rank 0 ", PlacesText(launch), " within ",
                   absl::FormatDuration(deadline), " (", search.empty() ? no_places : search.Found(),
                   "); check that rank 0 runs there with the same job and that the ports are open, or set REPRISE_HOST "
                   "and REPRISE_PORT on all ranks; if rank 0 met all ranks before this process came, two processes are "
                   "rank ",
                   launch.rank, ": start every rank once"));
}

}  // namespace reprise::internal
