#include "core/plan/plan_text.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/plan/plan_fields.h"
#include "reprise/core/plan.h"

namespace reprise {
namespace {

constexpr size_t kWordWidth = 14;  // the longest name of a lane or a storage

// Appends `text` in a column of `width`, followed by two spaces.
void AppendLeft(std::string& out, absl::string_view text, size_t width) {
  absl::StrAppend(&out, text);
  out.append(std::max(width, text.size()) - text.size() + 2, ' ');
}
void AppendRight(std::string& out, absl::string_view text, size_t width) {
  out.append(std::max(width, text.size()) - text.size(), ' ');
  absl::StrAppend(&out, text, "  ");
}

size_t Width(size_t width, absl::string_view text) { return std::max(width, text.size()); }

// Where a range ends. Unsigned, because the text must also show plans that Verify refuses.
int64_t EndOf(int64_t first, int64_t count) {
  return static_cast<int64_t>(static_cast<uint64_t>(first) + static_cast<uint64_t>(count));
}

void EndLine(std::string& out) {
  while (!out.empty() && out.back() == ' ') out.pop_back();
  out.push_back('\n');
}

class PlanWriter {
 public:
  explicit PlanWriter(const Plan& plan) : plan_(plan) {
    std::unordered_map<std::string, int> times;
    for (const Buffer& buffer : plan.buffers) {
      const int time = ++times[buffer.name];
      labels_.push_back(time == 1 ? buffer.name : absl::StrCat(buffer.name, "~", time));
    }
  }

  std::string Write() && {
    WriteHead();
    WriteUnits();
    WriteMemory();
    WriteBuffers();
    for (size_t s = 0; s < plan_.schedules.size(); ++s) WriteSchedule(static_cast<int>(s));
    return std::move(out_);
  }

  std::vector<std::string> CommandLines(const Schedule& schedule) const {
    std::vector<std::string> descriptions, waits, lines;
    size_t description_width = 0, wait_width = 0;
    for (const ScheduledCommand& command : schedule.commands) {
      descriptions.push_back(Describe(plan_, command.command));
      std::string& text = waits.emplace_back();
      for (const Wait& wait : command.waits) {
        absl::StrAppend(&text, text.empty() ? "waits " : ", ", "#", wait.command.value(), " ", Name(wait.reason));
      }
      description_width = Width(description_width, descriptions.back());
      wait_width = Width(wait_width, text);
    }
    const size_t id_width = absl::StrCat("#", schedule.commands.size()).size();
    for (size_t c = 0; c < schedule.commands.size(); ++c) {
      std::string& line = lines.emplace_back("  ");
      AppendLeft(line, absl::StrCat("#", c), id_width);
      AppendLeft(line, Name(schedule.commands[c].lane), kWordWidth);
      AppendLeft(line, descriptions[c], description_width);
      AppendLeft(line, waits[c], wait_width);
      AppendUses(line, schedule.commands[c].uses);
      EndLine(line);
    }
    return lines;
  }

 private:
  std::string Label(BufferId id) const {
    if (!id.valid() || static_cast<size_t>(id.value()) >= labels_.size()) return absl::StrCat("buffer#", id.value());
    return labels_[id.value()];
  }

  void WriteHead() {
    absl::StrAppend(&out_, "plan: ", plan_.world_size(), " ranks, ", plan_.model.units().size(), " units, ",
                    plan_.model.parameters().size(), " parameters, ", plan_.model.calls().size(), " calls\n");
    std::vector<std::string> words;
    for (const internal::Field& field : internal::FieldsOf(plan_.options)) {
      words.push_back(std::visit([&](const auto& value) { return absl::StrCat(field.name, "=", value); }, field.value));
    }
    absl::StrAppend(&out_, "options: ", absl::StrJoin(words, " "), "\n");
    absl::StrAppend(&out_, "used: weight_slots=", plan_.weight_slots,
                    " dedicated_gradient_slots=", plan_.dedicated_gradient_slots, "\n");
    words.clear();
    for (const Axis& axis : plan_.axes) words.push_back(absl::StrCat(axis.name, "=", axis.size));
    absl::StrAppend(&out_, "axes: ", absl::StrJoin(words, " "), "\n");
    absl::StrAppend(&out_, "fingerprint: ", plan_.fingerprint.ToString(), "\n");
  }

  // Elements of each group, and where its parameters lie: [first, end) in elements.
  void WriteUnits() {
    size_t width = 4;
    for (const Unit& unit : plan_.model.units()) width = Width(width, unit.name);
    absl::StrAppend(&out_, "\nunits (ranges in elements)\n");
    for (size_t u = 0; u < plan_.layout.units.size(); ++u) {
      const std::string name = internal::UnitName(plan_, UnitId(static_cast<int64_t>(u)));
      const UnitPolicy policy = u < plan_.unit_policies.size() ? plan_.unit_policies[u] : UnitPolicy();
      for (const FlatGroup& group : plan_.layout.units[u].groups) {
        out_ += "  ";
        AppendLeft(out_, name, width);
        const absl::string_view reduce_dtype = group.trainable ? Name(plan_.reduce_dtype(group)) : "none";
        absl::StrAppend(&out_, Name(group.dtype), ", reduce_dtype ", reduce_dtype, ", gather ",
                        Name(policy.transports.gather));
        if (group.trainable) {
          absl::StrAppend(&out_, ", exchange ", Name(policy.transports.exchange), ", sum ", Name(policy.sum));
        }
        absl::StrAppend(&out_, ", shard ", group.shard_elements, " of ", group.num_elements, ":");
        for (const PlacedParameter& placed : group.parameters) {
          absl::StrAppend(&out_, " ", internal::ParameterName(plan_, placed.parameter), " [", placed.first_element,
                          ", ", EndOf(placed.first_element, placed.num_elements), ")");
        }
        EndLine(out_);
      }
    }
  }

  void WriteMemoryLine(absl::string_view name, int64_t bytes, int64_t bound, bool transient) {
    out_ += "  ";
    AppendLeft(out_, name, kWordWidth);
    AppendRight(out_, absl::StrCat(bytes), 15);
    if (transient) AppendRight(out_, absl::StrCat(bound), 15);
    EndLine(out_);
  }

  void WriteMemory() {
    out_ += "\nmemory per rank           bytes      lower bound\n";
    const MemoryPlan& memory = plan_.memory;
    for (int s = 0; s < kNumStorages; ++s) {
      const Storage storage = static_cast<Storage>(s);
      if (storage == Storage::kExternal) continue;
      WriteMemoryLine(Name(storage), memory.num_bytes[s], memory.lower_bound[s], IsTransient(storage));
    }
    WriteMemoryLine("persistent", memory.persistent_bytes(), 0, false);
    WriteMemoryLine("transient", memory.transient_bytes(), memory.transient_lower_bound_bytes(), true);
  }

  void WriteBuffers() {
    size_t label_width = 0, begin_width = 0, end_width = 0;
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      const Buffer& buffer = plan_.buffers[b];
      label_width = Width(label_width, labels_[b]);
      begin_width = Width(begin_width, absl::StrCat("[", buffer.offset, ","));
      end_width = Width(end_width, absl::StrCat(EndOf(buffer.offset, buffer.num_bytes), ")"));
    }
    out_ += "\nbuffers (ranges in bytes of their storage)\n";
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      const Buffer& buffer = plan_.buffers[b];
      out_ += "  ";
      AppendLeft(out_, labels_[b], label_width);
      AppendLeft(out_, Name(buffer.storage), kWordWidth);
      AppendRight(out_, absl::StrCat("[", buffer.offset, ","), begin_width);
      out_.pop_back();
      AppendRight(out_, absl::StrCat(EndOf(buffer.offset, buffer.num_bytes), ")"), end_width);
      EndLine(out_);
    }
  }

  void WriteState(absl::string_view when, const ScheduleState& state) {
    std::vector<std::string> parts;
    for (const Resident& resident : state.residents) {
      parts.push_back(absl::StrCat("resident ", internal::UnitName(plan_, resident.unit), " slot ", resident.slot,
                                   " in ", Label(resident.buffer)));
    }
    for (const OutstandingReduction& reduction : state.outstanding) {
      parts.push_back(absl::StrCat("outstanding ", internal::UnitName(plan_, reduction.unit), " slot ", reduction.slot,
                                   " in ", Label(reduction.buffer)));
    }
    if (state.gradients) parts.push_back("unsharded gradients hold a sum");
    absl::StrAppend(&out_, "  ", when, ": ", parts.empty() ? "nothing" : absl::StrJoin(parts, ", "), "\n");
  }

  void WriteSchedule(int index) {
    const Schedule& schedule = plan_.schedules[index];
    std::vector<std::string> roles;
    for (const auto& [name, which] : {std::pair{"first", plan_.first}, std::pair{"body", plan_.body},
                                      std::pair{"finish", plan_.finish}, std::pair{"step", plan_.step}}) {
      if (which == index && name != schedule.name) roles.push_back(absl::StrCat(", also ", name));
    }
    absl::StrAppend(&out_, "\nschedule ", schedule.name, ": ");
    if (schedule.microbatches > 0) {
      absl::StrAppend(&out_, schedule.microbatches, schedule.microbatches == 1 ? " microbatch, " : " microbatches, ");
    }
    absl::StrAppend(&out_, schedule.commands.size(), " commands", absl::StrJoin(roles, ""), "\n");
    WriteState("start", schedule.start);
    WriteCommands(schedule);
    WriteState("end", schedule.end);
  }

  void WriteCommands(const Schedule& schedule) {
    for (const std::string& line : CommandLines(schedule)) out_ += line;
  }

  // "reads input x, saved y; assigns output z [0, 16)": a range only where a use is not of a
  // whole buffer, a role only where the name does not begin with it.
  void AppendUses(std::string& line, const std::vector<BufferUse>& uses) const {
    const char* separator = "";
    for (const auto& [access, verb] : {std::pair{Access::kRead, "reads"}, std::pair{Access::kAssign, "assigns"},
                                       std::pair{Access::kUpdate, "updates"}}) {
      bool first = true;
      for (const BufferUse& use : uses) {
        if (use.access != access) continue;
        if (first) absl::StrAppend(&line, separator, verb);
        const std::string label = Label(use.buffer);
        const absl::string_view role = Name(use.role);
        absl::StrAppend(&line, first ? " " : ", ");
        if (!absl::StartsWith(label, role)) absl::StrAppend(&line, role, " ");
        absl::StrAppend(&line, label);
        const size_t buffer = static_cast<size_t>(use.buffer.value());
        if (buffer >= plan_.buffers.size() || use.offset != 0 || use.num_bytes != plan_.buffers[buffer].num_bytes) {
          absl::StrAppend(&line, " [", use.offset, ", ", EndOf(use.offset, use.num_bytes), ")");
        }
        if (!use.is_own()) absl::StrAppend(&line, " of peers");
        first = false;
      }
      if (!first) separator = "; ";
    }
  }

  const Plan& plan_;
  std::vector<std::string> labels_;  // by buffer: its name, or where that is taken, the name and a number
  std::string out_;
};

}  // namespace

std::string ToText(const Plan& plan) { return PlanWriter(plan).Write(); }

std::vector<std::string> internal::CommandLines(const Plan& plan, const Schedule& schedule) {
  return PlanWriter(plan).CommandLines(schedule);
}

}  // namespace reprise
