#include "graph/comm/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/comm/deadline.h"
#include "graph/comm/socket.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;
constexpr absl::Duration kTellTime = absl::Seconds(1);

bool IsKind(uint32_t kind) {
  switch (static_cast<MessageKind>(kind)) {
    case MessageKind::kBegin:
    case MessageKind::kData:
    case MessageKind::kAbort:
    case MessageKind::kFailed:
    case MessageKind::kBroken:
    case MessageKind::kAgreed:
    case MessageKind::kAsk:
      return true;
  }
  return false;
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

void Channel::Queue(MessageKind kind, std::shared_ptr<const std::string> payload) {
  sent_header_ = {.kind = static_cast<uint32_t>(kind), .num_bytes = payload->size()};
  payload_ = std::move(payload);
  num_sent_ = 0;
}

absl::Status Channel::Write() {
  while (sending()) {
    const bool header = num_sent_ < sizeof(Header);
    const char* const bytes = header ? reinterpret_cast<const char*>(&sent_header_) + num_sent_
                                     : payload_->data() + (num_sent_ - sizeof(Header));
    const size_t left = sizeof(Header) + (header ? 0 : payload_->size()) - num_sent_;
    const ssize_t sent = send(socket_.get(), bytes, left, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && WouldBlock(errno)) return absl::OkStatus();
    if (sent < 0) return absl::UnavailableError(ErrnoText("lost its connection", errno));
    num_sent_ += static_cast<size_t>(sent);
    if (num_sent_ == sizeof(Header) + payload_->size()) payload_ = nullptr;
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Channel::Receive(char* bytes, size_t num_bytes) {
  while (true) {
    const ssize_t received = recv(socket_.get(), bytes, num_bytes, 0);
    if (received > 0) return static_cast<size_t>(received);
    if (received == 0) return absl::UnavailableError("closed its connection");
    if (WouldBlock(errno)) return 0;
    if (errno != EINTR) return absl::UnavailableError(ErrnoText("lost its connection", errno));
  }
}

absl::StatusOr<std::optional<Message>> Channel::Read(uint64_t max_bytes) {
  while (num_received_ < sizeof(Header)) {
    REPRISE_ASSIGN_OR_RETURN(const size_t received, Receive(reinterpret_cast<char*>(&received_header_) + num_received_,
                                                            sizeof(Header) - num_received_));
    if (received == 0) return std::nullopt;
    num_received_ += received;
  }
  const uint64_t num_bytes = received_header_.num_bytes;
  if (!IsKind(received_header_.kind) || num_bytes > max_bytes) {
    return absl::InternalError(absl::StrCat("sent bytes that are no message (kind ", received_header_.kind, ", ",
                                            num_bytes, " bytes, at most ", max_bytes, " are allowed)"));
  }
  while (num_received_ < sizeof(Header) + num_bytes) {
    const size_t have = num_received_ - sizeof(Header);
    if (have == received_.size()) received_.resize(std::min<size_t>(num_bytes, have + std::max(have, kBlockBytes)));
    REPRISE_ASSIGN_OR_RETURN(const size_t received, Receive(received_.data() + have, received_.size() - have));
    if (received == 0) return std::nullopt;
    num_received_ += received;
  }
  num_received_ = 0;
  return Message{static_cast<MessageKind>(received_header_.kind), std::exchange(received_, {})};
}

std::string NameOf(MessageKind kind) {
  switch (kind) {
    case MessageKind::kBegin:
      return "a begin message";
    case MessageKind::kData:
      return "a part of an exchange";
    case MessageKind::kAbort:
      return "an abort message";
    case MessageKind::kFailed:
      return "a notice of a failure";
    case MessageKind::kBroken:
      return "a notice of a broken rank";
    case MessageKind::kAgreed:
      return "an agreement";
    case MessageKind::kAsk:
      return "a question";
  }
  return "an unknown message";
}

std::string EncodeStatus(const absl::Status& status) {
  const int32_t code = status.raw_code();
  return absl::StrCat(std::string(reinterpret_cast<const char*>(&code), sizeof(code)), std::string(status.message()));
}

absl::Status DecodeStatus(const std::string& payload) {
  int32_t code = 0;
  std::memcpy(&code, payload.data(), std::min(sizeof(code), payload.size()));
  const absl::Status status(static_cast<absl::StatusCode>(code),
                            payload.substr(std::min(sizeof(code), payload.size())));
  return status.ok() ? absl::InternalError("gave up without a reason") : status;
}

void TellAll(absl::Span<Channel* const> channels, MessageKind kind, const std::string& text) {
  const auto payload = std::make_shared<const std::string>(text);
  std::vector<Channel*> open;
  for (Channel* channel : channels) {
    if (!channel->open()) continue;
    // In the middle of a message another one cannot be told from its bytes.
    if (channel->sending()) {
      channel->Close();
      continue;
    }
    channel->Queue(kind, payload);
    open.push_back(channel);
  }
  const Deadline deadline(kTellTime);
  while (true) {
    std::vector<pollfd> sockets;
    for (Channel* channel : open) {
      if (channel->sending() && !channel->Write().ok()) channel->Close();
      if (channel->open() && channel->sending()) sockets.push_back({channel->fd(), POLLOUT, 0});
    }
    if (sockets.empty() || !Poll(sockets, deadline)) return;
  }
}

}  // namespace reprise::internal
