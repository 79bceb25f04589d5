#include "graph/comm/handshake.h"

#include <sys/socket.h>

#include <cerrno>
#include <random>

#include "absl/strings/str_cat.h"
#include "core/model/hasher.h"

namespace reprise::internal {

Nonce RandomNonce() {
  std::random_device device;  // the system's generator
  const auto word = [&] { return (uint64_t{device()} << 32) | device(); };
  const uint64_t high = word();
  return {high, word()};
}

Nonce NonceOf(const LaunchEnvironment& launch) {
  Hasher hasher;
  hasher.Add(launch.job);
  hasher.Add(static_cast<uint64_t>(launch.port));
  return hasher.Finish();
}

Greeting MakeGreeting(const std::array<char, 8>& magic, int rank, const Nonce& nonce) {
  return {.magic = magic, .rank = static_cast<uint32_t>(rank), .nonce_high = nonce.high, .nonce_low = nonce.low};
}

absl::Status VersionMismatch(const Greeting& mine, const Greeting& other) {
  return absl::FailedPreconditionError(absl::StrCat("rank ", other.rank, " speaks version ", other.version,
                                                    " of the library's protocol, rank ", mine.rank, " version ",
                                                    mine.version, "; run one build of the program on all ranks"));
}

bool SendNow(const FileDescriptor& socket, absl::string_view bytes) {
  return send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

bool ReceiveNow(const FileDescriptor& socket, std::string& buffer, size_t wanted) {
  while (buffer.size() < wanted) {
    char bytes[sizeof(Hello)];
    const ssize_t received = recv(socket.get(), bytes, std::min(sizeof(bytes), wanted - buffer.size()), 0);
    if (received == 0) return false;
    if (received > 0) {
      buffer.append(bytes, static_cast<size_t>(received));
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

}  // namespace reprise::internal
