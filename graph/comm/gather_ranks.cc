#include "graph/comm/gather_ranks.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "graph/comm/background.h"
#include "graph/comm/find_rank0.h"
#include "graph/comm/handshake.h"
#include "graph/comm/rank0_search.h"
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
      REPRISE_RETURN_IF_ERROR(Attend(deadline));
      if (deadline.passed()) return absl::DeadlineExceededError("");
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
  // Tells all ranks why not, also those that come by the deadline.
  void Dismiss(const absl::Status& verdict, const Deadline& deadline) {
    verdict_ = verdict;
    std::vector<Channel*> channels = {&offender_};
    for (Channel& rank : ranks_) channels.push_back(&rank);
    TellAll(channels, MessageKind::kAbort, EncodeStatus(verdict));
    for (const int rank : Missing()) {
      if (static_cast<uint32_t>(rank) != offender_rank_) untold_.insert(static_cast<uint32_t>(rank));
    }
    while (!untold_.empty() && !deadline.passed()) Attend(deadline).IgnoreError();
  }
  std::vector<Channel> TakeRanks() { return std::move(ranks_); }

 private:
  // Waits for something to happen and handles it. An error ends the job.
  absl::Status Attend(const Deadline& deadline) {
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
    DropRanksThatLeft();
    if (sockets.front().revents != 0) AcceptGuests();
    return HearGuests();
  }

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

  // False once the guest is a rank or has been turned away.
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
      if (hello.greeting.version != greeting_.version) {
        if (!verdict_.ok()) return false;
        return VersionMismatch(greeting_, hello.greeting);
      }
      guest.answered = true;
      return true;
    }
    if (guest.received.size() < sizeof(Hello)) return !guest.deadline.passed();
    return Welcome(guest, hello);
  }

  absl::StatusOr<bool> Welcome(Guest& guest, const Hello& hello) {
    const uint32_t rank = hello.greeting.rank;
    offender_ = Channel(std::move(guest.socket));
    offender_rank_ = rank;
    if (!verdict_.ok()) {
      Channel* const latecomer = &offender_;
      TellAll({&latecomer, 1}, MessageKind::kAbort, EncodeStatus(verdict_));
      untold_.erase(rank);
      return false;
    }
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
    offender_rank_ = 0;
    addresses_[rank] = guest.address;
    return false;
  }

  const LaunchEnvironment& launch_;
  const FileDescriptor listener_;
  const Greeting greeting_;
  std::vector<Channel> ranks_;
  std::vector<std::string> addresses_;  // of ranks that are or were here
  std::list<Guest> guests_;
  Channel offender_;  // a rank that ends the job, and its number
  uint32_t offender_rank_ = 0;
  absl::Status verdict_;       // once the job ended
  std::set<uint32_t> untold_;  // ranks that have not heard it
};

// Where rank 0 listens.
struct ListeningPlace {
  FileDescriptor listener;
  int port = 0;
};

// Whatever blocks longer, a directory on a network perhaps: the deadline is kept.
template <typename Result>
Result FileResult(const std::string& path, const Deadline& deadline, std::function<Result()> function) {
  std::optional<Result> result = Background<Result>(std::move(function)).Await(deadline);
  if (result.has_value()) return *std::move(result);
  return absl::DeadlineExceededError(absl::StrCat("reading and writing ", path,
                                                  ", by which ranks find rank 0, takes too long; set TMPDIR to a "
                                                  "directory on this host, the same on all ranks"));
}

// If rank 0 of this very job listens at one of `places` already, it ends both with a reason.
absl::Status CheckForTwins(const LaunchEnvironment& launch, const std::vector<Place>& places, absl::Duration deadline) {
  // A process of this host answers at once. Ranks wait meanwhile.
  const Deadline answered_by(std::min(absl::Seconds(1), deadline / 4));
  if (places.empty()) return absl::OkStatus();
  Rank0Search search(launch);
  search.SetPlaces(places);
  REPRISE_ASSIGN_OR_RETURN(std::optional<Channel> other, search.Run(answered_by));
  if (!other.has_value()) return absl::OkStatus();
  const absl::Status reason = AwaitBegin(*other, launch, answered_by);
  return absl::IsFailedPrecondition(reason) ? reason : absl::OkStatus();
}

std::vector<Place> LoopbackPlaces(int port, const Nonce& nonce) {
  std::vector<Place> places;
  for (const Address& address : Loopback(port)) places.push_back({address, nonce});
  return places;
}

absl::StatusOr<ListeningPlace> ListenFrom(const LaunchEnvironment& launch, absl::Duration deadline) {
  const Reach reach = launch.local_size == launch.size ? Reach::kThisHost : Reach::kEveryHost;
  const int last = std::min(launch.port + kNumPorts - 1, 65535);
  std::vector<Place> taken;
  absl::StatusOr<FileDescriptor> listener = absl::UnavailableError("");
  int port = launch.port;
  for (; port <= last; ++port) {
    listener = Listen(reach, port);
    if (listener.ok()) break;
    if (absl::IsAlreadyExists(listener.status())) {
      for (const Place& place : LoopbackPlaces(port, NonceOf(launch))) taken.push_back(place);
    } else if (port == last || !absl::IsUnavailable(listener.status())) {
      return listener.status();
    }
  }
  REPRISE_RETURN_IF_ERROR(CheckForTwins(launch, taken, deadline));
  if (listener.ok()) return ListeningPlace{*std::move(listener), port};
  return absl::UnavailableError(absl::StrCat("rank 0 can listen on none of the ports ", launch.port, " to ", last,
                                             ": all are taken; set REPRISE_PORT to another on all ranks"));
}

absl::StatusOr<ListeningPlace> ListenAnywhere(const std::string& path, const LaunchEnvironment& launch,
                                              absl::Duration deadline) {
  const absl::StatusOr<Rendezvous> older =
      FileResult<absl::StatusOr<Rendezvous>>(path, Deadline(deadline), [path] { return ReadRendezvous(path); });
  if (absl::IsDeadlineExceeded(older.status())) return older.status();
  if (older.ok()) REPRISE_RETURN_IF_ERROR(CheckForTwins(launch, LoopbackPlaces(older->port, older->nonce), deadline));
  REPRISE_ASSIGN_OR_RETURN(FileDescriptor listener, Listen(Reach::kThisHost, 0));
  REPRISE_ASSIGN_OR_RETURN(const Address address, LocalAddress(listener));
  return ListeningPlace{std::move(listener), PortOf(address)};
}

}  // namespace

absl::StatusOr<std::vector<Channel>> GatherRanks(const LaunchEnvironment& launch, absl::Duration deadline) {
  const Deadline all_by(deadline);
  const bool by_file = launch.host.empty();
  const std::string path = by_file ? RendezvousPath(launch) : "";
  REPRISE_ASSIGN_OR_RETURN(ListeningPlace place,
                           by_file ? ListenAnywhere(path, launch, deadline) : ListenFrom(launch, deadline));
  const Rendezvous rendezvous = {.port = place.port, .nonce = by_file ? RandomNonce() : NonceOf(launch)};
  if (by_file) {
    REPRISE_RETURN_IF_ERROR(
        FileResult<absl::Status>(path, all_by, [path, rendezvous] { return Publish(path, rendezvous); }));
  }
  const absl::Cleanup withdraw = [&] {
    if (!by_file) return;
    const auto remove = [path, rendezvous] {
      Withdraw(path, rendezvous);
      return absl::OkStatus();
    };
    FileResult<absl::Status>(path, Deadline(absl::Seconds(1)), remove).IgnoreError();
  };

  Reception reception(launch, std::move(place.listener), rendezvous.nonce);
  absl::Status verdict = reception.Receive(all_by);
  if (absl::IsDeadlineExceeded(verdict)) {
    const std::vector<int> left = reception.Left();
    verdict = absl::DeadlineExceededError(absl::StrCat(
        RankList(reception.Missing()), " of ", launch.size, " did not connect to rank 0 at port ", place.port,
        " within ", absl::FormatDuration(deadline),
        left.empty() ? "" : absl::StrCat(" (", RankList(left), " came and left)"),
        "; check that every rank was started with the same job and can reach that port, or allow more time; if the "
        "others met another rank 0 before this process came, start every rank once"));
  }
  if (verdict.ok()) verdict = reception.Begin();
  if (verdict.ok()) return reception.TakeRanks();
  reception.Dismiss(verdict, Deadline(GraceOf(deadline)));
  return verdict;
}

}  // namespace reprise::internal
