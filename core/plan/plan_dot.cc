#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/core/plan.h"

namespace reprise {
namespace {

constexpr std::array<Lane, kNumLanes> kLanes = {Lane::kAllGather, Lane::kCompute, Lane::kReduceScatter, Lane::kCopy};

// A double-quoted Graphviz string.
std::string Quote(absl::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    quoted.push_back(c);
  }
  quoted.push_back('"');
  return quoted;
}

const char* Color(WaitReason reason) {
  switch (reason) {
    case WaitReason::kData:
      return "firebrick";
    case WaitReason::kOrder:
      return "darkorange";
    case WaitReason::kFork:
      return "steelblue";
    case WaitReason::kJoin:
      return "seagreen";
  }
  return "black";
}

// The commands of one lane, in one column, chained in issue order.
void AppendLane(const Plan& plan, const std::string& prefix, const Schedule& schedule, Lane lane, std::string& out) {
  std::string commands, chain;
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    if (schedule.commands[c].lane != lane) continue;
    const std::string id = absl::StrCat(prefix, "_", c);
    const std::string label = absl::StrCat("#", c, " ", Describe(plan, schedule.commands[c].command));
    absl::StrAppend(&commands, "      ", id, " [label=", Quote(label), ", group=", Quote(Name(lane)), "];\n");
    absl::StrAppend(&chain, chain.empty() ? "      " : " -> ", id);
  }
  if (commands.empty()) return;
  absl::StrAppend(&out, "    subgraph cluster_", prefix, "_", Name(lane), " {\n      label=", Quote(Name(lane)),
                  ";\n      style=filled;\n      color=gray95;\n", commands, chain,
                  " [color=gray60, weight=100];\n    }\n");
}

void AppendSchedule(const Plan& plan, size_t index, std::string& out) {
  const Schedule& schedule = plan.schedules[index];
  const std::string prefix = absl::StrCat("s", index);
  absl::StrAppend(&out, "  subgraph cluster_", prefix,
                  " {\n    label=", Quote(absl::StrCat("schedule ", schedule.name)), ";\n");
  for (Lane lane : kLanes) AppendLane(plan, prefix, schedule, lane, out);
  for (size_t c = 0; c < schedule.commands.size(); ++c) {
    for (const Wait& wait : schedule.commands[c].waits) {
      absl::StrAppend(&out, "    ", prefix, "_", wait.command.value(), " -> ", prefix, "_", c,
                      " [color=", Color(wait.reason), ", tooltip=", Quote(Name(wait.reason)), "];\n");
    }
  }
  out += "  }\n";
}

}  // namespace

std::string ToDot(const Plan& plan) {
  std::string out =
      "// Columns are lanes, gray arrows their order. Waits: red data, orange order, blue fork, green join.\n"
      "digraph plan {\n"
      "  node [shape=box, style=filled, fillcolor=white, fontname=\"sans-serif\", fontsize=10];\n";
  for (size_t s = 0; s < plan.schedules.size(); ++s) AppendSchedule(plan, s, out);
  out += "}\n";
  return out;
}

}  // namespace reprise
