// Eager replays open an NVTX range per command, named as in the plan's text.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

// A tool that is linked into the program, by NVTX's interface for tools: callbacks are written into the function table
// of its core module.
std::vector<std::string> pushed;
int depth = 0;

int OnPush(const char* name) {
  pushed.push_back(name);
  return depth++;
}
int OnPop() { return --depth; }

struct Callbacks {
  size_t size;
  int (*get_function_table)(int module, void**** table, unsigned* size);
};

int Attach(const void* (*get_export_table)(uint32_t)) {
  constexpr uint32_t kCallbacks = 1;
  constexpr int kCoreModule = 1, kRangePushA = 9, kRangePop = 11;
  const auto* const callbacks = static_cast<const Callbacks*>(get_export_table(kCallbacks));
  void*** table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->get_function_table(kCoreModule, &table, &size) == 0 || size <= kRangePop) {
    return 0;
  }
  *table[kRangePushA] = reinterpret_cast<void*>(OnPush);
  *table[kRangePop] = reinterpret_cast<void*>(OnPop);
  return 1;
}

}  // namespace

extern "C" int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(uint32_t));
int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(uint32_t)) = Attach;

namespace reprise::testing {
namespace {

TEST(EagerRangesTest, OneForEachCommandInIssueOrder) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, world->size(), {}));
  std::vector<std::string> want;
  for (const int schedule : {plan.first, plan.step}) {
    for (const ScheduledCommand& command : plan.schedules[schedule].commands) {
      want.push_back(Describe(plan, command.command));
    }
  }
  for (const Execution execution : {Execution::kEager, Execution::kGraph}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto runner, PlanRunner::Create(world, plan, classifier.compute,
                                                                       ClassifierParameter, {.execution = execution}));
    pushed.clear();
    ASSERT_THAT(runner->RunStep(1, ClassifierInput), IsOk());
    EXPECT_EQ(pushed, execution == Execution::kEager ? want : std::vector<std::string>());
    EXPECT_EQ(depth, 0);
  }
}

}  // namespace
}  // namespace reprise::testing
