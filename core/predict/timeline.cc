#include "reprise/core/timeline.h"

#include <limits>
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
using internal::ReadJsonObject;
using nlohmann::json;
using nlohmann::ordered_json;

// ---- writing ----

ordered_json ToEntry(const Activity& activity) {
  ordered_json entry = {{"kind", std::string(Name(activity.kind))}};
  if (!activity.name.empty()) entry["name"] = activity.name;
  entry["stream"] = activity.stream;
  entry["start_us"] = activity.start_us;
  entry["end_us"] = activity.end_us;
  if (activity.num_bytes != 0) entry["num_bytes"] = activity.num_bytes;
  return entry;
}

ordered_json ToEntry(const CommandSpan& span) {
  ordered_json entry = {{"rank", span.rank},         {"replay", span.replay},
                        {"schedule", span.schedule}, {"command", span.command.value()},
                        {"start_us", span.start_us}, {"end_us", span.end_us}};
  if (span.activities.empty()) return entry;
  ordered_json& activities = entry["activities"] = ordered_json::array();
  for (const Activity& activity : span.activities) activities.push_back(ToEntry(activity));
  return entry;
}

// ---- reading ----

// Positions in lists, and numbers of ranks and replays.
JsonReader IntoIndex(int* out) {
  return [out](const json& value, const std::string& place) -> absl::Status {
    int64_t number = 0;
    REPRISE_RETURN_IF_ERROR(Into(&number)(value, place));
    constexpr int kMax = std::numeric_limits<int>::max();
    if (number < 0 || number > kMax) {
      return JsonMistake(place, absl::StrCat("is ", number, "; give an integer from 0 to ", kMax));
    }
    *out = static_cast<int>(number);
    return absl::OkStatus();
  };
}

JsonReader IntoKind(ActivityKind* out) {
  return [out](const json& value, const std::string& place) -> absl::Status {
    std::string name;
    REPRISE_RETURN_IF_ERROR(Into(&name)(value, place));
    for (const ActivityKind kind : {ActivityKind::kKernel, ActivityKind::kCopy, ActivityKind::kFill}) {
      if (Name(kind) != name) continue;
      *out = kind;
      return absl::OkStatus();
    }
    return JsonMistake(
        place, absl::StrCat("unknown kind ", internal::Quoted(name), "; use one of \"kernel\", \"copy\", \"fill\""));
  };
}

absl::Status CheckTimesAt(const std::string& place, double start_us, double end_us) {
  const absl::Status status = internal::CheckTimes(start_us, end_us);
  return status.ok() ? status : JsonMistake(place, std::string(status.message()));
}

absl::Status ReadActivity(const json& value, const std::string& place, std::vector<Activity>& activities) {
  Activity& activity = activities.emplace_back();
  REPRISE_RETURN_IF_ERROR(ReadJsonObject(value, place,
                                         {{"kind", Presence::kRequired, IntoKind(&activity.kind)},
                                          {"name", Presence::kOptional, Into(&activity.name)},
                                          {"stream", Presence::kRequired, Into(&activity.stream)},
                                          {"start_us", Presence::kRequired, Into(&activity.start_us)},
                                          {"end_us", Presence::kRequired, Into(&activity.end_us)},
                                          {"num_bytes", Presence::kOptional, Into(&activity.num_bytes)}}));
  if (activity.num_bytes < 0) {
    return JsonMistake(absl::StrCat(place, ".num_bytes"), absl::StrCat("is ", activity.num_bytes, "; give 0 or more"));
  }
  return CheckTimesAt(place, activity.start_us, activity.end_us);
}

absl::Status ReadSpan(const json& value, const std::string& place, std::vector<CommandSpan>& spans) {
  CommandSpan& span = spans.emplace_back();
  int command = 0;
  const JsonReader activities = internal::JsonList(
      [&](const json& activity, const std::string& where) { return ReadActivity(activity, where, span.activities); });
  REPRISE_RETURN_IF_ERROR(ReadJsonObject(value, place,
                                         {{"rank", Presence::kRequired, IntoIndex(&span.rank)},
                                          {"replay", Presence::kRequired, IntoIndex(&span.replay)},
                                          {"schedule", Presence::kRequired, IntoIndex(&span.schedule)},
                                          {"command", Presence::kRequired, IntoIndex(&command)},
                                          {"start_us", Presence::kRequired, Into(&span.start_us)},
                                          {"end_us", Presence::kRequired, Into(&span.end_us)},
                                          {"activities", Presence::kOptional, activities}}));
  span.command = CommandId(command);
  return CheckTimesAt(place, span.start_us, span.end_us);
}

}  // namespace

int64_t TransferredBytes(const Plan& plan, const Command& command) {
  int64_t bytes = 0;
  if (const AllGather* gather = std::get_if<AllGather>(&command)) {
    for (const FlatGroup& group : plan.layout.units[gather->unit.value()].groups) {
      bytes += (group.num_elements - group.shard_elements) * SizeOf(group.dtype);
    }
  } else if (const ReduceScatter* reduce = std::get_if<ReduceScatter>(&command)) {
    for (const FlatGroup& group : plan.layout.units[reduce->unit.value()].groups) {
      if (group.trainable) bytes += (group.num_elements - group.shard_elements) * SizeOf(plan.reduce_dtype(group));
    }
  }
  return bytes;
}

std::string ToJson(const Timeline& timeline) {
  std::string text = "{\"spans\": [";
  const char* separator = "\n";
  for (const CommandSpan& span : timeline.spans) {
    // The name of a kernel that is not UTF-8 must not throw.
    absl::StrAppend(&text, std::exchange(separator, ",\n"),
                    ToEntry(span).dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }
  return text + "\n]}\n";
}

absl::StatusOr<Timeline> TimelineFromJson(absl::string_view text) {
  // Spans: as many as PredictTimeline gives. 2^33 bytes hold them, or half of them with one activity each.
  REPRISE_ASSIGN_OR_RETURN(const json value,
                           internal::ParseJson(text, {.entries = int64_t{1} << 22, .memory_bytes = int64_t{1} << 33}));
  Timeline timeline;
  const JsonReader spans = internal::JsonList(
      [&](const json& span, const std::string& place) { return ReadSpan(span, place, timeline.spans); });
  REPRISE_RETURN_IF_ERROR(ReadJsonObject(value, "", {{"spans", Presence::kRequired, spans}}));
  return timeline;
}

}  // namespace reprise
