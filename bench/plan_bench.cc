// Time to plan and to verify a stack of N units on two ranks, and how it grows with N.
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/run_benchmarks.h"
#include "benchmark/benchmark.h"
#include "reprise/core/model.h"
#include "reprise/core/plan.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/verifier.h"

namespace reprise {
namespace {

absl::StatusOr<Model> Stack(const benchmark::State& state) {
  return StackModel(static_cast<int>(state.range(0)), {64, 64}, DType::kBFloat16, /*tokens=*/16);
}

void BM_PlanTraining(benchmark::State& state) {
  const absl::StatusOr<Model> model = Stack(state);
  for (auto _ : state) {
    const absl::StatusOr<Plan> plan = PlanTraining(*model, /*world_size=*/2, {});
    if (!plan.ok()) state.SkipWithError(plan.status().ToString().c_str());
  }
  state.SetComplexityN(state.range(0));
}

void BM_Verify(benchmark::State& state) {
  const absl::StatusOr<Plan> plan = PlanTraining(*Stack(state), /*world_size=*/2, {});
  for (auto _ : state) {
    const absl::Status status = Verify(*plan);
    if (!status.ok()) state.SkipWithError(status.ToString().c_str());
  }
  state.SetComplexityN(state.range(0));
}

BENCHMARK(BM_PlanTraining)
    ->RangeMultiplier(10)
    ->Range(10, 10000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oNLogN);
BENCHMARK(BM_Verify)
    ->RangeMultiplier(10)
    ->Range(10, 10000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oNLogN);

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) { return reprise::bench::RunBenchmarks(argc, argv); }
