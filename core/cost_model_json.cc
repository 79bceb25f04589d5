// Cost models from files: their own form, or what a benchmark measured.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/json_reader.h"
#include "core/json_text.h"
#include "core/quoted.h"
#include "reprise/core/cost_model.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

using internal::Into;
using internal::JsonMistake;
using internal::JsonReader;
using internal::OtherKeys;
using internal::Presence;
using internal::ReadJsonObject;
using nlohmann::json;

enum class Zero { kRefused, kAllowed };

JsonReader IntoFigure(double* out, Zero zero) {
  return [out, zero](const json& value, const std::string& place) -> absl::Status {
    REPRISE_RETURN_IF_ERROR(Into(out)(value, place));
    if (*out > 0 || (*out == 0 && zero == Zero::kAllowed)) return absl::OkStatus();
    return JsonMistake(place, absl::StrCat("is ", value.dump(), "; give a number ",
                                           zero == Zero::kAllowed ? "of at least 0" : "above 0"));
  };
}

absl::Status ReadCalls(const json& value, const std::string& place, std::map<std::string, CallFlops>& calls) {
  if (!value.is_object()) return internal::WrongJsonType(value, place, "an object");
  for (const auto& member : value.items()) {
    CallFlops& flops = calls[member.key()];
    REPRISE_RETURN_IF_ERROR(
        ReadJsonObject(member.value(), absl::StrCat(place, "[", internal::Quoted(member.key()), "]"),
                       {{"forward", Presence::kOptional, IntoFigure(&flops.forward, Zero::kAllowed)},
                        {"backward", Presence::kOptional, IntoFigure(&flops.backward, Zero::kAllowed)}}));
  }
  return absl::OkStatus();
}

absl::StatusOr<CostModel> ReadFields(const json& value) {
  CostModel costs;
  const JsonReader calls = [&](const json& names, const std::string& place) {
    return ReadCalls(names, place, costs.calls);
  };
  REPRISE_RETURN_IF_ERROR(
      ReadJsonObject(value, "",
                     {{"flops", Presence::kOptional, IntoFigure(&costs.flops, Zero::kRefused)},
                      {"memory_bytes", Presence::kOptional, IntoFigure(&costs.memory_bytes, Zero::kRefused)},
                      {"gather_bytes", Presence::kOptional, IntoFigure(&costs.gather_bytes, Zero::kRefused)},
                      {"reduce_bytes", Presence::kOptional, IntoFigure(&costs.reduce_bytes, Zero::kRefused)},
                      {"collective_us", Presence::kOptional, IntoFigure(&costs.collective_us, Zero::kAllowed)},
                      {"command_us", Presence::kOptional, IntoFigure(&costs.command_us, Zero::kAllowed)},
                      {"calls", Presence::kOptional, calls}}));
  return costs;
}

// A figure of 0 was not measured.
absl::StatusOr<CostModel> ReadFigures(const json& value, const std::string& place) {
  double teraflops = 0, gather_gb = 0, reduce_gb = 0;  // the best of the list
  REPRISE_RETURN_IF_ERROR(internal::ReadJsonList(value, place, [&](const json& entry, const std::string& where) {
    std::string mode;
    double its_teraflops = 0, its_gather_gb = 0, its_reduce_gb = 0;
    REPRISE_RETURN_IF_ERROR(
        ReadJsonObject(entry, where,
                       {{"mode", Presence::kRequired, Into(&mode)},
                        {"teraflops", Presence::kRequired, IntoFigure(&its_teraflops, Zero::kAllowed)},
                        {"gather_gb_per_s", Presence::kOptional, IntoFigure(&its_gather_gb, Zero::kAllowed)},
                        {"reduce_gb_per_s", Presence::kOptional, IntoFigure(&its_reduce_gb, Zero::kAllowed)}},
                       OtherKeys::kIgnored));
    if (mode == "local") teraflops = std::max(teraflops, its_teraflops);
    gather_gb = std::max(gather_gb, its_gather_gb);
    reduce_gb = std::max(reduce_gb, its_reduce_gb);
    return absl::OkStatus();
  }));
  CostModel costs;
  if (teraflops > 0) costs.flops = teraflops * 1e12;
  if (gather_gb > 0) costs.gather_bytes = gather_gb * 1e9;
  if (reduce_gb > 0) costs.reduce_bytes = reduce_gb * 1e9;
  if (teraflops > 0 || gather_gb > 0 || reduce_gb > 0) return costs;
  return JsonMistake(
      place, absl::StrCat("none of the ", value.size(),
                          " measurements is of the mode local or has a bandwidth; run step_bench with --modes=local "
                          "among others, or with --profile"));
}

}  // namespace

absl::StatusOr<CostModel> CostModelFromJson(absl::string_view text) {
  REPRISE_ASSIGN_OR_RETURN(const json value, internal::ParseJson(text));
  if (value.is_array()) return ReadFigures(value, "");
  if (value.is_object() && value.contains("figures")) return ReadFigures(value["figures"], "figures");
  return ReadFields(value);
}

}  // namespace reprise
