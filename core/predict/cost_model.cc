#include "reprise/core/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "core/predict/timeline_checks.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

// Null if all are scalars.
const TensorSpec* FirstWithExtents(const Model& model, const std::vector<TensorId>& tensors) {
  for (const TensorId tensor : tensors) {
    if (!model.tensor(tensor).spec.shape.empty()) return &model.tensor(tensor).spec;
  }
  return nullptr;
}

absl::Status CheckFigure(absl::string_view name, double value, bool may_be_zero) {
  if (std::isfinite(value) && (may_be_zero ? value >= 0 : value > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the cost model's ", name, " is ", value, "; give a ",
                                                 may_be_zero ? "finite number of at least 0" : "positive number"));
}

absl::Status CheckCalls(const Model& model, const CostModel& costs) {
  std::set<std::string> names;
  for (const CallSpec& call : model.calls()) names.insert(call.name);
  for (const auto& [name, flops] : costs.calls) {
    if (names.count(name) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("the cost model has FLOPs of call ", internal::Quoted(name),
                                                   ", which is none of the model's ", names.size(),
                                                   "; correct its name or leave it out"));
  }
  return absl::OkStatus();
}

class CommandCosts {
 public:
  CommandCosts(const Plan& plan, const CostModel& costs) : plan_(plan), costs_(costs) {
    for (size_t c = 0; c < plan.model.calls().size(); ++c) {
      const auto given = costs.calls.find(plan.model.calls()[c].name);
      flops_.push_back(given != costs.calls.end() ? given->second
                                                  : EstimateFlops(plan.model, CallId(static_cast<int64_t>(c))));
    }
  }

  // Microseconds; none for a command without work.
  std::optional<double> Of(const ScheduledCommand& scheduled) const {
    using Cost = std::optional<double>;
    const auto memory = [&]() -> Cost {
      return costs_.command_us + Bytes(scheduled.uses) / costs_.memory_bandwidth * 1e6;
    };
    // Its use of the staging slots is of all, but it reads no more than it assigns.
    const auto copy = [&]() -> Cost {
      return costs_.command_us + 2 * AssignedBytes(scheduled.uses) / costs_.memory_bandwidth * 1e6;
    };
    // Of the reduce buffer a rank reads its own part.
    const auto accumulate = [&]() -> Cost {
      double bytes = Bytes(scheduled.uses);
      for (const BufferUse& use : scheduled.uses) {
        if (use.role == Role::kReduceBuffer)
          bytes -= static_cast<double>(use.num_bytes) * (1 - 1.0 / plan_.world_size());
      }
      return costs_.command_us + bytes / costs_.memory_bandwidth * 1e6;
    };
    const auto compute = [&](double flops) -> Cost {
      return std::max(costs_.command_us + flops / costs_.flops * 1e6, *memory());
    };
    const auto transfer = [&](double bandwidth) -> Cost {
      const double bytes = static_cast<double>(TransferredBytes(plan_, scheduled.command));
      return costs_.collective_us + bytes / bandwidth * 1e6;
    };
    return std::visit(Overloaded{
                          [](const Begin&) { return Cost(); },
                          [&](const NextMicrobatch&) { return memory(); },
                          [&](const StageInputs&) { return copy(); },
                          [&](const AllGather&) { return transfer(costs_.gather_bandwidth); },
                          [&](const Forward& c) { return compute(flops_[c.call.value()].forward); },
                          [&](const Backward& c) { return compute(flops_[c.call.value()].backward); },
                          [&](const PackGradients&) { return memory(); },
                          [&](const ReduceScatter&) { return transfer(costs_.reduce_bandwidth); },
                          [&](const Accumulate&) { return accumulate(); },
                          [&](const RecordLoss&) { return memory(); },
                          [&](const SumNorm&) { return Cost(costs_.collective_us); },
                          [&](const UpdateParameters&) { return memory(); },
                          [&](const RefreshShards&) { return memory(); },
                          [&](const PublishMetrics&) { return memory(); },
                          [](const End&) { return Cost(); },
                      },
                      scheduled.command);
  }

 private:
  // Read and written.
  static double Bytes(const std::vector<BufferUse>& uses) {
    double bytes = 0;
    for (const BufferUse& use : uses) {
      if (!use.is_own()) continue;
      bytes += static_cast<double>(use.num_bytes) * (use.access == Access::kUpdate ? 2 : 1);
    }
    return bytes;
  }
  static double AssignedBytes(const std::vector<BufferUse>& uses) {
    double bytes = 0;
    for (const BufferUse& use : uses) bytes += use.access == Access::kAssign ? static_cast<double>(use.num_bytes) : 0;
    return bytes;
  }

  const Plan& plan_;
  const CostModel& costs_;
  std::vector<CallFlops> flops_;  // by call
};

absl::Status CheckSchedules(const Plan& plan, const std::vector<int>& schedules) {
  int64_t commands = 0;
  for (const int s : schedules) {
    if (s < 0 || static_cast<size_t>(s) >= plan.schedules.size()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no schedule ", s, " to predict; the plan has ",
                                                     plan.schedules.size(), ", numbered from 0"));
    }
    commands += static_cast<int64_t>(plan.schedules[s].commands.size());
  }
  if (commands > kMaxPredictedCommands) {
    return absl::InvalidArgumentError(absl::StrCat("the schedules to predict have ", commands,
                                                   " commands, but at most ", kMaxPredictedCommands,
                                                   " are predicted; give fewer schedules"));
  }
  for (const Schedule& schedule : plan.schedules) REPRISE_RETURN_IF_ERROR(internal::CheckOrder(schedule));
  return absl::OkStatus();
}

}  // namespace

absl::Status internal::CheckFigures(const CostModel& costs) {
  REPRISE_RETURN_IF_ERROR(CheckFigure("flops", costs.flops, false));
  REPRISE_RETURN_IF_ERROR(CheckFigure("memory_bandwidth", costs.memory_bandwidth, false));
  REPRISE_RETURN_IF_ERROR(CheckFigure("gather_bandwidth", costs.gather_bandwidth, false));
  REPRISE_RETURN_IF_ERROR(CheckFigure("reduce_bandwidth", costs.reduce_bandwidth, false));
  REPRISE_RETURN_IF_ERROR(CheckFigure("collective_us", costs.collective_us, true));
  REPRISE_RETURN_IF_ERROR(CheckFigure("command_us", costs.command_us, true));
  for (const auto& [name, flops] : costs.calls) {
    REPRISE_RETURN_IF_ERROR(CheckFigure(absl::StrCat("forward of call ", Quoted(name)), flops.forward, true));
    REPRISE_RETURN_IF_ERROR(CheckFigure(absl::StrCat("backward of call ", Quoted(name)), flops.backward, true));
  }
  return absl::OkStatus();
}

CallFlops EstimateFlops(const Model& model, CallId id) {
  const CallSpec& call = model.call(id);
  const TensorSpec* tensor = FirstWithExtents(model, call.outputs);
  if (tensor == nullptr) tensor = FirstWithExtents(model, call.inputs);
  if (tensor == nullptr) return {};
  const double rows = static_cast<double>(NumElements(absl::MakeSpan(tensor->shape).first(tensor->shape.size() - 1)));
  std::set<ParameterId> parameters(call.parameters.begin(), call.parameters.end());
  for (const UnitId unit : call.units) {
    parameters.insert(model.unit(unit).parameters.begin(), model.unit(unit).parameters.end());
  }
  double elements = 0;
  for (const ParameterId parameter : parameters) {
    const Shape& shape = model.parameter(parameter).spec.shape;
    if (shape.size() >= 2) elements += static_cast<double>(NumElements(shape));
  }
  return {.forward = 2 * rows * elements, .backward = 4 * rows * elements};
}

absl::StatusOr<Timeline> PredictTimeline(const Plan& plan, const std::vector<int>& schedules, const CostModel& costs) {
  REPRISE_RETURN_IF_ERROR(CheckSchedules(plan, schedules));
  REPRISE_RETURN_IF_ERROR(internal::CheckFigures(costs));
  REPRISE_RETURN_IF_ERROR(CheckCalls(plan.model, costs));
  const CommandCosts command_costs(plan, costs);
  Timeline timeline;
  double replay_start = 0;
  for (size_t replay = 0; replay < schedules.size(); ++replay) {
    const std::vector<ScheduledCommand>& commands = plan.schedules[schedules[replay]].commands;
    std::array<double, kNumLanes> lanes;  // when each is free
    lanes.fill(replay_start);
    std::vector<double> ends;  // by command
    for (size_t c = 0; c < commands.size(); ++c) {
      double& lane = lanes[static_cast<int>(commands[c].lane)];
      double start = lane;
      for (const Wait& wait : commands[c].waits) start = std::max(start, ends[wait.command.value()]);
      const std::optional<double> cost = command_costs.Of(commands[c]);
      lane = start + cost.value_or(0);
      ends.push_back(lane);
      if (!cost.has_value()) continue;
      timeline.spans.push_back({.replay = static_cast<int>(replay),
                                .schedule = schedules[replay],
                                .command = CommandId(static_cast<int64_t>(c)),
                                .start_us = start,
                                .end_us = lane});
    }
    replay_start = *std::max_element(lanes.begin(), lanes.end());
    if (replay_start > internal::kMaxMicroseconds) {
      return absl::InvalidArgumentError(absl::StrCat("replay ", replay, " of ", schedules.size(), " would end after ",
                                                     replay_start,
                                                     " microseconds; give a cost model with higher rates or less time "
                                                     "for each command"));
    }
  }
  return timeline;
}

}  // namespace reprise
