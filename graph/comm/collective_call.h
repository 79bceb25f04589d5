// What a rank says with its part of every exchange: which collective call it makes, and what it launched before. Ranks
// that differ in either would take each other's bytes for what they are not.
#ifndef REPRISE_GRAPH_COMM_COLLECTIVE_CALL_H_
#define REPRISE_GRAPH_COMM_COLLECTIVE_CALL_H_

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace reprise::internal {

// The launches of a rank so far. They are not exchanges, so that only the next exchange compares them.
struct Launches {
  uint64_t count = 0;
  uint64_t hash = 0;  // of their keys, in order
  std::string last = {};

  void Add(uint64_t key, absl::string_view what);
};

// One rank's part of an exchange.
struct CallPart {
  // The call, for people and, up to the end of its first line, as its name.
  std::string what;
  Launches launches = {};
  std::string bytes = {};
};
std::string EncodePart(absl::string_view what, const Launches& launches, absl::string_view bytes);
// Internal, naming `rank`, for bytes that are no part.
absl::StatusOr<CallPart> DecodePart(int rank, const std::string& encoded);
// More than a part is longer than its bytes.
inline constexpr uint64_t kMaxPartHeader = uint64_t{1} << 16;

bool SameLaunches(absl::Span<const CallPart> by_rank);
// OK if all ranks make the same call after the same launches; otherwise FailedPrecondition, the same on every rank,
// with the calls of all.
absl::Status CheckSameCall(absl::Span<const CallPart> by_rank);

// A value that must be the same on all ranks.
struct AgreedValue {
  enum class Kind : uint8_t { kInteger, kReal, kHash };

  static AgreedValue Integer(absl::string_view name, int64_t value) {
    return {name, Kind::kInteger, static_cast<uint64_t>(value)};
  }
  static AgreedValue Real(absl::string_view name, double value) {
    return {name, Kind::kReal, std::bit_cast<uint64_t>(value)};
  }
  static AgreedValue Hash(absl::string_view name, uint64_t value) { return {name, Kind::kHash, value}; }

  absl::string_view name;  // for people; must outlive the announcement, so that a literal is best
  Kind kind = Kind::kInteger;
  uint64_t bits = 0;  // compared bit by bit
  // Ranks of which this differs launch different things: they do not go on until Announced says so.
  bool decides_launches = false;

  AgreedValue DecidingLaunches() const {
    AgreedValue deciding = *this;
    deciding.decides_launches = true;
    return deciding;
  }
};

// The bytes of an announcement: how this rank fares, and values.
std::string EncodeValues(const absl::Status& mine, absl::Span<const AgreedValue> values);
// After CheckSameCall. FailedPrecondition, the same on every rank, that names the ranks which failed, or each value
// that differs with its values. `values` are this rank's, for names and kinds. `same_launches`: what
// differs does not keep ranks from launching the same.
absl::Status CheckValues(absl::Span<const CallPart> by_rank, absl::Span<const AgreedValue> values, bool& same_launches);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_COLLECTIVE_CALL_H_
