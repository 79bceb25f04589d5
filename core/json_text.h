// Strict parsing of JSON text from files.
#ifndef REPRISE_CORE_JSON_TEXT_H_
#define REPRISE_CORE_JSON_TEXT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace reprise::internal {

// The value of a JSON text. InvalidArgument, with the byte or key, for malformed text, a NUL byte, a key that an object
// holds twice, or nesting deeper than 16.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_JSON_TEXT_H_
