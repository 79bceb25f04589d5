#include "graph/cuda/transport_trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "graph/cuda/caller_state.h"
#include "graph/step_runner.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/cuda_world.h"
#include "reprise/kernels/linear.h"

namespace reprise::internal {
namespace {

using Clock = std::chrono::steady_clock;
using T = BFloat16;

constexpr Transport kTried[] = {Transport::kNccl, Transport::kCopyEngine, Transport::kSymmetric};
// Of square weights, and so of units a quarter as large as the next.
constexpr int64_t kWidths[] = {256, 512, 1024, 2048, 4096, 8192};
constexpr int kUnits = 4;
constexpr int kRounds = 5;
constexpr double kSecondsPerRound = 0.03;
constexpr double kMinReplays = 3, kMaxReplays = 200;
// Part of the device's free memory that a trial may ask for, and what it takes beside its plans: communicators and the
// transports' own memory (1.9 GB on two H200, NCCL 2.28.9).
constexpr double kMemoryShare = 0.5;
constexpr int64_t kFixedBytes = int64_t{2} << 30;
// Two plans that are equal, measured in turns, differ by up to 2.1 % (two H200).
constexpr double kClearly = 0.97;

// As many rows as columns: compute of a unit grows by eight where its bytes grow by four, as in models.
absl::StatusOr<Model> TrialModel(int64_t width) { return StackModel(kUnits, {width, width}, DType::kBFloat16, width); }

absl::Status Copy(Stream stream, void* to, const void* from, int64_t num_bytes) {
  return kernels::CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToDevice, CudaStream(stream)),
      "copying a gradient");
}

ComputeTable TrialCompute(const Model& model) {
  ComputeTable compute;
  for (size_t c = 0; c < model.calls().size(); ++c) {
    const CallSpec& call = model.calls()[c];
    const TensorId x = call.inputs[0], y = call.outputs[0];
    if (call.units.empty()) {
      // A loss that costs nothing; its gradient is the last activation, real numbers.
      compute[CallId(static_cast<int64_t>(c))] = {
          [=](ComputeContext& context) {
            return kernels::CudaStatus(
                cudaMemsetAsync(context.output<float>(y).data, 0, sizeof(float), CudaStream(context.stream())),
                "clearing a loss");
          },
          [=](ComputeContext& context) {
            const TensorView<const T> value = context.saved<const T>(x);
            return Copy(context.stream(), context.input_gradient<T>(x).data, value.data,
                        NumElements(Shape(value.shape.begin(), value.shape.end())) * SizeOf(DType::kBFloat16));
          }};
      continue;
    }
    const ParameterId w = model.unit(call.units[0]).parameters[0];
    compute[CallId(static_cast<int64_t>(c))] = {
        [=](ComputeContext& context) {
          return kernels::Linear<T>(context.stream(), context.input<T>(x), context.parameter<T>(w),
                                    context.output<T>(y));
        },
        [=](ComputeContext& context) {
          return kernels::LinearBackward<T, T>(context.stream(), context.output_gradient<T>(y),
                                               context.saved<const T>(x), context.parameter<T>(w),
                                               context.input_gradient<T>(x), context.parameter_gradient<T>(w));
        }};
  }
  return compute;
}

absl::StatusOr<double> SecondsOf(StepRunner& runner, int replays) {
  REPRISE_RETURN_IF_ERROR(runner.world().Synchronize());
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < replays; ++i) REPRISE_RETURN_IF_ERROR(runner.ReplayBody());
  REPRISE_RETURN_IF_ERROR(runner.world().Synchronize());
  return std::chrono::duration<double>(Clock::now() - start).count() / replays;
}

// Milliseconds of each runner's body: means over ranks, and so the same on all, of medians of rounds in turns.
absl::StatusOr<std::vector<double>> Compare(Machine& world, const std::vector<std::unique_ptr<StepRunner>>& runners) {
  std::vector<std::vector<double>> rounds(runners.size());
  std::vector<int> replays;
  for (const std::unique_ptr<StepRunner>& runner : runners) {
    REPRISE_RETURN_IF_ERROR(runner->BeginStep());
    REPRISE_RETURN_IF_ERROR(runner->ReplayFirst());
    REPRISE_ASSIGN_OR_RETURN(const double seconds, SecondsOf(*runner, static_cast<int>(kMinReplays)));
    // All ranks replay as often.
    REPRISE_ASSIGN_OR_RETURN(const double sum, world.Sum({&seconds, 1}));
    replays.push_back(static_cast<int>(std::clamp(kSecondsPerRound * world.size() / sum, kMinReplays, kMaxReplays)));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < runners.size(); ++i) {
      REPRISE_ASSIGN_OR_RETURN(const double seconds, SecondsOf(*runners[i], replays[i]));
      rounds[i].push_back(1e3 * seconds);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& round : rounds) {
    std::nth_element(round.begin(), round.begin() + kRounds / 2, round.end());
    REPRISE_ASSIGN_OR_RETURN(const double sum, world.Sum({&round[kRounds / 2], 1}));
    medians.push_back(sum / world.size());
  }
  return medians;
}

}  // namespace

absl::StatusOr<TransportTimes> TryTransports(const std::shared_ptr<Machine>& world, const CudaRank& rank,
                                             absl::FunctionRef<void(absl::string_view)> progress) {
  const CallerState caller(rank.device());
  const auto agree = [&](const absl::Status& status) { return world->Agree("trying transports", status, {}); };
  TransportTimes times;
  for (const int64_t width : kWidths) {
    REPRISE_ASSIGN_OR_RETURN(const Model model, TrialModel(width));
    std::vector<Plan> plans;
    int64_t bytes = kFixedBytes;
    for (const Transport transport : kTried) {
      REPRISE_ASSIGN_OR_RETURN(
          plans.emplace_back(),
          PlanTraining(model, world->size(), {.transports = EveryUnit(transport), .optimizer_states = 0}));
      bytes += plans.back().memory.persistent_bytes() + plans.back().memory.transient_bytes();
    }
    const absl::StatusOr<int64_t> free_bytes = rank.account().FreeBytes();
    REPRISE_RETURN_IF_ERROR(agree(free_bytes.status()));
    const double lacks = static_cast<double>(bytes) > kMemoryShare * static_cast<double>(*free_bytes) ? 1 : 0;
    REPRISE_ASSIGN_OR_RETURN(const double ranks_that_lack, world->Sum({&lacks, 1}));
    if (ranks_that_lack > 0) return TransportTimes();
    const ComputeTable compute = TrialCompute(model);
    const int64_t unit_bytes = plans[0].layout.units[0].gathered_bytes;
    std::vector<std::unique_ptr<StepRunner>> runners;
    for (Plan& plan : plans) {
      const auto make = [&]() -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(runners.emplace_back(), StepRunner::Create(world, std::move(plan), compute));
        return runners.back()->Record(Execution::kGraph);
      };
      REPRISE_RETURN_IF_ERROR(agree(make()));
    }
    const absl::StatusOr<std::vector<double>> milliseconds = Compare(*world, runners);
    REPRISE_RETURN_IF_ERROR(agree(milliseconds.status()));
    std::string line = absl::StrCat("units of ", unit_bytes, " bytes, ms:");
    for (size_t i = 0; i < runners.size(); ++i) {
      times[unit_bytes][kTried[i]] = (*milliseconds)[i];
      absl::StrAppend(&line, " ", std::string(Name(kTried[i])), " ", (*milliseconds)[i]);
    }
    progress(line);
  }
  return times;
}

std::vector<TransportChoice> ChooseTransports(const TransportTimes& times) {
  std::vector<TransportChoice> choices;
  Transport transport = Transport::kNccl;
  int64_t smaller = 0;
  for (const auto& [bytes, of_size] : times) {
    const auto quickest = std::min_element(of_size.begin(), of_size.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
    if (quickest->second < of_size.at(transport) * kClearly) transport = quickest->first;
    if (choices.empty() || choices.back().transports != transport) {
      const double mean = std::sqrt(static_cast<double>(smaller) * static_cast<double>(bytes));
      choices.push_back({std::llround(mean), transport});
    }
    smaller = bytes;
  }
  return choices;
}

}  // namespace reprise::internal
