// Cost models from files: their own form, or what a benchmark measured.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/model/json_reader.h"
#include "core/model/json_text.h"
#include "core/model/quoted.h"
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

absl::StatusOr<CostModel> ReadFields(const json& value) {
  CostModel costs;
  if (value.is_object() && value.contains("gather_bandwidth") && value.contains("reduce_bandwidth"))
    costs.ranks.reset();
  const JsonReader calls = [&](const json& names, const std::string& place) {
    return ReadCalls(names, place, costs.calls);
  };
  REPRISE_RETURN_IF_ERROR(
      ReadJsonObject(value, "",
                     {{"flops", Presence::kOptional, IntoFigure(&costs.flops, Zero::kRefused)},
                      {"memory_bandwidth", Presence::kOptional, IntoFigure(&costs.memory_bandwidth, Zero::kRefused)},
                      {"gather_bandwidth", Presence::kOptional, IntoFigure(&costs.gather_bandwidth, Zero::kRefused)},
                      {"reduce_bandwidth", Presence::kOptional, IntoFigure(&costs.reduce_bandwidth, Zero::kRefused)},
                      {"collective_us", Presence::kOptional, IntoFigure(&costs.collective_us, Zero::kAllowed)},
                      {"command_us", Presence::kOptional, IntoFigure(&costs.command_us, Zero::kAllowed)},
                      {"ranks", Presence::kOptional, IntoRanks(&costs.ranks)},
                      {"calls", Presence::kOptional, calls}}));
  return costs;
}

// The best of the list so far, and the ranks that it was measured with. A figure of 0 was not measured.
struct Bandwidth {
  double gb_per_s = 0;
  std::optional<int> ranks = {};

  void Improve(double its_gb_per_s, std::optional<int> its_ranks) {
    if (its_gb_per_s > gb_per_s) *this = {its_gb_per_s, its_ranks};
  }
};

absl::StatusOr<CostModel> ReadFigures(const json& value, const std::string& place) {
  double teraflops = 0;
  Bandwidth gather, reduce;
  REPRISE_RETURN_IF_ERROR(internal::ReadJsonList(value, place, [&](const json& entry, const std::string& where) {
    std::string mode;
    double its_teraflops = 0, its_gather_gb = 0, its_reduce_gb = 0;
    std::optional<int> ranks;
    REPRISE_RETURN_IF_ERROR(
        ReadJsonObject(entry, where,
                       {{"mode", Presence::kRequired, Into(&mode)},
                        {"ranks", Presence::kOptional, IntoRanks(&ranks)},
                        {"teraflops", Presence::kRequired, IntoFigure(&its_teraflops, Zero::kAllowed)},
                        {"gather_gb_per_s", Presence::kOptional, IntoFigure(&its_gather_gb, Zero::kAllowed)},
                        {"reduce_gb_per_s", Presence::kOptional, IntoFigure(&its_reduce_gb, Zero::kAllowed)}},
                       OtherKeys::kIgnored));
    if (mode == "local") teraflops = std::max(teraflops, its_teraflops);
    gather.Improve(its_gather_gb, ranks);
    reduce.Improve(its_reduce_gb, ranks);
    return absl::OkStatus();
  }));
  CostModel costs;
  if (teraflops > 0) costs.flops = teraflops * 1e12;
  if (gather.gb_per_s > 0) costs.gather_bandwidth = gather.gb_per_s * 1e9;
  if (reduce.gb_per_s > 0) costs.reduce_bandwidth = reduce.gb_per_s * 1e9;
  // A bandwidth that was not measured is that of the initialiser; one without ranks is of any number of them.
  constexpr int kAny = std::numeric_limits<int>::max();
  const auto ranks_of = [&](const Bandwidth& bandwidth) {
    return bandwidth.gb_per_s > 0 ? bandwidth.ranks.value_or(kAny) : costs.ranks.value_or(kAny);
  };
  const int fewer = std::min(ranks_of(gather), ranks_of(reduce));
  costs.ranks = fewer == kAny ? std::nullopt : std::optional<int>(fewer);
  if (teraflops > 0 || gather.gb_per_s > 0 || reduce.gb_per_s > 0) return costs;
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
