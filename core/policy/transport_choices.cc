#include "core/policy/transport_choices.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/model/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

constexpr Transport kTransports[] = {Transport::kDefault, Transport::kSymmetric, Transport::kCopyEngine};

bool FromName(absl::string_view name, Transport& transport) {
  for (const Transport known : kTransports) {
    if (Name(known) != name) continue;
    transport = known;
    return true;
  }
  return false;
}

// Digits alone: SimpleAtoi takes signs and spaces too.
bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c); });
}

}  // namespace

std::string ToText(const std::vector<TransportChoice>& choices) {
  return absl::StrJoin(choices, ",", [](std::string* text, const TransportChoice& choice) {
    if (choice.unit_bytes > 0) absl::StrAppend(text, choice.unit_bytes, ":");
    absl::StrAppend(text, std::string(Name(choice.transport)));
  });
}

Transport TransportOf(const Plan& plan, UnitId unit) {
  if (plan.options.transport != Transport::kAuto) return plan.options.transport;
  Transport transport = Transport::kDefault;
  for (const TransportChoice& choice : plan.options.transport_choices) {
    if (plan.layout.units[unit.value()].gathered_bytes >= choice.unit_bytes) transport = choice.transport;
  }
  return transport;
}

absl::StatusOr<std::vector<TransportChoice>> TransportChoicesFromText(absl::string_view text) {
  std::vector<TransportChoice> choices;
  if (text == Name(Transport::kAuto)) return choices;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> words = absl::StrSplit(part, ':');
    if (words.size() == 1 && !choices.empty() && FromName(part, choices.back().transport)) {
      return absl::InvalidArgumentError(absl::StrCat(
          internal::Quoted(std::string(part)), " in ", internal::Quoted(std::string(text)),
          " lacks the bytes of the smallest unit that uses it; give them, as in 4194304:", std::string(part)));
    }
    TransportChoice& choice = choices.emplace_back();
    const bool ok =
        words.size() <= 2 && FromName(words.back(), choice.transport) &&
        (words.size() == 1 || (IsNumber(words.front()) && absl::SimpleAtoi(words.front(), &choice.unit_bytes)));
    if (ok) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        internal::Quoted(std::string(part)), " in ", internal::Quoted(std::string(text)),
        " is no transport with bytes; give auto, default, symmetric or copy_engine, or several of the last three, "
        "each after the bytes of the smallest unit that uses it, as in symmetric,4194304:copy_engine"));
  }
  REPRISE_RETURN_IF_ERROR(internal::CheckTransportChoices(choices));
  return choices;
}

namespace internal {

absl::Status CheckTransportChoices(const std::vector<TransportChoice>& choices) {
  int64_t before = -1;
  for (const auto& [unit_bytes, transport] : choices) {
    if (std::find(std::begin(kTransports), std::end(kTransports), transport) == std::end(kTransports)) {
      return absl::InvalidArgumentError(
          absl::StrCat("transport_choices has ",
                       transport == Transport::kAuto
                           ? std::string("kAuto")
                           : absl::StrCat("transport ", static_cast<int>(transport), ", which does not exist,"),
                       " from ", unit_bytes, " bytes on; give kDefault, kSymmetric or kCopyEngine"));
    }
    if (unit_bytes <= before) {
      return absl::InvalidArgumentError(absl::StrCat("transport_choices has ", unit_bytes, " bytes",
                                                     before < 0 ? "" : absl::StrCat(" after ", before),
                                                     "; give 0 or more, ascending and all different"));
    }
    before = unit_bytes;
  }
  return absl::OkStatus();
}

}  // namespace internal
}  // namespace reprise
