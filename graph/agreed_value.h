// A value that must be the same on all ranks, see Machine::Announce.
#ifndef REPRISE_GRAPH_AGREED_VALUE_H_
#define REPRISE_GRAPH_AGREED_VALUE_H_

#include <bit>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace reprise::internal {

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

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_AGREED_VALUE_H_
