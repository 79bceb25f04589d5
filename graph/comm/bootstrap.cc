#include "graph/comm/bootstrap.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/comm/find_rank0.h"
#include "graph/comm/gather_ranks.h"
#include "graph/comm/handshake.h"
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
                                          " ranks; run one build of the program, with one world size, on all ranks"));
}

// The program's connections, by rank; on all but rank 0 just that to it.
absl::StatusOr<std::vector<Channel>> ConnectAll(const LaunchEnvironment& launch) {
  const int begin = launch.rank == 0 ? 1 : 0, end = launch.rank == 0 ? launch.size : 1;
  std::vector<Channel> channels(static_cast<size_t>(end));
  for (int rank = begin; rank < end; ++rank) {
    absl::StatusOr<std::unique_ptr<Connection>> connection = launch.connect(rank);
    if (connection.ok() && *connection == nullptr) connection = absl::InvalidArgumentError("there is none");
    if (connection.ok()) {
      channels[rank] = Channel(*std::move(connection));
      continue;
    }
    const absl::Status failed(connection.status().code(),
                              absl::StrCat("LaunchEnvironment::connect of rank ", launch.rank, " of ", launch.size,
                                           " to rank ", rank, ": ", std::string(connection.status().message())));
    std::vector<Channel*> others;
    for (Channel& channel : channels) others.push_back(&channel);
    TellAll(others, MessageKind::kAbort, EncodeStatus(failed));
    return failed;
  }
  return channels;
}

// The error of a channel, with the name of the rank at its other end.
absl::Status OfRank(int rank, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("rank ", rank, " ", std::string(status.message()),
                                                  " during an exchange; look at its output for the cause"));
}

// Longer than ranks that make the same calls are apart mostly, and short for a person who waits for an error.
constexpr absl::Duration kAskAfter = absl::Milliseconds(250);

}  // namespace

absl::StatusOr<std::unique_ptr<Bootstrap>> Bootstrap::Connect(const LaunchEnvironment& launch,
                                                              absl::Duration deadline) {
  REPRISE_RETURN_IF_ERROR(Validate(launch));
  std::vector<Channel> peers;
  if (launch.size > 1 && launch.connect != nullptr) {
    REPRISE_ASSIGN_OR_RETURN(peers, ConnectAll(launch));
    std::unique_ptr<Bootstrap> joined(new Bootstrap(launch, deadline, std::move(peers)));
    REPRISE_RETURN_IF_ERROR(joined->AgreeOn("joining", absl::OkStatus(),
                                            {AgreedValue::Integer("version of the protocol", kProtocolVersion),
                                             AgreedValue::Integer("world size", launch.size)}));
    return joined;
  }
  if (launch.size > 1 && launch.rank == 0) {
    REPRISE_ASSIGN_OR_RETURN(peers, GatherRanks(launch, deadline));
  } else if (launch.size > 1) {
    REPRISE_ASSIGN_OR_RETURN(Channel rank0, FindRank0(launch, deadline));
    peers.push_back(std::move(rank0));
  }
  return std::unique_ptr<Bootstrap>(new Bootstrap(launch, deadline, std::move(peers)));
}

absl::StatusOr<std::vector<std::string>> Bootstrap::Exchange(absl::string_view what, const std::string& mine) {
  REPRISE_RETURN_IF_ERROR(Start({.what = std::string(what)}, mine));
  REPRISE_RETURN_IF_ERROR(Wait());
  return std::move(parts_);
}

absl::Status Bootstrap::AgreeOn(absl::string_view what, const absl::Status& mine,
                                absl::Span<const AgreedValue> values) {
  REPRISE_RETURN_IF_ERROR(
      Start({.what = std::string(what), .announces = true, .mine = mine, .values = {values.begin(), values.end()}},
            EncodeValues(mine, values)));
  return Wait();
}

absl::StatusOr<int64_t> Bootstrap::Announce(absl::string_view what, const absl::Status& mine,
                                            absl::Span<const AgreedValue> values) {
  REPRISE_RETURN_IF_ERROR(Start({.what = std::string(what),
                                 .announces = true,
                                 .waits = false,
                                 .mine = mine,
                                 .values = {values.begin(), values.end()}},
                                EncodeValues(mine, values)));
  open_ticket_ = ++tickets_;
  Look().status().IgnoreError();  // Announced returns it
  return tickets_;
}

absl::Status Bootstrap::Announced(int64_t ticket) {
  if (call_.has_value() && open_ticket_ == ticket) Wait().IgnoreError();  // kept in refused_, or final
  const auto refused = refused_.find(ticket);
  return refused == refused_.end() ? Usable() : refused->second.status;
}

absl::Status Bootstrap::Progress(int64_t ticket) {
  Look().status().IgnoreError();
  const auto refused = refused_.find(ticket);
  const bool is_known = refused != refused_.end() && (!refused->second.same_launches || !Usable().ok());
  return is_known ? refused->second.status : Usable();
}

absl::Status Bootstrap::NoteLaunch(uint64_t key, absl::string_view what) {
  REPRISE_RETURN_IF_ERROR(Usable());
  launches_.Add(key, what);
  return absl::OkStatus();
}

// ---- one call ----

absl::Status Bootstrap::Start(Call call, absl::string_view bytes) {
  REPRISE_RETURN_IF_ERROR(Usable());
  Wait().IgnoreError();  // an announcement's, which Announced returns
  REPRISE_RETURN_IF_ERROR(Usable());
  if (bytes.size() > max_bytes_) {
    return Fail(absl::ResourceExhaustedError(absl::StrCat("rank ", rank_, " gives ", bytes.size(),
                                                          " bytes to an exchange, which takes ", max_bytes_,
                                                          "; exchange them in parts")));
  }
  call.part = std::make_shared<const std::string>(EncodePart(call.what, launches_, bytes));
  call.launches = launches_.count;
  call.num_bytes = bytes.size();
  if (rank_ == 0) call.ask = Deadline(kAskAfter);
  call_ = std::move(call);
  open_ticket_ = -1;
  return absl::OkStatus();
}

absl::StatusOr<bool> Bootstrap::Look() {
  if (!call_.has_value()) return true;
  REPRISE_RETURN_IF_ERROR(error_);
  const absl::StatusOr<bool> done = rank_ == 0 ? LookAtAll() : LookAtRank0();
  if (!done.ok()) return Fail(done.status());
  return *done ? Finish() : false;
}

absl::StatusOr<bool> Bootstrap::Finish() {
  const Call call = *std::exchange(call_, std::nullopt);
  asked_.reset();
  ++num_exchanges_;
  bool same_launches = true;
  absl::Status verdict = Judge(call, same_launches);
  if (!unsent_.ok()) {
    // A rank that left because ranks differ is gone for that.
    const absl::Status left = Fail(std::exchange(unsent_, absl::OkStatus()));
    if (verdict.ok()) verdict = left;
  }
  if (verdict.ok()) {
    if (call.waits) told_ = apart_ = absl::OkStatus();
    return true;
  }
  if (!same_launches) apart_ = verdict;
  if (!call.waits) {
    if (open_ticket_ >= 0) refused_[open_ticket_] = {verdict, same_launches};
    if (told_.ok() && !same_launches) told_ = verdict;
  }
  return verdict;
}

absl::Status Bootstrap::Judge(const Call& call, bool& same_launches) {
  if (parts_.empty()) {
    if (!call.announces)
      parts_.assign(static_cast<size_t>(size_), call.part->substr(call.part->size() - call.num_bytes));
    return call.mine;
  }
  std::vector<CallPart> parts;
  for (int rank = 0; rank < size_; ++rank) {
    absl::StatusOr<CallPart> part = DecodePart(rank, parts_[rank]);
    if (!part.ok()) return Fail(part.status());
    parts.push_back(*std::move(part));
  }
  parts_.clear();
  absl::Status verdict = CheckSameCall(parts);
  same_launches = verdict.ok();
  if (!verdict.ok() && !SameLaunches(parts)) differ_ = verdict;
  if (verdict.ok() && call.announces) verdict = CheckValues(parts, call.values, same_launches);
  if (!call.mine.ok()) return call.mine;
  if (verdict.ok() && !call.announces) {
    for (CallPart& part : parts) parts_.push_back(std::move(part.bytes));
  }
  return verdict;
}

absl::Status Bootstrap::Wait() {
  if (!call_.has_value()) return absl::OkStatus();
  const Deadline deadline(rank_ == 0 ? deadline_ : WithGrace(deadline_));
  while (true) {
    const absl::StatusOr<bool> done = Look();
    if (!done.ok() || *done) return done.status();
    // What is announced is for devices, whose collectives with a rank that left them never end.
    if (!call_->waits && !broken_.ok()) return Fail(broken_);
    std::vector<pollfd> sockets;
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      if (!peers_[peer].open() || early_[peer].has_value()) continue;
      const int events = rank_ > 0 && peers_[peer].sending() ? POLLIN | POLLOUT : POLLIN;
      sockets.push_back({peers_[peer].fd(), static_cast<short>(events), 0});
    }
    const bool will_ask = rank_ == 0 && !call_->asked.has_value();
    if (Await(sockets, will_ask ? deadline.OrAfter(call_->ask.left()) : deadline)) continue;
    if (deadline.passed()) return Fail(TimeOut());
  }
}

absl::Status Bootstrap::TimeOut() const {
  if (rank_ > 0) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank 0 of ", size_, " did not answer rank ", rank_, " in an exchange (", call_->what, ") within ",
                     absl::FormatDuration(WithGrace(deadline_)), "; look at what it does"));
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) {
    if (!early_[rank].has_value()) missing.push_back(rank);
  }
  return absl::DeadlineExceededError(absl::StrCat(
      RankList(missing), " of ", size_, " did not answer in an exchange (", call_->what, ") within ",
      absl::FormatDuration(deadline_), "; look at what they do, and make the same collective calls on every rank"));
}

absl::Status Bootstrap::Fail(const absl::Status& status) {
  call_.reset();
  if (!error_.ok()) return error_;
  error_ = status;
  TellAll(PeersBut(-1), MessageKind::kAbort, EncodeStatus(error_));
  return error_;
}

// ---- between exchanges ----

void Bootstrap::TellFailure(const absl::Status& status) {
  const absl::Status failure = FailureOf(status);
  if (told_.ok()) told_ = failure;
  TellAll(PeersBut(-1), MessageKind::kFailed, EncodeStatus(failure));
}

void Bootstrap::TellBroken(const absl::Status& status) {
  if (broken_.ok()) broken_ = told_.ok() ? FailureOf(status) : told_;
  TellAll(PeersBut(-1), MessageKind::kBroken, EncodeStatus(broken_));
}

absl::Status Bootstrap::FailureOf(const absl::Status& status) const {
  return absl::FailedPreconditionError(absl::StrCat("rank ", rank_, " of ", size_, " failed: ", status.ToString(),
                                                    "; every rank stops here, mend the cause on that rank"));
}

absl::Status Bootstrap::CheckPeers() {
  Look().status().IgnoreError();
  for (size_t peer = 0; peer < peers_.size() && error_.ok(); ++peer) {
    if (!peers_[peer].open()) continue;
    const absl::Status pulled = Pull(static_cast<int>(peer));
    if (!pulled.ok()) Fail(pulled).IgnoreError();
  }
  if (IsMissed()) {
    if (Start({.what = "a wait for its device"}, "").ok()) Wait().IgnoreError();
  }
  // A rank that leaves after a failure was told is gone for that.
  for (const absl::Status* status : {&differ_, &broken_, &told_}) REPRISE_RETURN_IF_ERROR(*status);
  return error_;
}

absl::Status Bootstrap::CheckTogether() {
  REPRISE_RETURN_IF_ERROR(CheckPeers());
  return apart_;
}

bool Bootstrap::IsMissed() const {
  if (call_.has_value() || !Usable().ok()) return false;
  if (rank_ > 0) return asked_.has_value() && *asked_ < launches_.count;
  for (int rank = 1; rank < size_; ++rank) {
    if (!early_[rank].has_value()) continue;
    const absl::StatusOr<CallPart> part = DecodePart(rank, early_[rank]->payload);
    if (part.ok() && part->launches.count < launches_.count) return true;
  }
  return false;
}

absl::Status Bootstrap::Pull(int peer) {
  Channel& channel = peers_[peer];
  const bool had_part = early_[peer].has_value();
  while (channel.open() && early_[peer].has_value() == had_part) {
    absl::StatusOr<std::optional<Message>> message = channel.Read(MaxBytes());
    absl::Status status = message.status();
    if (message.ok() && !message->has_value()) return absl::OkStatus();
    if (message.ok() && (*message)->kind == MessageKind::kAbort) {
      if (rank_ > 0) channel.Close();  // it knows
      return DecodeStatus((*message)->payload);
    }
    if (message.ok()) status = Take(peer, **std::move(message));
    if (!status.ok()) {
      channel.Close();
      return OfRank(rank_ == 0 ? peer : 0, status);
    }
  }
  if (channel.open() || early_[peer].has_value()) return absl::OkStatus();
  return OfRank(rank_ == 0 ? peer : 0, absl::UnavailableError("closed its connection"));
}

absl::Status Bootstrap::Take(int peer, Message message) {
  const auto heard = [&](absl::Status& status) {
    if (!status.ok()) return absl::OkStatus();
    status = DecodeStatus(message.payload);
    if (rank_ == 0) TellAll(PeersBut(peer), message.kind, message.payload);
    return absl::OkStatus();
  };
  const bool from_rank0 = rank_ > 0;
  const bool answers = from_rank0 && call_.has_value() && call_->is_queued;
  switch (message.kind) {
    case MessageKind::kFailed:
      return heard(told_);
    case MessageKind::kBroken:
      return heard(broken_);
    case MessageKind::kAsk:
      if (!from_rank0 || message.payload.size() != sizeof(uint64_t)) break;
      std::memcpy(&asked_.emplace(), message.payload.data(), sizeof(uint64_t));
      return absl::OkStatus();
    case MessageKind::kData:
    case MessageKind::kAgreed:
      if (early_[peer].has_value() || (from_rank0 ? !answers : message.kind == MessageKind::kAgreed)) break;
      early_[peer] = std::move(message);
      return absl::OkStatus();
    case MessageKind::kBegin:
    case MessageKind::kAbort:
      break;
  }
  return absl::InternalError(absl::StrCat("sent ", NameOf(message.kind), " of ", message.payload.size(),
                                          " bytes, which does not belong here"));
}

std::vector<Channel*> Bootstrap::PeersBut(int peer) {
  std::vector<Channel*> others;
  for (size_t p = 0; p < peers_.size(); ++p) {
    if (static_cast<int>(p) != peer && peers_[p].open()) others.push_back(&peers_[p]);
  }
  return others;
}

uint64_t Bootstrap::MaxBytes() const {
  const uint64_t part = max_bytes_ + kMaxPartHeader;
  return rank_ == 0 ? part : static_cast<uint64_t>(size_) * (part + sizeof(uint64_t));
}

// ---- on rank 0 ----

absl::StatusOr<bool> Bootstrap::LookAtAll() {
  bool is_complete = true, is_equal = true;
  for (int rank = 1; rank < size_; ++rank) {
    if (!early_[rank].has_value()) REPRISE_RETURN_IF_ERROR(Pull(rank));
    is_complete = is_complete && early_[rank].has_value();
    is_equal = is_equal && is_complete && early_[rank]->payload == *call_->part;
  }
  if (!is_complete) {
    if (call_->ask.passed()) Ask();
    return false;
  }
  parts_.clear();
  if (!is_equal) {
    parts_.push_back(*call_->part);
    for (int rank = 1; rank < size_; ++rank) parts_.push_back(std::move(early_[rank]->payload));
  }
  for (std::optional<Message>& part : early_) part.reset();
  unsent_ = is_equal ? SendToAll(MessageKind::kAgreed, std::make_shared<const std::string>())
                     : SendToAll(MessageKind::kData, std::make_shared<const std::string>(EncodeParts(parts_)));
  return true;
}

void Bootstrap::Ask() {
  uint64_t launches = call_->launches;
  std::vector<Channel*> missing;
  for (int rank = 1; rank < size_; ++rank) {
    if (early_[rank].has_value()) {
      const absl::StatusOr<CallPart> part = DecodePart(rank, early_[rank]->payload);
      if (part.ok()) launches = std::min(launches, part->launches.count);
    } else if (peers_[rank].open()) {
      missing.push_back(&peers_[rank]);
    }
  }
  // Again only for a rank with fewer: what nobody reads would fill the connection.
  if (call_->asked.has_value() && *call_->asked <= launches) return;
  call_->asked = launches;
  TellAll(missing, MessageKind::kAsk, std::string(reinterpret_cast<const char*>(&launches), sizeof(launches)));
}

absl::Status Bootstrap::SendToAll(MessageKind kind, std::shared_ptr<const std::string> payload) {
  const Deadline deadline(deadline_);
  for (int rank = 1; rank < size_; ++rank) {
    if (peers_[rank].open()) peers_[rank].Queue(kind, payload);
  }
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
    if (!Await(sockets, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat(RankList(sending), " of ", size_, " did not take ",
                                                      payload->size(), " bytes of an exchange within ",
                                                      absl::FormatDuration(deadline_), "; look at what they do"));
    }
  }
}

// ---- on the others ----

absl::StatusOr<bool> Bootstrap::LookAtRank0() {
  Channel& rank0 = peers_[0];
  if (!call_->is_queued && !rank0.sending()) {
    rank0.Queue(MessageKind::kData, call_->part);
    call_->is_queued = true;
  }
  const absl::Status written = rank0.sending() ? rank0.Write() : absl::OkStatus();
  // Even if rank 0 is gone: it may have said why.
  if (!early_[0].has_value()) REPRISE_RETURN_IF_ERROR(Pull(0));
  if (early_[0].has_value()) {
    const Message answer = *std::exchange(early_[0], std::nullopt);
    parts_.clear();
    if (answer.kind == MessageKind::kAgreed) return true;
    REPRISE_ASSIGN_OR_RETURN(parts_, DecodeParts(answer.payload, size_));
    return true;
  }
  if (written.ok()) return false;
  rank0.Close();
  return OfRank(0, written);
}

}  // namespace reprise::internal
