// Random nets in random settings: whatever a legal model and legal options are, sharded training on host ranks gives
// what a plain program in double precision gives, within bounds that the program carries.
//
// REPRISE_TEST_NETS=N runs N nets instead of 300, REPRISE_TEST_FIRST_NET=SEED starts at another seed, and either prints
// what the nets covered and how near to their bounds the differences came.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/nets/comparison.h"
#include "tests/graph/nets/coverage.h"
#include "tests/graph/nets/net.h"
#include "tests/graph/nets/training.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  uint64_t number = 0;
  const char* const text = std::getenv(name);
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

struct NetRun {
  NetComparison comparison;
  Coverage coverage;
  int64_t twins = 0;                 // trainings whose bits were compared with another's
  std::vector<double> sharpness[2];  // by net, bounds of gradients over gradients: float32 throughout, and others
};

// Fewer gradient slots than a call has units may do, or be refused: then there are as many.
absl::StatusOr<NetTrace> TrainWithEnoughSlots(const Net& net, NetSetting& setting, NetRun& run) {
  absl::StatusOr<NetTrace> trace = Train(net, setting);
  if (!absl::IsResourceExhausted(trace.status())) return trace;
  EXPECT_THAT(trace.status().message(), ::testing::HasSubstr("raise gradient_slots"));
  ++run.coverage["refused with too few gradient slots"];
  bool too_few = false;
  for (PlanOptions* plan : {&setting.train.run.plan, &setting.other_plan}) {
    too_few = too_few || plan->gradient_slots.value_or(2) < net.units_of_a_call();
    plan->gradient_slots = std::max(plan->gradient_slots.value_or(2), net.units_of_a_call());
  }
  EXPECT_TRUE(too_few) << net.ToString() << setting.ToString();
  return Train(net, setting);
}

void RunNet(uint64_t seed, NetRun& run) {
  const Net net = RandomNet(seed);
  Random random(seed ^ 0x5e77176);
  NetSetting setting = RandomNetSetting(net, random);
  CountNet(net, run.coverage);
  CountSetting(setting, run.coverage);
  const auto trace = TrainWithEnoughSlots(net, setting, run);
  const std::string description = absl::StrCat(net.ToString(), setting.ToString(), "\n");
  ASSERT_TRUE(trace.ok()) << description << trace.status();
  NetComparison comparison;
  CompareWithProgram(net, setting, *trace, comparison);
  EXPECT_THAT(comparison.failures, ::testing::IsEmpty()) << description;
  run.coverage["shared arena"] += trace->shared_arena ? 1 : 0;
  run.comparison.Add(comparison);
  const NetComparison::Kind& gradients = comparison.kinds["gradient"];
  if (gradients.values > 0) {
    run.sharpness[AllFloat32(net, setting) ? 0 : 1].push_back(gradients.bounds / gradients.values);
  }
  if (!random.Chance(50)) return;
  NetSetting twin_setting = WithTheSameBits(net, setting, random);
  const auto twin = TrainWithEnoughSlots(net, twin_setting, run);
  ASSERT_TRUE(twin.ok()) << net.ToString() << twin_setting.ToString() << "\n" << twin.status();
  EXPECT_TRUE(twin->Bytes() == trace->Bytes()) << description << twin_setting.ToString() << "\nother bits";
  ++run.twins;
}

// 0 of none.
double Median(std::vector<double> numbers) {
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

void Print(const NetRun& run) {
  for (const auto& [what, count] : run.coverage) std::cout << what << ": " << count << "\n";
  std::cout << "trainings compared bit for bit: " << run.twins << "\n";
  for (const int narrow : {0, 1}) {
    std::cout << "bounds over gradients, " << (narrow == 0 ? "float32" : "bfloat16") << ": median of "
              << run.sharpness[narrow].size() << " nets " << Median(run.sharpness[narrow]) << "\n";
  }
  for (const auto& [what, kind] : run.comparison.kinds) {
    std::cout << what << ": " << kind.numbers << " numbers, largest difference " << kind.largest << " of its bound, "
              << kind.unbounded << " without a bound\n";
  }
}

constexpr uint64_t kNets = 300;

TEST(RandomNetsTest, TrainingEqualsAnUnshardedProgram) {
  const bool chosen = std::getenv("REPRISE_TEST_NETS") != nullptr || std::getenv("REPRISE_TEST_FIRST_NET") != nullptr;
  const uint64_t first = FromEnvironment("REPRISE_TEST_FIRST_NET", 1);
  const uint64_t nets = FromEnvironment("REPRISE_TEST_NETS", kNets);
  NetRun run;
  for (uint64_t seed = first; seed < first + nets; ++seed) RunNet(seed, run);
  if (chosen) return Print(run);
  // A bound as large as what it bounds would let anything pass.
  EXPECT_LT(Median(run.sharpness[0]), 0x1p-12);
  EXPECT_LT(Median(run.sharpness[1]), 0x1p-2);
  for (const auto& [what, count] : run.coverage) EXPECT_GT(count, 0) << what;
}

}  // namespace
}  // namespace reprise::testing
