#include "graph/comm/rank0_search.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// A stranger may accept a connection and say nothing, and a network may lose it.
constexpr absl::Duration kPatience = absl::Seconds(8);
constexpr absl::Duration kFirstPause = absl::Milliseconds(5), kLongestPause = absl::Milliseconds(200);

bool Same(const Place& one, const Place& other) {
  return one.address.size == other.address.size && one.nonce == other.nonce &&
         std::memcmp(&one.address.bytes, &other.address.bytes, one.address.size) == 0;
}

absl::string_view Bytes(const Hello& hello) { return {reinterpret_cast<const char*>(&hello), sizeof(hello)}; }

Hello HelloOf(const LaunchEnvironment& launch, const Nonce& nonce) {
  Hello hello;
  hello.greeting = MakeGreeting(kRankMagic, launch.rank, nonce);
  hello.size = static_cast<uint32_t>(launch.size);
  return hello;
}

}  // namespace

void Rank0Search::SetPlaces(const std::vector<Place>& places) {
  std::vector<Probe> probes;
  for (const Place& place : places) {
    const auto known =
        std::find_if(probes_.begin(), probes_.end(), [&](const Probe& probe) { return Same(probe.place, place); });
    probes.push_back(known == probes_.end() ? Probe{.place = place} : std::move(*known));
  }
  probes_ = std::move(probes);
}

absl::StatusOr<std::optional<Channel>> Rank0Search::Run(const Deadline& deadline) {
  while (true) {
    Deadline next = deadline;
    std::vector<pollfd> sockets;
    for (Probe& probe : probes_) {
      if (!probe.socket.valid() && probe.until.passed()) Ask(probe);
      next = next.OrAfter(probe.until.left());
      // poll passes over those that wait for their next attempt.
      sockets.push_back({probe.socket.get(), static_cast<short>(probe.connected ? POLLIN : POLLOUT), 0});
    }
    Poll(sockets, next);
    for (size_t i = 0; i < probes_.size(); ++i) {
      if (!probes_[i].socket.valid()) continue;
      REPRISE_ASSIGN_OR_RETURN(std::optional<Channel> rank0, Hear(probes_[i], sockets[i].revents));
      if (rank0.has_value()) return rank0;
    }
    if (deadline.passed() || hopeless()) return std::nullopt;
  }
}

void Rank0Search::Ask(Probe& probe) {
  absl::StatusOr<FileDescriptor> socket = BeginConnect(probe.place.address);
  if (!socket.ok()) return GiveUp(probe, /*stranger=*/false, std::string(socket.status().message()));
  probe.socket = *std::move(socket);
  probe.until = Deadline(kPatience);
}

absl::StatusOr<std::optional<Channel>> Rank0Search::Hear(Probe& probe, short events) {
  const auto give_up = [&](bool stranger, absl::string_view what) {
    GiveUp(probe, stranger, absl::StrCat(ToString(probe.place.address), " ", what));
    return std::nullopt;
  };
  if (events == 0) {
    if (!probe.until.passed()) return std::nullopt;
    return give_up(probe.connected, "did not answer");
  }
  const Hello hello = HelloOf(launch_, probe.place.nonce);
  if (!probe.connected) {
    const absl::Status connected = FinishConnect(probe.socket, probe.place.address);
    if (!connected.ok()) {
      GiveUp(probe, /*stranger=*/false, std::string(connected.message()));
      return std::nullopt;
    }
    probe.connected = true;
    if (!SendNow(probe.socket, Bytes(hello).substr(0, sizeof(Greeting)))) return give_up(true, "closed");
    return std::nullopt;
  }
  const bool open = ReceiveNow(probe.socket, probe.received, sizeof(Greeting));
  if (probe.received.size() < sizeof(Greeting)) {
    if (open) return std::nullopt;
    return give_up(true, "closed");
  }
  Greeting answer;
  std::memcpy(&answer, probe.received.data(), sizeof(answer));
  if (answer.magic != kRank0Magic) return give_up(true, "is not rank 0");
  if (answer.nonce() != probe.place.nonce) return give_up(true, "is rank 0 of another job");
  if (answer.version != hello.greeting.version) return VersionMismatch(hello.greeting, answer);
  if (!SendNow(probe.socket, Bytes(hello).substr(sizeof(Greeting)))) return give_up(true, "closed");
  return Channel(std::move(probe.socket));
}

void Rank0Search::GiveUp(Probe& probe, bool stranger, const std::string& failure) {
  probe.socket.Close();
  probe.connected = false;
  probe.received.clear();
  probe.failure = failure;
  probe.stranger = stranger;
  probe.pause = std::clamp(2 * probe.pause, kFirstPause, kLongestPause);
  probe.until = Deadline(probe.pause);
}

bool Rank0Search::hopeless() const {
  return std::all_of(probes_.begin(), probes_.end(),
                     [](const Probe& probe) { return !probe.socket.valid() && !probe.failure.empty(); });
}

std::string Rank0Search::Found() const {
  std::string found;
  for (const Probe& probe : probes_) {
    if (probe.connected) return absl::StrCat(ToString(probe.place.address), " did not answer");
    if (probe.stranger) return probe.failure;
    if (!probe.failure.empty()) {
      found = probe.failure;
    } else if (probe.socket.valid() && found.empty()) {
      found = absl::StrCat(ToString(probe.place.address), " does not take a connection");
    }
  }
  return found;
}

}  // namespace reprise::internal
