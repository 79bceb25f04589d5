#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/predict/timeline_checks.h"
#include "nlohmann/json.hpp"
#include "reprise/core/status_macros.h"
#include "reprise/core/timeline.h"

namespace reprise {
namespace {

using nlohmann::ordered_json;

// Viewers count in whole nanoseconds. An end is rounded like a start, so that what lies within a slice stays within it.
int64_t Nanoseconds(double microseconds) { return std::llround(microseconds * 1e3); }

class TraceWriter {
 public:
  TraceWriter(const Plan& plan, absl::string_view title) : plan_(plan), title_(title) {}

  std::string Write(const Timeline& timeline, const TraceNotes& about) && {
    text_ = "{\"displayTimeUnit\": \"ms\", ";
    ordered_json notes = ordered_json::object();
    for (const auto& [key, note] : about) notes[key] = note;
    if (!about.empty()) absl::StrAppend(&text_, "\"otherData\": ", Dump(notes), ", ");
    text_ += "\"traceEvents\": [";
    for (const CommandSpan& span : timeline.spans) AddSpan(span);
    for (const auto& [rank, lanes] : tracks_) NameTracks(rank, lanes);
    return std::move(text_) + "\n]}\n";
  }

 private:
  // Of one lane of one rank: when the last activity on each of its tracks ended. Commands are on the first one.
  using Tracks = std::vector<double>;
  using Lanes = std::map<int, Tracks>;

  static int TrackId(int lane, int track) { return track * kNumLanes + lane; }

  static std::string Dump(const ordered_json& json) {
    return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }

  void Add(const ordered_json& event) { absl::StrAppend(&text_, std::exchange(separator_, ",\n"), Dump(event)); }

  void AddSlice(int rank, int track_id, const std::string& name, double start_us, double end_us, ordered_json args) {
    const int64_t start = Nanoseconds(start_us);
    Add({{"ph", "X"},
         {"pid", rank},
         {"tid", track_id},
         {"ts", static_cast<double>(start) / 1e3},
         {"dur", static_cast<double>(Nanoseconds(end_us) - start) / 1e3},
         {"name", name},
         {"args", std::move(args)}});
  }

  void AddSpan(const CommandSpan& span) {
    const Schedule& schedule = plan_.schedules[span.schedule];
    const ScheduledCommand& command = schedule.commands[span.command.value()];
    const int lane = static_cast<int>(command.lane);
    ordered_json args = {{"schedule", schedule.name}, {"replay", span.replay}, {"command", span.command.value()}};
    if (IsCollective(command.command)) args["bytes"] = TransferredBytes(plan_, command.command);
    AddSlice(span.rank, TrackId(lane, 0), Describe(plan_, command.command), span.start_us, span.end_us,
             std::move(args));
    Tracks& tracks = tracks_[span.rank][lane];
    if (tracks.empty()) tracks.push_back(span.start_us);
    for (const Activity& activity : span.activities) AddActivity(span.rank, lane, activity, tracks);
  }

  // A viewer shows slices of one track that overlap as if one contained the other.
  void AddActivity(int rank, int lane, const Activity& activity, Tracks& tracks) {
    size_t track = 0;
    while (track < tracks.size() && activity.start_us < tracks[track]) ++track;
    if (track == tracks.size()) tracks.emplace_back();
    tracks[track] = activity.end_us;
    ordered_json args = {{"stream", activity.stream}};
    if (activity.kind != ActivityKind::kKernel) args["bytes"] = activity.num_bytes;
    AddSlice(rank, TrackId(lane, static_cast<int>(track)),
             activity.name.empty() ? std::string(Name(activity.kind)) : activity.name, activity.start_us,
             activity.end_us, std::move(args));
  }

  void NameTracks(int rank, const Lanes& lanes) {
    Add({{"ph", "M"},
         {"pid", rank},
         {"name", "process_name"},
         {"args", {{"name", absl::StrCat("rank ", rank, ", ", title_)}}}});
    Add({{"ph", "M"}, {"pid", rank}, {"name", "process_sort_index"}, {"args", {{"sort_index", rank}}}});
    int position = 0;
    for (const auto& [lane, tracks] : lanes) {
      for (size_t track = 0; track < tracks.size(); ++track) {
        std::string name(Name(static_cast<Lane>(lane)));
        if (track > 0) absl::StrAppend(&name, " ", track + 1);
        const int id = TrackId(lane, static_cast<int>(track));
        Add({{"ph", "M"}, {"pid", rank}, {"tid", id}, {"name", "thread_name"}, {"args", {{"name", name}}}});
        Add({{"ph", "M"},
             {"pid", rank},
             {"tid", id},
             {"name", "thread_sort_index"},
             {"args", {{"sort_index", position++}}}});
      }
    }
  }

  const Plan& plan_;
  const absl::string_view title_;
  std::map<int, Lanes> tracks_;  // by rank
  const char* separator_ = "\n";
  std::string text_;
};

}  // namespace

absl::StatusOr<std::string> ToChromeTrace(const Plan& plan, const Timeline& timeline, absl::string_view title,
                                          const TraceNotes& about) {
  REPRISE_RETURN_IF_ERROR(internal::CheckTimeline(plan, timeline));
  return TraceWriter(plan, title).Write(timeline, about);
}

}  // namespace reprise
