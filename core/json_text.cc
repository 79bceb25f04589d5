#include "core/json_text.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 16;

// Receives the text piece by piece and stops at what json::parse would accept silently or without a place.
class Checker : public json::json_sax_t {
 public:
  const absl::Status& status() const { return status_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return Stop(absl::StrCat("the key ", Quoted(name), " stands twice in one object; keep one of them"));
  }

  bool parse_error(size_t position, const std::string& last_token, const nlohmann::detail::exception&) override {
    return Stop(absl::StrCat("no valid JSON at byte ", position, ", near ", Quoted(last_token), "; correct the text"));
  }

 private:
  bool Open() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxDepth) return true;
    return Stop(absl::StrCat("lists and objects are nested deeper than ", kMaxDepth, "; no file of ours is"));
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }
  bool Stop(const std::string& what) {
    status_ = absl::InvalidArgumentError(absl::StrCat("JSON text: ", what));
    return false;
  }

  std::vector<std::set<std::string>> keys_;  // of the objects and lists that are open
  absl::Status status_;
};

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text) {
  // The parser takes a NUL for the end of the text.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON text: byte ", nul + 1, " of ", text.size(), " is a NUL; remove it"));
  }
  Checker checker;
  json::sax_parse(text.begin(), text.end(), &checker);
  REPRISE_RETURN_IF_ERROR(checker.status());
  return json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace reprise::internal
