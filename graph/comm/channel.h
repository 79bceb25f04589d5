// An open connection to another rank that carries messages: a kind, a length and bytes. Never blocks: reads and writes
// what the connection has or takes now and remembers where it was.
#ifndef REPRISE_GRAPH_COMM_CHANNEL_H_
#define REPRISE_GRAPH_COMM_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "graph/comm/deadline.h"
#include "graph/comm/file_descriptor.h"
#include "graph/comm/socket.h"
#include "reprise/graph/connection.h"

namespace reprise::internal {

enum class MessageKind : uint32_t {
  kBegin = 0x52505231,   // from rank 0: all ranks are connected. Empty.
  kData = 0x52505232,    // to rank 0: one rank's bytes; from rank 0: those of all
  kAbort = 0x52505233,   // the sender's status: it gave up
  kFailed = 0x52505234,  // a status: a rank failed, but goes on exchanging
  kBroken = 0x52505235,  // a status: collectives on a rank's device were made to leave
  kAgreed = 0x52505236,  // from rank 0: all ranks' bytes are the receiver's own. Empty.
  kAsk = 0x52505237,     // from rank 0, which waits for a rank's bytes: how many launches come before them
};

struct Message {
  MessageKind kind = MessageKind::kData;
  std::string payload;
};

class Channel {
 public:
  Channel() = default;
  explicit Channel(FileDescriptor socket);
  explicit Channel(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}

  // -1 if it is not open, or its connection has none.
  int fd() const { return open() ? connection_->poll_fd() : -1; }
  bool open() const { return connection_ != nullptr; }
  void Close() { connection_ = nullptr; }

  // One message at a time: call it only while !sending(). Write until !sending() then sends it.
  void Queue(MessageKind kind, std::shared_ptr<const std::string> payload);
  bool sending() const { return payload_ != nullptr; }
  // Unavailable if the connection is gone.
  absl::Status Write();

  // The next message, or nothing if it is not complete yet. Unavailable if the other end closed; Internal if what comes
  // is no message or longer than `max_bytes`. Memory grows with what has come, not with the length that is claimed.
  absl::StatusOr<std::optional<Message>> Read(uint64_t max_bytes);

 private:
  struct Header {
    uint32_t kind = 0, reserved = 0;
    uint64_t num_bytes = 0;
  };

  std::unique_ptr<Connection> connection_;
  Header sent_header_;
  size_t num_sent_ = 0;  // of the header and the payload together
  std::shared_ptr<const std::string> payload_;
  std::optional<Header> received_header_;
  std::string received_;  // after the header
};

// Waits until a channel of `channels`, each with what poll is to look for, may be ready; false once the deadline
// passed.
bool Await(std::vector<pollfd>& channels, const Deadline& deadline);

// For messages: "a begin message". Empty for what is no kind.
std::string NameOf(MessageKind kind);

// The payload of a kAbort message, and back.
std::string EncodeStatus(const absl::Status& status);
absl::Status DecodeStatus(const std::string& payload);

// Tells `channels`, as far as they listen: returns within a second whatever they do. A channel that is still in the
// middle of another message then is closed.
void TellAll(absl::Span<Channel* const> channels, MessageKind kind, const std::string& text);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_CHANNEL_H_
