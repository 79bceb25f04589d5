#include "core/model/json_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

using nlohmann::json;

absl::Status JsonMistake(const std::string& place, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(place.empty() ? "JSON text" : place, ": ", what));
}

absl::Status WrongJsonType(const json& value, const std::string& place, absl::string_view wanted) {
  return JsonMistake(place, absl::StrCat("is of type ", value.type_name(), "; give ", wanted));
}

absl::Status ReadJsonObject(const json& value, const std::string& place, std::initializer_list<JsonField> fields) {
  if (!value.is_object()) return WrongJsonType(value, place, "an object");
  for (const auto& member : value.items()) {
    const auto known = [&](const JsonField& field) { return field.key == member.key(); };
    if (std::any_of(fields.begin(), fields.end(), known)) continue;
    return JsonMistake(place, absl::StrCat("unknown key ", Quoted(member.key()), "; the keys are ",
                                           absl::StrJoin(fields, ", ", [](std::string* out, const JsonField& field) {
                                             absl::StrAppend(out, field.key);
                                           })));
  }
  for (const JsonField& field : fields) {
    const auto found = value.find(field.key);
    if (found != value.end()) {
      REPRISE_RETURN_IF_ERROR(field.read(*found, absl::StrCat(place, place.empty() ? "" : ".", field.key)));
    } else if (field.presence == Presence::kRequired) {
      return JsonMistake(place, absl::StrCat("the key \"", field.key, "\" is missing; add it"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadJsonList(const json& value, const std::string& place, const JsonReader& read_entry) {
  if (!value.is_array()) return WrongJsonType(value, place, "a list");
  for (size_t i = 0; i < value.size(); ++i) {
    REPRISE_RETURN_IF_ERROR(read_entry(value[i], absl::StrCat(place, "[", i, "]")));
  }
  return absl::OkStatus();
}

JsonReader JsonList(JsonReader read_entry) {
  return [read_entry = std::move(read_entry)](const json& value, const std::string& place) {
    return ReadJsonList(value, place, read_entry);
  };
}

JsonReader Into(std::string* out) {
  return [out](const json& value, const std::string& place) {
    if (!value.is_string()) return WrongJsonType(value, place, "a string");
    *out = value.get_ref<const std::string&>();
    return absl::OkStatus();
  };
}

JsonReader Into(bool* out) {
  return [out](const json& value, const std::string& place) {
    if (!value.is_boolean()) return WrongJsonType(value, place, "true or false");
    *out = value.get<bool>();
    return absl::OkStatus();
  };
}

JsonReader Into(int64_t* out) {
  return [out](const json& value, const std::string& place) {
    // Integers beyond uint64 arrive as floating-point.
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    constexpr char kWanted[] = "an integer that fits 64 bits with sign";
    if (!fits && value.is_number()) return JsonMistake(place, absl::StrCat("is ", value.dump(), "; give ", kWanted));
    if (!fits) return WrongJsonType(value, place, kWanted);
    *out = value.get<int64_t>();
    return absl::OkStatus();
  };
}

JsonReader Into(double* out) {
  return [out](const json& value, const std::string& place) {
    if (!value.is_number()) return WrongJsonType(value, place, "a number");
    *out = value.get<double>();
    return absl::OkStatus();
  };
}

}  // namespace reprise::internal
