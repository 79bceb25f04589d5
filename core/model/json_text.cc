#include "core/model/json_text.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using nlohmann::json;

// Not less than json takes for each, with the allocator's own bytes and what a growing list holds twice (on 64 bits,
// with libstdc++ and glibc; a test compares).
constexpr int64_t kBytesPerValue = 48, kBytesPerContainer = 64, kBytesPerMember = 96, kBytesPerString = 72;

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
  bool start_object(size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }

  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return Stop(absl::StrCat("the key ", Quoted(name), " stands twice in one object; keep one of them"));
  }

  bool parse_error(size_t position, const std::string& last_token, const nlohmann::detail::exception&) override {
    return Stop(absl::StrCat("no valid JSON at byte ", position, ", near ", Quoted(last_token), "; correct the text"));
  }

 private:
  bool Stop(const std::string& what) {
    status_ = absl::InvalidArgumentError(absl::StrCat("JSON text: ", what));
    return false;
  }

  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  absl::Status status_;
};

// Follows a text by its quotes, brackets, commas and colons alone.
class Scanner {
 public:
  Scanner(absl::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  absl::Status Run() {
    for (; position_ < text_.size(); ++position_) {
      REPRISE_RETURN_IF_ERROR(Step(text_[position_]));
      if (memory_ > limits_.memory_bytes) {
        return Excess(absl::StrCat("the values take more than ", limits_.memory_bytes, " bytes of memory"));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Step(char character) {
    switch (character) {
      case '"':
        return SkipString();
      case '[':
      case '{':
        memory_ += kBytesPerContainer + kBytesPerValue;  // the latter for its first entry
        entries_.push_back(1);
        if (static_cast<int64_t>(entries_.size()) <= limits_.depth) return absl::OkStatus();
        return Excess(absl::StrCat("lists and objects are nested deeper than ", limits_.depth));
      case ']':
      case '}':
        if (!entries_.empty()) entries_.pop_back();
        return absl::OkStatus();
      case ',':
        memory_ += kBytesPerValue;
        if (entries_.empty() || ++entries_.back() <= limits_.entries) return absl::OkStatus();
        return Excess(absl::StrCat("one list or object has more than ", limits_.entries, " entries"));
      case ':':
        memory_ += kBytesPerMember;
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  }

  // Ends at the closing quote, or at the end of the text.
  absl::Status SkipString() {
    const size_t begin = ++position_;
    for (; position_ < text_.size() && text_[position_] != '"'; ++position_) {
      if (text_[position_] == '\\') ++position_;
      if (static_cast<int64_t>(position_ - begin) < limits_.string_bytes) continue;
      position_ = begin - 1;
      return Excess(absl::StrCat("a string is longer than ", limits_.string_bytes, " bytes"));
    }
    memory_ += kBytesPerString + static_cast<int64_t>(position_ - begin);
    return absl::OkStatus();
  }

  absl::Status Excess(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON text: ", what, " at byte ", position_ + 1, " of ", text_.size(), "; give a smaller file"));
  }

  const absl::string_view text_;
  const JsonLimits limits_;
  size_t position_ = 0;
  std::vector<int64_t> entries_;  // so far, of the lists and objects that are open
  int64_t memory_ = 0;            // of what was seen
};

}  // namespace

absl::Status CheckJsonLimits(absl::string_view text, const JsonLimits& limits) { return Scanner(text, limits).Run(); }

absl::StatusOr<json> ParseJson(absl::string_view text, const JsonLimits& limits) {
  // The parser takes a NUL for the end of the text.
  if (const size_t nul = text.find('\0'); nul != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON text: byte ", nul + 1, " of ", text.size(), " is a NUL; remove it"));
  }
  REPRISE_RETURN_IF_ERROR(CheckJsonLimits(text, limits));
  Checker checker;
  json::sax_parse(text.begin(), text.end(), &checker);
  REPRISE_RETURN_IF_ERROR(checker.status());
  return json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace reprise::internal
