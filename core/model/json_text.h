// Strict parsing of JSON text from files.
#ifndef REPRISE_CORE_MODEL_JSON_TEXT_H_
#define REPRISE_CORE_MODEL_JSON_TEXT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace reprise::internal {

// What a text may hold at most.
struct JsonLimits {
  int64_t depth = 16;                       // of lists and objects in one another
  int64_t entries = int64_t{1} << 20;       // of one list or object
  int64_t string_bytes = int64_t{1} << 16;  // of one string or key, as it stands in the text
  int64_t memory_bytes = int64_t{1} << 30;  // for all values: up to 30 times the bytes of the text
};

// Goes over the text once, before any value is made, and takes next to no memory. InvalidArgument, with the byte and
// the limit, at the first excess; other mistakes are not seen.
absl::Status CheckJsonLimits(absl::string_view text, const JsonLimits& limits);

// The value of a JSON text. InvalidArgument, with the byte or key, for malformed text, a NUL byte, a key that an object
// holds twice, or an excess over the limits.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, const JsonLimits& limits = {});

}  // namespace reprise::internal

#endif  // REPRISE_CORE_MODEL_JSON_TEXT_H_
