#include "graph/comm/find_rank0.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/comm/rendezvous_file.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// A stranger may accept a connection and say nothing, and rank 0 may be slow to answer: patience grows by and by.
constexpr absl::Duration kFirstPatience = absl::Milliseconds(500), kMostPatience = absl::Seconds(8);
constexpr absl::Duration kFirstPause = absl::Milliseconds(5), kLongestPause = absl::Milliseconds(200);

// A place where rank 0 may be.
struct Place {
  Address address;
  Nonce nonce;
};

absl::StatusOr<std::vector<Place>> PlacesByFile(const LaunchEnvironment& launch) {
  REPRISE_ASSIGN_OR_RETURN(const Rendezvous rendezvous, ReadRendezvous(RendezvousPath(launch)));
  std::vector<Place> places;
  for (const Address& address : Loopback(rendezvous.port)) places.push_back({address, rendezvous.nonce});
  return places;
}

absl::StatusOr<std::vector<Place>> PlacesByPort(const LaunchEnvironment& launch) {
  std::vector<Place> places;
  for (int port = launch.port; port < launch.port + kNumPorts && port <= 65535; ++port) {
    std::vector<Address> addresses = Loopback(port);
    if (launch.local_size < launch.size) {
      REPRISE_ASSIGN_OR_RETURN(addresses, Resolve(launch.host, port));
    }
    for (const Address& address : addresses) places.push_back({address, NonceOf(launch)});
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

absl::Duration WithGrace(absl::Duration deadline) { return deadline + std::min(deadline, absl::Seconds(5)); }

absl::StatusOr<Channel> Greet(const LaunchEnvironment& launch, const Address& address, const Nonce& nonce,
                              const Deadline& deadline) {
  REPRISE_ASSIGN_OR_RETURN(FileDescriptor socket, Connect(address, deadline));
  const auto unavailable = [&](absl::string_view what) {
    return absl::UnavailableError(absl::StrCat(ToString(address), " ", what));
  };
  Hello hello;
  hello.greeting = MakeGreeting(kRankMagic, launch.rank, nonce);
  hello.size = static_cast<uint32_t>(launch.size);
  const absl::string_view bytes(reinterpret_cast<const char*>(&hello), sizeof(hello));
  if (!SendNow(socket, bytes.substr(0, sizeof(Greeting)))) return unavailable("closed");
  std::string received;
  while (received.size() < sizeof(Greeting)) {
    if (!PollOne(socket.get(), POLLIN, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat(ToString(address), " did not answer"));
    }
    if (!ReceiveNow(socket, received, sizeof(Greeting))) return unavailable("closed");
  }
  Greeting answer;
  std::memcpy(&answer, received.data(), sizeof(answer));
  if (answer.magic != kRank0Magic) return unavailable("is not rank 0");
  if (answer.nonce() != nonce) return unavailable("is rank 0 of another job");
  if (answer.version != hello.greeting.version) return VersionMismatch(hello.greeting, answer);
  if (!SendNow(socket, bytes.substr(sizeof(Greeting)))) return unavailable("closed");
  return Channel(std::move(socket));
}

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
  return absl::DeadlineExceededError(absl::StrCat("rank ", launch.rank, " of ", launch.size,
                                                  " is connected to rank 0, which did not say in time that all are"));
}

absl::StatusOr<Channel> FindRank0(const LaunchEnvironment& launch, absl::Duration deadline) {
  const Deadline found_by(deadline), begun_by(WithGrace(deadline));
  absl::Duration patience = kFirstPatience, pause = kFirstPause;
  std::string nobody, somebody;  // why the last place was not the right one; the second says more
  while (!found_by.passed()) {
    const absl::StatusOr<std::vector<Place>> places = Places(launch);
    if (!places.ok()) nobody = std::string(places.status().message());
    bool slow = false;
    for (const Place& place : places.ok() ? *places : std::vector<Place>()) {
      absl::StatusOr<Channel> rank0 = Greet(launch, place.address, place.nonce, found_by.OrAfter(patience));
      if (rank0.ok()) {
        REPRISE_RETURN_IF_ERROR(AwaitBegin(*rank0, launch, begun_by));
        return rank0;
      }
      if (absl::IsFailedPrecondition(rank0.status())) return rank0.status();
      (absl::IsNotFound(rank0.status()) ? nobody : somebody) = std::string(rank0.status().message());
      slow |= absl::IsDeadlineExceeded(rank0.status());
      if (found_by.passed()) break;
    }
    absl::SleepFor(std::min(pause, std::max(found_by.left(), absl::ZeroDuration())));
    pause = std::min(2 * pause, kLongestPause);
    if (slow) patience = std::min(2 * patience, kMostPatience);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", launch.rank, " of ", launch.size, " did not find rank 0 ", PlacesText(launch), " within ",
                   absl::FormatDuration(deadline), " (", somebody.empty() ? nobody : somebody,
                   "); check that rank 0 runs there with the same job and that the ports are open, or set REPRISE_HOST "
                   "and REPRISE_PORT on all ranks"));
}

}  // namespace reprise::internal
