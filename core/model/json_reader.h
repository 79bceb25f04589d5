// Reading the values of parsed JSON, field by field, with messages that start with the place: "calls[3].inputs[0]".
#ifndef REPRISE_CORE_MODEL_JSON_READER_H_
#define REPRISE_CORE_MODEL_JSON_READER_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace reprise::internal {

// InvalidArgument: the place, or that it is the whole text, and what is wrong there.
absl::Status JsonMistake(const std::string& place, const std::string& what);
absl::Status WrongJsonType(const nlohmann::json& value, const std::string& place, absl::string_view wanted);

// Reads the value that stands at `place`.
using JsonReader = std::function<absl::Status(const nlohmann::json& value, const std::string& place)>;

enum class Presence { kRequired, kOptional };

struct JsonField {
  const char* key;
  Presence presence;
  JsonReader read;
};

// Reads the fields in the order given, and refuses other keys.
absl::Status ReadJsonObject(const nlohmann::json& value, const std::string& place,
                            std::initializer_list<JsonField> fields);
// Reads the elements in order.
absl::Status ReadJsonList(const nlohmann::json& value, const std::string& place, const JsonReader& read_entry);
JsonReader JsonList(JsonReader read_entry);

// Readers of one value into `out`, which must outlive them.
JsonReader Into(std::string* out);
JsonReader Into(bool* out);
JsonReader Into(int64_t* out);
JsonReader Into(double* out);  // any number

}  // namespace reprise::internal

#endif  // REPRISE_CORE_MODEL_JSON_READER_H_
