// The first bytes on a connection between ranks: who is there, of which job and version.
#ifndef REPRISE_GRAPH_COMM_HANDSHAKE_H_
#define REPRISE_GRAPH_COMM_HANDSHAKE_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/comm/file_descriptor.h"
#include "reprise/core/plan.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::internal {

// Grows with every change of what ranks send each other, here and in exchanged plans.
inline constexpr uint32_t kProtocolVersion = 3;

// Tells jobs apart. Random if ranks meet by a file, which holds it; otherwise of what all ranks know about the job.
using Nonce = Fingerprint;
Nonce RandomNonce();
Nonce NonceOf(const LaunchEnvironment& launch);

// Two magics, so that a connection which a system makes from a port to itself is not taken for rank 0.
inline constexpr std::array<char, 8> kRankMagic = {'R', 'e', 'p', 'R', 'a', 'n', 'k', '>'};
inline constexpr std::array<char, 8> kRank0Magic = {'<', 'R', 'e', 'p', 'Z', 'e', 'r', 'o'};

// Sent by each side first, and the same in every version. Rank 0 answers with its own only after it read a rank's.
struct Greeting {
  std::array<char, 8> magic = {};
  uint32_t version = kProtocolVersion;
  uint32_t rank = 0;
  uint64_t nonce_high = 0, nonce_low = 0;

  Nonce nonce() const { return {nonce_high, nonce_low}; }
};
// All that a rank sends: its greeting and, once it has heard that of rank 0, what this version adds. With that it
// stays: a rank that found the answer slow and left to come again has not sent it.
struct Hello {
  Greeting greeting;
  uint32_t size = 0, reserved = 0;
};
static_assert(sizeof(Greeting) == 32 && sizeof(Hello) == 40);

Greeting MakeGreeting(const std::array<char, 8>& magic, int rank, const Nonce& nonce);

// FailedPrecondition that names both versions and ranks.
absl::Status VersionMismatch(const Greeting& mine, const Greeting& other);

// Sends few bytes to a fresh connection; false if it does not take them at once.
bool SendNow(const FileDescriptor& socket, absl::string_view bytes);
// Reads what is there into `buffer`, up to `wanted` bytes in all. False if the other end closed or the connection
// broke.
bool ReceiveNow(const FileDescriptor& socket, std::string& buffer, size_t wanted);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_HANDSHAKE_H_
