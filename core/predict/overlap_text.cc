// Overlap reports for people and for programs.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/plan/plan_fields.h"
#include "nlohmann/json.hpp"
#include "reprise/core/overlap.h"

namespace reprise {
namespace {

using Json = nlohmann::ordered_json;

const Command& CommandOf(const Plan& plan, const CommunicationSpan& span) {
  return plan.schedules[span.schedule].commands[span.command.value()].command;
}

// Microseconds and the percentage of the duration, 18 columns.
void AppendShare(double microseconds, double duration, std::string& out) {
  absl::StrAppendFormat(&out, " %10.1f %5.1f%%", microseconds, duration > 0 ? 100 * microseconds / duration : 0);
}

void AppendRanks(const OverlapReport& report, std::string& out) {
  absl::StrAppendFormat(&out, "microseconds of each rank, and their share of its duration\n%-4s %12s", "rank",
                        "duration");
  for (const char* column : {"compute", "exposed"}) absl::StrAppendFormat(&out, " %17s", column);
  for (int cause = 0; cause < kNumExposedCauses; ++cause) {
    absl::StrAppendFormat(&out, " %17s", Name(static_cast<ExposedCause>(cause)));
  }
  out += "\n";
  for (const RankOverlap& rank : report.ranks) {
    absl::StrAppendFormat(&out, "%4d %12.1f", rank.rank, rank.duration_us);
    AppendShare(rank.compute_us, rank.duration_us, out);
    AppendShare(rank.exposed_total_us(), rank.duration_us, out);
    for (const double exposed : rank.exposed_us) AppendShare(exposed, rank.duration_us, out);
    out += "\n";
  }
}

// "body #13 reduce_scatter u1 microbatch 0", of at most so many bytes.
std::string Label(const Plan& plan, const CommunicationSpan& span) {
  constexpr size_t kMaxBytes = 44;
  const internal::CommandFields command = internal::FieldsOf(plan, CommandOf(plan, span));
  std::string label = absl::StrCat(plan.schedules[span.schedule].name, " #", span.command.value(), " ", command.kind);
  for (const internal::Field& field : command.fields) {
    if (field.name == "unit") absl::StrAppend(&label, " ", std::get<std::string>(field.value));
    if (field.name == "microbatch") absl::StrAppend(&label, " microbatch ", std::get<int64_t>(field.value));
  }
  if (label.size() <= kMaxBytes) return label;
  size_t length = kMaxBytes - 3;
  while (length > 0 && (static_cast<unsigned char>(label[length]) & 0xc0) == 0x80) --length;  // inside a character
  return label.substr(0, length) + "...";
}

std::string Rate(const Plan& plan, const CommunicationSpan& span) {
  const int64_t bytes = TransferredBytes(plan, CommandOf(plan, span));
  if (bytes == 0 || span.duration_us() <= 0) return "-";
  return absl::StrFormat("%.1f", static_cast<double>(bytes) / span.duration_us() / 1e3);
}

// "6 of 8 all_gather, 3 of 4 reduce_scatter", in order of appearance.
std::string Counts(const Plan& plan, const std::vector<CommunicationSpan>& spans) {
  struct Count {
    std::string kind;
    int all = 0, overlapped = 0;
  };
  std::vector<Count> counts;
  for (const CommunicationSpan& span : spans) {
    const std::string kind(internal::FieldsOf(plan, CommandOf(plan, span)).kind);
    auto count = std::find_if(counts.begin(), counts.end(), [&](const Count& c) { return c.kind == kind; });
    if (count == counts.end()) count = counts.insert(counts.end(), Count{kind});
    ++count->all;
    count->overlapped += span.overlapped() ? 1 : 0;
  }
  std::string text;
  for (const Count& count : counts) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", count.overlapped, " of ", count.all, " ", count.kind);
  }
  return text;
}

void AppendCommunication(const Plan& plan, const OverlapReport& report, std::string& out) {
  std::vector<CommunicationSpan> spans;
  for (const CommunicationSpan& span : report.communication) {
    if (span.rank == report.ranks.front().rank) spans.push_back(span);
  }
  if (spans.empty()) return;
  std::vector<std::string> labels;
  size_t width = 7;  // of "command"
  for (const CommunicationSpan& span : spans) {
    labels.push_back(Label(plan, span));
    width = std::max(width, labels.back().size());
  }
  absl::StrAppendFormat(&out, "\nrank %d, covered by compute to %.0f%%: %s\n", report.ranks.front().rank,
                        100 * kOverlappedFraction, Counts(plan, spans));
  absl::StrAppendFormat(&out, "replay  %-*s  %12s %10s %7s %8s  cause\n", static_cast<int>(width), "command", "bytes",
                        "us", "GB/s", "covered");
  for (size_t s = 0; s < spans.size(); ++s) {
    const CommunicationSpan& span = spans[s];
    absl::StrAppendFormat(&out, "%6d  %-*s  %12d %10.1f %7s %7.1f%%  %s\n", span.replay, static_cast<int>(width),
                          labels[s], TransferredBytes(plan, CommandOf(plan, span)), span.duration_us(),
                          Rate(plan, span), 100 * span.covered_fraction(), Name(span.cause));
  }
}

Json OfRank(const RankOverlap& rank) {
  Json exposed = Json::object();
  for (int cause = 0; cause < kNumExposedCauses; ++cause) {
    exposed[std::string(Name(static_cast<ExposedCause>(cause)))] = rank.exposed_us[cause];
  }
  return {{"rank", rank.rank},
          {"duration_us", rank.duration_us},
          {"compute_us", rank.compute_us},
          {"communication_us", rank.communication_us},
          {"exposed_us", std::move(exposed)}};
}

Json OfSpan(const Plan& plan, const CommunicationSpan& span) {
  const Command& command = CommandOf(plan, span);
  return {{"rank", span.rank},
          {"replay", span.replay},
          {"schedule", plan.schedules[span.schedule].name},
          {"command", span.command.value()},
          {"what", Describe(plan, command)},
          {"bytes", TransferredBytes(plan, command)},
          {"start_us", span.start_us},
          {"end_us", span.end_us},
          {"covered_us", span.covered_us},
          {"covered_fraction", span.covered_fraction()},
          {"cause", std::string(Name(span.cause))}};
}

// One element a line.
template <class T, class Convert>
void AppendList(const char* key, const std::vector<T>& list, Convert convert, std::string& out) {
  absl::StrAppend(&out, "\"", key, "\": [");
  const char* separator = "\n ";
  for (const T& element : list) {
    // A name that is not UTF-8 must not throw.
    absl::StrAppend(&out, std::exchange(separator, ",\n "),
                    convert(element).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  out += "\n]";
}

}  // namespace

std::string ToText(const Plan& plan, const OverlapReport& report) {
  if (report.ranks.empty()) return "the timeline is empty\n";
  std::string out;
  AppendRanks(report, out);
  AppendCommunication(plan, report, out);
  return out;
}

std::string ToJson(const Plan& plan, const OverlapReport& report) {
  std::string out = "{";
  AppendList("ranks", report.ranks, OfRank, out);
  out += ",\n";
  AppendList(
      "communication", report.communication, [&](const CommunicationSpan& span) { return OfSpan(plan, span); }, out);
  return out + "}\n";
}

}  // namespace reprise
