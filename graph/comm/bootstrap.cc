#include "graph/comm/bootstrap.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/comm/find_rank0.h"
#include "graph/comm/gather_ranks.h"
#include "graph/comm/socket.h"
#include "graph/rank_list.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// What rank 0 sends to all: the number of bytes of each rank's part, then the parts.
std::string EncodeParts(const std::vector<std::string>& parts) {
  std::string bytes;
  size_t num_bytes = parts.size() * sizeof(uint64_t);
  for (const std::string& part : parts) num_bytes += part.size();
  bytes.reserve(num_bytes);
  for (const std::string& part : parts) {
    const uint64_t size = part.size();
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
  }
  for (const std::string& part : parts) bytes += part;
  return bytes;
}

absl::StatusOr<std::vector<std::string>> DecodeParts(const std::string& bytes, int size) {
  std::vector<std::string> parts;
  size_t begin = static_cast<size_t>(size) * sizeof(uint64_t);
  for (int rank = 0; rank < size && begin <= bytes.size(); ++rank) {
    uint64_t num_bytes = 0;
    std::memcpy(&num_bytes, bytes.data() + static_cast<size_t>(rank) * sizeof(num_bytes), sizeof(num_bytes));
    if (num_bytes > bytes.size() - begin) break;
    parts.push_back(bytes.substr(begin, num_bytes));
    begin += num_bytes;
  }
  if (parts.size() == static_cast<size_t>(size) && begin == bytes.size()) return parts;
  return absl::InternalError(absl::StrCat("rank 0 sent ", bytes.size(), " bytes that are not the parts of ", size,
                                          " ranks; run one build of the program on all ranks"));
}

// The error of a channel, with the name of the rank at its other end.
absl::Status OfRank(int rank, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("rank ", rank, " ", std::string(status.message()),
                                                  " during an exchange; look at its output for the cause"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bootstrap>> Bootstrap::Connect(const LaunchEnvironment& launch,
                                                              absl::Duration deadline) {
  REPRISE_RETURN_IF_ERROR(Validate(launch));
  std::vector<Channel> peers;
  if (launch.size > 1 && launch.rank == 0) {
    REPRISE_ASSIGN_OR_RETURN(peers, GatherRanks(launch, deadline));
  } else if (launch.size > 1) {
    REPRISE_ASSIGN_OR_RETURN(Channel rank0, FindRank0(launch, deadline));
    peers.push_back(std::move(rank0));
  }
  return std::unique_ptr<Bootstrap>(new Bootstrap(launch, deadline, std::move(peers)));
}

absl::StatusOr<std::vector<std::string>> Bootstrap::Exchange(const std::string& mine) {
  REPRISE_RETURN_IF_ERROR(error_);
  absl::StatusOr<std::vector<std::string>> all = std::vector<std::string>{mine};
  if (mine.size() > kMaxBytes) {
    all = absl::ResourceExhaustedError(absl::StrCat("rank ", rank_, " gives ", mine.size(),
                                                    " bytes to an exchange, which takes ", kMaxBytes,
                                                    "; exchange them in parts"));
  } else if (size_ > 1) {
    all = rank_ == 0 ? GatherAndSend(mine) : SendAndReceive(mine);
  }
  if (all.ok()) {
    told_ = absl::OkStatus();
    return all;
  }
  error_ = all.status();
  TellAll(PeersBut(-1), MessageKind::kAbort, EncodeStatus(error_));
  return error_;
}

void Bootstrap::TellFailure(const absl::Status& status) {
  if (!error_.ok()) return;
  TellAll(PeersBut(-1), MessageKind::kFailed,
       EncodeStatus(
           absl::FailedPreconditionError(absl::StrCat("rank ", rank_, " of ", size_, " failed: ", status.ToString(),
                                                      "; every rank stops here, mend the cause on that rank"))));
}

absl::Status Bootstrap::CheckPeers() {
  for (size_t peer = 0; peer < peers_.size() && error_.ok(); ++peer) {
    if (!peers_[peer].open() || early_[peer].has_value()) continue;
    absl::StatusOr<std::optional<Message>> message = Receive(static_cast<int>(peer), MaxBytes());
    if (!message.ok()) {
      peers_[peer].Close();
      error_ = OfRank(static_cast<int>(peer), message.status());
      TellAll(PeersBut(-1), MessageKind::kAbort, EncodeStatus(error_));
    } else if (message->has_value() && (*message)->kind == MessageKind::kAbort) {
      error_ = DecodeStatus((*message)->payload);
    } else {
      early_[peer] = *std::move(message);
    }
  }
  return error_.ok() ? told_ : error_;
}

absl::StatusOr<std::optional<Message>> Bootstrap::Receive(int peer, uint64_t max_bytes) {
  if (early_[peer].has_value()) return std::exchange(early_[peer], std::nullopt);
  while (true) {
    absl::StatusOr<std::optional<Message>> message = peers_[peer].Read(max_bytes);
    if (!message.ok() || !message->has_value() || (*message)->kind != MessageKind::kFailed) return message;
    if (told_.ok()) {
      told_ = DecodeStatus((*message)->payload);
      if (rank_ == 0) TellAll(PeersBut(peer), MessageKind::kFailed, (*message)->payload);
    }
  }
}

std::vector<Channel*> Bootstrap::PeersBut(int peer) {
  std::vector<Channel*> others;
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (static_cast<int>(p) != peer && peers_[p].open()) others.push_back(&peers_[p]);
  }
  return others;
}

uint64_t Bootstrap::MaxBytes() const {
  return rank_ == 0 ? kMaxBytes : static_cast<uint64_t>(size_) * (kMaxBytes + sizeof(uint64_t));
}

absl::StatusOr<std::vector<std::string>> Bootstrap::GatherAndSend(const std::string& mine) {
  std::vector<std::string> parts(static_cast<size_t>(size_));
  parts[0] = mine;
  REPRISE_RETURN_IF_ERROR(Gather(parts));
  REPRISE_RETURN_IF_ERROR(SendToAll(parts));
  return parts;
}

absl::Status Bootstrap::Gather(std::vector<std::string>& parts) {
  const Deadline deadline(deadline_);
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) missing.push_back(rank);
  while (true) {
    std::vector<int> still_missing;
    for (const int rank : missing) {
      absl::StatusOr<std::optional<Message>> message = Receive(rank, MaxBytes());
      if (!message.ok()) {
        peers_[rank].Close();
        return OfRank(rank, message.status());
      }
      if (!message->has_value()) {
        still_missing.push_back(rank);
        continue;
      }
      if ((*message)->kind == MessageKind::kAbort) return DecodeStatus((*message)->payload);
      parts[rank] = std::move((*message)->payload);
    }
    missing = std::move(still_missing);
    if (missing.empty()) return absl::OkStatus();
    std::vector<pollfd> sockets;
    for (const int rank : missing) sockets.push_back({peers_[rank].fd(), POLLIN, 0});
    if (!Poll(sockets, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat(
          RankList(missing), " of ", size_, " did not answer in an exchange within ", absl::FormatDuration(deadline_),
          "; look at what they do, and make the same collective calls on every rank"));
    }
  }
}

absl::Status Bootstrap::SendToAll(const std::vector<std::string>& parts) {
  const Deadline deadline(deadline_);
  const auto payload = std::make_shared<const std::string>(EncodeParts(parts));
  for (int rank = 1; rank < size_; ++rank) peers_[rank].Queue(MessageKind::kData, payload);
  // A rank that died meanwhile does not keep the rest from what all gave: they hear of it in the next exchange.
  absl::Status first_error;
  while (true) {
    std::vector<int> sending;
    std::vector<pollfd> sockets;
    for (int rank = 1; rank < size_; ++rank) {
      Channel& peer = peers_[rank];
      if (!peer.open() || !peer.sending()) continue;
      const absl::Status written = peer.Write();
      if (!written.ok()) {
        first_error.Update(OfRank(rank, written));
        peer.Close();
      } else if (peer.sending()) {
        sending.push_back(rank);
        sockets.push_back({peer.fd(), POLLOUT, 0});
      }
    }
    if (sockets.empty()) return first_error;
    if (!Poll(sockets, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat(RankList(sending), " of ", size_, " did not take ",
                                                      payload->size(), " bytes of an exchange within ",
                                                      absl::FormatDuration(deadline_), "; look at what they do"));
    }
  }
}

absl::StatusOr<std::vector<std::string>> Bootstrap::SendAndReceive(const std::string& mine) {
  const Deadline deadline(WithGrace(deadline_));
  Channel& rank0 = peers_[0];
  rank0.Queue(MessageKind::kData, std::make_shared<const std::string>(mine));
  absl::Status written;
  while (true) {
    if (written.ok() && rank0.sending()) written = rank0.Write();
    // Even if rank 0 is gone: it may have said why.
    const absl::StatusOr<std::optional<Message>> message = Receive(0, MaxBytes());
    if (!message.ok() || (!written.ok() && !message->has_value())) {
      rank0.Close();
      return OfRank(0, message.ok() ? written : message.status());
    }
    if (message->has_value()) {
      if ((*message)->kind == MessageKind::kAbort) {
        rank0.Close();  // it knows
        return DecodeStatus((*message)->payload);
      }
      return DecodeParts((*message)->payload, size_);
    }
    const short events = static_cast<short>(rank0.sending() ? POLLIN | POLLOUT : POLLIN);
    if (!PollOne(rank0.fd(), events, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank 0 of ", size_, " did not answer rank ", rank_, " in an exchange within ",
                       absl::FormatDuration(WithGrace(deadline_)), "; look at what it does"));
    }
  }
}

}  // namespace reprise::internal
