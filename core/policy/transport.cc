#include "reprise/core/transport.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/model/quoted.h"
#include "core/policy/transport_checks.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

constexpr absl::string_view kAuto = "auto";

bool FromName(absl::string_view name, Transport& transport) {
  const auto found = std::find_if(kTransports.begin(), kTransports.end(),
                                  [&](const TransportTraits& traits) { return traits.name == name; });
  if (found == kTransports.end()) return false;
  transport = found->transport;
  return true;
}

// "symmetric", or "copy_engine/symmetric".
bool FromText(absl::string_view text, UnitTransports& transports) {
  const std::vector<absl::string_view> names = absl::StrSplit(text, '/');
  return names.size() <= 2 && FromName(names.front(), transports.gather) && FromName(names.back(), transports.exchange);
}

std::string NameList() {
  std::vector<absl::string_view> names;
  for (const TransportTraits& traits : kTransports) names.push_back(traits.name);
  return absl::StrJoin(names, ", ");
}

}  // namespace

absl::string_view Name(Transport transport) { return IsKnown(transport) ? TraitsOf(transport).name : "unknown"; }

absl::string_view Name(Sum sum) {
  switch (sum) {
    case Sum::kRankOrder:
      return "rank_order";
    case Sum::kNccl:
      return "nccl";
  }
  return "unknown";
}

std::vector<TransportChoice> EveryUnit(UnitTransports transports) { return {{0, transports}}; }

UnitTransports TransportsFor(const std::vector<TransportChoice>& choices, int64_t unit_bytes) {
  UnitTransports transports;
  for (const TransportChoice& choice : choices) {
    if (unit_bytes >= choice.unit_bytes) transports = choice.transports;
  }
  return transports;
}

std::string ToText(const std::vector<TransportChoice>& choices) {
  if (choices.empty()) return std::string(kAuto);
  return absl::StrJoin(choices, ",", [](std::string* text, const TransportChoice& choice) {
    const auto& [gather, exchange] = choice.transports;
    if (choice.unit_bytes > 0) absl::StrAppend(text, choice.unit_bytes, ":");
    absl::StrAppend(text, Name(gather));
    if (exchange != gather) absl::StrAppend(text, "/", Name(exchange));
  });
}

absl::StatusOr<std::vector<TransportChoice>> TransportChoicesFromText(absl::string_view text) {
  std::vector<TransportChoice> choices;
  if (text == kAuto) return choices;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> words = absl::StrSplit(part, ':');
    if (words.size() == 1 && !choices.empty() && FromText(part, choices.back().transports)) {
      return absl::InvalidArgumentError(absl::StrCat(
          internal::Quoted(std::string(part)), " in ", internal::Quoted(std::string(text)),
          " lacks the bytes of the smallest unit that uses it; give them, as in 4194304:", std::string(part)));
    }
    TransportChoice& choice = choices.emplace_back();
    const bool ok = words.size() <= 2 && FromText(words.back(), choice.transports) &&
                    (words.size() == 1 || (absl::SimpleAtoi(words.front(), &choice.unit_bytes) &&
                                           choice.unit_bytes >= 0 && absl::StrCat(choice.unit_bytes) == words.front()));
    if (ok) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        internal::Quoted(std::string(part)), " in ", internal::Quoted(std::string(text)),
        " is no transport with bytes; give ", kAuto, ", or one of ", NameList(),
        ", or two with / between them for gathers and exchanges, or several after the bytes of the smallest unit that "
        "uses each, as in symmetric,4194304:copy_engine"));
  }
  // That a sum is possible is for the planner to say, which knows it.
  REPRISE_RETURN_IF_ERROR(internal::CheckTransportChoices(choices, Sum::kRankOrder));
  return choices;
}

namespace internal {

absl::Status CheckTransportChoices(const std::vector<TransportChoice>& choices, Sum sum) {
  int64_t before = -1;
  for (const auto& [unit_bytes, transports] : choices) {
    for (const Transport transport : {transports.gather, transports.exchange}) {
      if (IsKnown(transport)) continue;
      return absl::InvalidArgumentError(absl::StrCat("transports has transport ", static_cast<int>(transport),
                                                     ", which does not exist, from ", unit_bytes, " bytes on; give ",
                                                     NameList()));
    }
    if (sum == Sum::kNccl && !TraitsOf(transports.exchange).adds) {
      return absl::InvalidArgumentError(
          absl::StrCat("units from ", unit_bytes, " bytes on are exchanged by ", Name(transports.exchange),
                       ", which cannot add as sum = ", Name(sum), "; exchange by ", Name(Transport::kNccl),
                       ", or leave sum at ", Name(Sum::kRankOrder)));
    }
    if (unit_bytes <= before) {
      return absl::InvalidArgumentError(absl::StrCat("transports has ", unit_bytes, " bytes",
                                                     before < 0 ? "" : absl::StrCat(" after ", before),
                                                     "; give 0 or more, ascending and all different"));
    }
    before = unit_bytes;
  }
  return absl::OkStatus();
}

}  // namespace internal
}  // namespace reprise
