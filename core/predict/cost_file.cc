#include "reprise/core/cost_file.h"

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/model/json_reader.h"
#include "core/model/json_text.h"
#include "core/model/quoted.h"
#include "core/predict/timeline_checks.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::Into;
using internal::JsonMistake;
using internal::JsonReader;
using internal::Presence;
using internal::Quoted;
using internal::ReadJsonObject;
using nlohmann::json;

constexpr int kVersion = 1;

JsonReader IntoRanks(std::optional<int>* out) {
  return [out](const json& value, const std::string& place) -> absl::Status {
    int64_t ranks = 0;
    REPRISE_RETURN_IF_ERROR(Into(&ranks)(value, place));
    if (ranks < 1 || ranks > std::numeric_limits<int>::max()) {
      return JsonMistake(place, absl::StrCat("is ", ranks, "; give the number of ranks that was measured"));
    }
    *out = static_cast<int>(ranks);
    return absl::OkStatus();
  };
}

// An object with any keys, whose values `reader` reads into those of `out`.
template <class Value, class Reader>
JsonReader IntoMap(std::map<std::string, Value>* out, Reader reader) {
  return [=](const json& value, const std::string& place) -> absl::Status {
    if (!value.is_object()) return internal::WrongJsonType(value, place, "an object");
    for (const auto& member : value.items()) {
      const std::string where = absl::StrCat(place, "[", Quoted(member.key()), "]");
      REPRISE_RETURN_IF_ERROR(reader((*out)[member.key()])(member.value(), where));
    }
    return absl::OkStatus();
  };
}

JsonReader IntoCosts(CostModel* out) {
  const auto call = [](CallFlops& flops) -> JsonReader {
    return [&flops](const json& value, const std::string& place) {
      return ReadJsonObject(value, place,
                            {{"forward", Presence::kOptional, Into(&flops.forward)},
                             {"backward", Presence::kOptional, Into(&flops.backward)}});
    };
  };
  return [=](const json& value, const std::string& place) -> absl::Status {
    if (value.is_object() && value.contains("gather_bandwidth") && value.contains("reduce_bandwidth"))
      out->ranks.reset();
    return ReadJsonObject(value, place,
                          {{"flops", Presence::kOptional, Into(&out->flops)},
                           {"memory_bandwidth", Presence::kOptional, Into(&out->memory_bandwidth)},
                           {"gather_bandwidth", Presence::kOptional, Into(&out->gather_bandwidth)},
                           {"reduce_bandwidth", Presence::kOptional, Into(&out->reduce_bandwidth)},
                           {"collective_us", Presence::kOptional, Into(&out->collective_us)},
                           {"command_us", Presence::kOptional, Into(&out->command_us)},
                           {"ranks", Presence::kOptional, IntoRanks(&out->ranks)},
                           {"calls", Presence::kOptional, IntoMap(&out->calls, call)}});
  };
}

JsonReader IntoTexts(std::map<std::string, std::string>* out) {
  return IntoMap(out, [](std::string& text) { return Into(&text); });
}

JsonReader IntoTransports(std::vector<TransportChoice>* out) {
  return [out](const json& value, const std::string& place) -> absl::Status {
    std::string text;
    REPRISE_RETURN_IF_ERROR(Into(&text)(value, place));
    absl::StatusOr<std::vector<TransportChoice>> choices = TransportChoicesFromText(text);
    if (!choices.ok()) return JsonMistake(place, std::string(choices.status().message()));
    if (choices->empty()) return JsonMistake(place, "names no transport; leave it out");
    *out = *std::move(choices);
    return absl::OkStatus();
  };
}

}  // namespace

std::string DifferenceOf(const MachineFacts& there, const MachineFacts& here) {
  MachineFacts all = there;
  all.insert(here.begin(), here.end());
  for (const auto& [name, value] : all) {
    const auto theirs = there.find(name), ours = here.find(name);
    if (theirs != there.end() && ours != here.end() && theirs->second == ours->second) continue;
    return absl::StrCat(Quoted(name), " is ", theirs == there.end() ? "unset" : Quoted(theirs->second), " there but ",
                        ours == here.end() ? "unset" : Quoted(ours->second), " here");
  }
  return "";
}

std::string ToJson(const CostFile& file) {
  nlohmann::ordered_json out = {{"version", kVersion}, {"device", file.device}, {"job", file.job}};
  const CostModel& costs = file.costs;
  out["costs"] = {{"flops", costs.flops},
                  {"memory_bandwidth", costs.memory_bandwidth},
                  {"gather_bandwidth", costs.gather_bandwidth},
                  {"reduce_bandwidth", costs.reduce_bandwidth},
                  {"collective_us", costs.collective_us},
                  {"command_us", costs.command_us}};
  if (costs.ranks.has_value()) out["costs"]["ranks"] = *costs.ranks;
  for (const auto& [name, flops] : costs.calls) {
    out["costs"]["calls"][name] = {{"forward", flops.forward}, {"backward", flops.backward}};
  }
  if (!file.transports.empty()) out["transports"] = ToText(file.transports);
  out["gemms"] = file.gemms;
  // Names and settings may hold any bytes.
  return out.dump(1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace) + "\n";
}

absl::StatusOr<CostFile> CostFileFromJson(absl::string_view text) {
  REPRISE_ASSIGN_OR_RETURN(const json value, internal::ParseJson(text));
  // Before the keys, of which another version may have others.
  if (value.is_object() && value.contains("version") && value["version"] != kVersion) {
    return JsonMistake("version", absl::StrCat("is ", Quoted(value["version"].dump()), ", but only ", kVersion,
                                               " can be read; measure anew"));
  }
  CostFile file;
  int64_t version = 0;
  REPRISE_RETURN_IF_ERROR(ReadJsonObject(value, "",
                                         {{"version", Presence::kRequired, Into(&version)},
                                          {"device", Presence::kOptional, IntoTexts(&file.device)},
                                          {"job", Presence::kOptional, IntoTexts(&file.job)},
                                          {"costs", Presence::kOptional, IntoCosts(&file.costs)},
                                          {"transports", Presence::kOptional, IntoTransports(&file.transports)},
                                          {"gemms", Presence::kOptional, IntoTexts(&file.gemms)}}));
  REPRISE_RETURN_IF_ERROR(internal::CheckFigures(file.costs));
  return file;
}

}  // namespace reprise
