#include "graph/comm/gather_ranks.h"

#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "graph/comm/find_rank0.h"
#include "graph/comm/handshake.h"
#include "graph/comm/rendezvous_file.h"
#include "graph/comm/socket.h"
#include "graph/rank_list.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// A rank sends its hello at once; who does not is a stranger.
constexpr absl::Duration kHandshakeTime = absl::Seconds(10);
// Beyond that many half-done handshakes the oldest is given up, so that strangers cannot use up the file descriptors.
constexpr size_t kMaxGuests = 256;

// Somebody who connected and did not say yet who it is.
struct Guest {
  FileDescriptor socket;
  std::string address;
  Deadline deadline = Deadline(kHandshakeTime);
  std::string received = {};
  bool answered = false;
};

class Reception {
 public:
  Reception(const LaunchEnvironment& launch, FileDescriptor listener, const Nonce& nonce)
      : launch_(launch),
        listener_(std::move(listener)),
        greeting_(MakeGreeting(kRank0Magic, 0, nonce)),
        ranks_(static_cast<size_t>(launch.size)),
        addresses_(ranks_.size()) {}

  // Accepts and sorts guests until all ranks are here.
  absl::Status Receive(const Deadline& deadline) {
    while (!Missing().empty()) {
      std::vector<pollfd> sockets = {{listener_.get(), POLLIN, 0}};
      Deadline next = deadline;
      for (const Guest& guest : guests_) {
        sockets.push_back({guest.socket.get(), POLLIN, 0});
        next = next.OrAfter(guest.deadline.left());
      }
      for (const Channel& rank : ranks_) {
        if (rank.open()) sockets.push_back({rank.fd(), POLLIN, 0});
      }
      Poll(sockets, next);
      if (deadline.passed()) return absl::DeadlineExceededError("");
      DropRanksThatLeft();
      if (sockets.front().revents != 0) AcceptGuests();
      REPRISE_RETURN_IF_ERROR(HearGuests());
    }
    return absl::OkStatus();
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (int rank = 1; rank < launch_.size; ++rank) {
      if (!ranks_[rank].open()) missing.push_back(rank);
    }
    return missing;
  }
  // Ranks that were here and are missing.
  std::vector<int> Left() const {
    std::vector<int> left;
    for (const int rank : Missing()) {
      if (!addresses_[rank].empty()) left.push_back(rank);
    }
    return left;
  }

  // Tells all ranks that all are here.
  absl::Status Begin() {
    const auto nothing = std::make_shared<const std::string>();
    for (int rank = 1; rank < launch_.size; ++rank) {
      ranks_[rank].Queue(MessageKind::kBegin, nothing);
      const absl::Status written = ranks_[rank].Write();  // a few bytes, which an idle connection takes at once
      if (written.ok() && !ranks_[rank].sending()) continue;
      ranks_[rank].Close();
      return absl::UnavailableError(absl::StrCat("rank ", rank, " at ", addresses_[rank],
                                                 " left while ranks were connecting; look at its output"));
    }
    return absl::OkStatus();
  }
  void Tell(const absl::Status& verdict) {
    std::vector<Channel*> channels = {&offender_};
    for (Channel& rank : ranks_) channels.push_back(&rank);
    TellAll(channels, MessageKind::kAbort, EncodeStatus(verdict));
  }
  std::vector<Channel> TakeRanks() { return std::move(ranks_); }

 private:
  // Nothing comes from a rank before all are here, unless it leaves.
  void DropRanksThatLeft() {
    for (Channel& rank : ranks_) {
      if (rank.open() && !rank.Read(0).ok()) rank.Close();
    }
  }

  void AcceptGuests() {
    for (bool any = false; true; any = true) {
      Address address;
      absl::StatusOr<FileDescriptor> socket = Accept(listener_, address);
      if (!socket.ok()) {
        // Out of file descriptors, perhaps: the listener stays ready, and poll would spin.
        if (!any) absl::SleepFor(absl::Milliseconds(10));
        return;
      }
      if (guests_.size() == kMaxGuests) guests_.pop_front();
      guests_.push_back({.socket = *std::move(socket), .address = ToString(address)});
    }
  }

  absl::Status HearGuests() {
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      absl::StatusOr<bool> stays = Hear(*guest);
      REPRISE_RETURN_IF_ERROR(stays.status());
      guest = *stays ? std::next(guest) : guests_.erase(guest);
    }
    return absl::OkStatus();
  }

  // False once the guest is a rank or has been turned away. An error ends the job.
  absl::StatusOr<bool> Hear(Guest& guest) {
    if (!ReceiveNow(guest.socket, guest.received, guest.answered ? sizeof(Hello) : sizeof(Greeting))) return false;
    const size_t magic_bytes = std::min(guest.received.size(), kRankMagic.size());
    if (guest.received.compare(0, magic_bytes, kRankMagic.data(), magic_bytes) != 0) return false;
    if (guest.received.size() < sizeof(Greeting)) return !guest.deadline.passed();
    Hello hello;
    std::memcpy(&hello, guest.received.data(), guest.received.size());
    if (!guest.answered) {
      // The answer tells those of another job and version what they found.
      const absl::string_view answer(reinterpret_cast<const char*>(&greeting_), sizeof(greeting_));
      if (!SendNow(guest.socket, answer) || hello.greeting.nonce() != greeting_.nonce()) return false;
      if (hello.greeting.version != greeting_.version) return VersionMismatch(greeting_, hello.greeting);
      guest.answered = true;
      return true;
    }
    if (guest.received.size() < sizeof(Hello)) return !guest.deadline.passed();
    return Welcome(guest, hello);
  }

  absl::StatusOr<bool> Welcome(Guest& guest, const Hello& hello) {
    const uint32_t rank = hello.greeting.rank;
    offender_ = Channel(std::move(guest.socket));
    if (hello.size != static_cast<uint32_t>(launch_.size)) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " at ", guest.address, " has world size ",
                                                        hello.size, ", rank 0 has ", launch_.size,
                                                        "; start all ranks with one world size"));
    }
    if (rank >= hello.size) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " at ", guest.address, " is not below the world size ", hello.size, "; number ranks from 0"));
    }
    DropRanksThatLeft();
    if (rank == 0 || ranks_[rank].open()) {
      return absl::FailedPreconditionError(
          absl::StrCat("two processes are rank ", rank, " of ", hello.size, ", at ",
                       rank == 0 ? "the host of rank 0" : addresses_[rank], " and ", guest.address,
                       "; start every rank once, and give jobs that run at the same time different names "
                       "(REPRISE_JOB)"));
    }
    ranks_[rank] = std::exchange(offender_, {});
    addresses_[rank] = guest.address;
    return false;
  }

  const LaunchEnvironment& launch_;
  const FileDescriptor listener_;
  const Greeting greeting_;
  std::vector<Channel> ranks_;
  std::vector<std::string> addresses_;  // of ranks that are or were here
  std::list<Guest> guests_;
  Channel offender_;  // a rank that ends the job
};

// Where rank 0 listens.
struct ListeningPlace {
  FileDescriptor listener;
  int port = 0;
};

// If rank 0 of this very job listens at `port` already, it ends both with a reason.
absl::Status CheckForTwin(const LaunchEnvironment& launch, int port, const Nonce& nonce) {
  const Deadline deadline(absl::Seconds(1));
  for (const Address& address : Loopback(port)) {
    absl::StatusOr<Channel> twin = Greet(launch, address, nonce, deadline);
    if (absl::IsFailedPrecondition(twin.status())) return twin.status();
    if (!twin.ok()) continue;
    absl::Status reason = AwaitBegin(*twin, launch, deadline);
    if (absl::IsFailedPrecondition(reason)) return reason;
  }
  return absl::OkStatus();
}

absl::StatusOr<ListeningPlace> ListenFrom(const LaunchEnvironment& launch) {
  const Reach reach = launch.local_size == launch.size ? Reach::kThisHost : Reach::kEveryHost;
  const int last = std::min(launch.port + kNumPorts - 1, 65535);
  for (int port = launch.port; port <= last; ++port) {
    absl::StatusOr<FileDescriptor> listener = Listen(reach, port);
    if (listener.ok()) return ListeningPlace{*std::move(listener), port};
    if (absl::IsAlreadyExists(listener.status())) {
      REPRISE_RETURN_IF_ERROR(CheckForTwin(launch, port, NonceOf(launch)));
    } else if (port == last || !absl::IsUnavailable(listener.status())) {
      return listener.status();
    }
  }
  return absl::UnavailableError(absl::StrCat("rank 0 can listen on none of the ports ", launch.port, " to ", last,
                                             ": all are taken; set REPRISE_PORT to another on all ranks"));
}

absl::StatusOr<ListeningPlace> ListenAnywhere(const std::string& path, const LaunchEnvironment& launch) {
  const absl::StatusOr<Rendezvous> older = ReadRendezvous(path);
  if (older.ok()) REPRISE_RETURN_IF_ERROR(CheckForTwin(launch, older->port, older->nonce));
  REPRISE_ASSIGN_OR_RETURN(FileDescriptor listener, Listen(Reach::kThisHost, 0));
  REPRISE_ASSIGN_OR_RETURN(const Address address, LocalAddress(listener));
  return ListeningPlace{std::move(listener), PortOf(address)};
}

}  // namespace

absl::StatusOr<std::vector<Channel>> GatherRanks(const LaunchEnvironment& launch, absl::Duration deadline) {
  const Deadline all_by(deadline);
  const bool by_file = launch.host.empty();
  const std::string path = by_file ? RendezvousPath(launch) : "";
  REPRISE_ASSIGN_OR_RETURN(ListeningPlace place, by_file ? ListenAnywhere(path, launch) : ListenFrom(launch));
  const Rendezvous rendezvous = {.port = place.port, .nonce = by_file ? RandomNonce() : NonceOf(launch)};
  if (by_file) REPRISE_RETURN_IF_ERROR(Publish(path, rendezvous));
  const absl::Cleanup withdraw = [&] {
    if (by_file) Withdraw(path, rendezvous);
  };

  Reception reception(launch, std::move(place.listener), rendezvous.nonce);
  absl::Status verdict = reception.Receive(all_by);
  if (absl::IsDeadlineExceeded(verdict)) {
    const std::vector<int> left = reception.Left();
    verdict = absl::DeadlineExceededError(absl::StrCat(
        RankList(reception.Missing()), " of ", launch.size, " did not connect to rank 0 at port ", place.port,
        " within ", absl::FormatDuration(deadline),
        left.empty() ? "" : absl::StrCat(" (", RankList(left), " came and left)"),
        "; check that every rank was started with the same job and can reach that port, or allow more time"));
  }
  if (verdict.ok()) verdict = reception.Begin();
  if (verdict.ok()) return reception.TakeRanks();
  reception.Tell(verdict);
  return verdict;
}

}  // namespace reprise::internal
