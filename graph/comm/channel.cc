#include "graph/comm/channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

constexpr size_t kMostSent = size_t{1} << 20;  // at once
// Where nothing says when a connection is ready. An exchange is two messages one after the other.
constexpr absl::Duration kLookAgain = absl::Microseconds(100);
constexpr absl::Duration kTellTime = absl::Seconds(1);

class SocketConnection : public Connection {
 public:
  explicit SocketConnection(FileDescriptor socket) : socket_(std::move(socket)) {}

  absl::StatusOr<size_t> Send(absl::string_view bytes) override {
    return Moved([&] { return send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
  }
  absl::Status Receive(std::string& received) override {
    char bytes[1 << 16];
    ssize_t result = 1;
    REPRISE_ASSIGN_OR_RETURN(const size_t num_bytes,
                             Moved([&] { return result = recv(socket_.get(), bytes, sizeof(bytes), 0); }));
    if (result == 0) return absl::UnavailableError("closed its connection");
    received.append(bytes, num_bytes);
    return absl::OkStatus();
  }
  int poll_fd() const override { return socket_.get(); }

 private:
  // Bytes that a call moved, again after a signal; 0 if it would have to wait.
  template <class Call>
  static absl::StatusOr<size_t> Moved(const Call& call) {
    while (true) {
      const ssize_t moved = call();
      if (moved >= 0) return static_cast<size_t>(moved);
      if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
      if (errno != EINTR) return absl::UnavailableError(ErrnoText("lost its connection", errno));
    }
  }

  const FileDescriptor socket_;
};

}  // namespace

Channel::Channel(FileDescriptor socket) : Channel(std::make_unique<SocketConnection>(std::move(socket))) {}

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
    REPRISE_ASSIGN_OR_RETURN(const size_t sent, connection_->Send({bytes, std::min(left, kMostSent)}));
    if (sent == 0) return absl::OkStatus();
    if (sent > left) {
      return absl::InternalError(absl::StrCat("has a connection that took ", sent, " of ", left, " bytes"));
    }
    num_sent_ += sent;
    if (num_sent_ == sizeof(Header) + payload_->size()) payload_ = nullptr;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Message>> Channel::Read(uint64_t max_bytes) {
  while (true) {
    if (!received_header_.has_value() && received_.size() >= sizeof(Header)) {
      received_header_ = Header{};
      std::memcpy(&*received_header_, received_.data(), sizeof(Header));
      received_.erase(0, sizeof(Header));
    }
    if (received_header_.has_value()) {
      const auto [kind, reserved, num_bytes] = *received_header_;
      if (NameOf(static_cast<MessageKind>(kind)).empty() || num_bytes > max_bytes) {
        return absl::InternalError(absl::StrCat("sent bytes that are no message (kind ", kind, ", ", num_bytes,
                                                " bytes, at most ", max_bytes, " are allowed)"));
      }
      if (received_.size() >= num_bytes) {
        std::string rest = received_.substr(num_bytes);
        received_.resize(num_bytes);
        received_header_.reset();
        return Message{static_cast<MessageKind>(kind), std::exchange(received_, std::move(rest))};
      }
    }
    const size_t had = received_.size();
    REPRISE_RETURN_IF_ERROR(connection_->Receive(received_));
    if (received_.size() == had) return std::nullopt;
  }
}

bool Await(std::vector<pollfd>& channels, const Deadline& deadline) {
  const bool all_tell = std::all_of(channels.begin(), channels.end(), [](const pollfd& c) { return c.fd >= 0; });
  if (all_tell) return Poll(channels, deadline);
  if (deadline.passed()) return false;
  absl::SleepFor(std::min(deadline.left(), kLookAgain));
  return true;
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
  return "";
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
  const Deadline deadline(kTellTime);
  std::set<Channel*> untold(channels.begin(), channels.end());
  std::vector<pollfd> sockets;
  do {
    sockets.clear();
    for (Channel* channel : channels) {
      if (!channel->open()) continue;
      absl::Status written = channel->Write();
      if (written.ok() && !channel->sending() && untold.erase(channel) > 0) {
        channel->Queue(kind, payload);
        written = channel->Write();
      }
      if (!written.ok()) channel->Close();
      if (channel->open() && channel->sending()) sockets.push_back({channel->fd(), POLLOUT, 0});
    }
  } while (!sockets.empty() && Await(sockets, deadline));
  // In the middle of a message another one cannot be told from its bytes.
  for (Channel* channel : untold) channel->Close();
}

}  // namespace reprise::internal
