// What a session takes is what its plan says, does not grow, and is given back.
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/graph/founding/founding.h"
#include "tests/graph/founding/watched_world.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

constexpr int64_t kUnits = 8, kWidth = 256, kRows = 2;
constexpr int64_t kUnitBytes = kWidth * kWidth * 2;  // of one gathered copy

// Eight units of one square weight in bfloat16.
Chain Stack() {
  ChainSpec spec = {.name = "Stack", .rows = kRows, .width = kWidth};
  for (int64_t i = 0; i < kUnits; ++i) {
    const std::string name = std::string(1, static_cast<char>('a' + i));
    spec.parameters.push_back({name, name, {kWidth, kWidth}});
    spec.calls.push_back({.kind = ChainCall::Kind::kLinear, .weight = name, .whole_unit = true});
  }
  return MakeChain(spec, DType::kBFloat16);
}

int64_t Aligned(int64_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }

// Two staging slots of each input, the loss, and what a step keeps.
int64_t BytesBesideShards(int ranks) {
  return 2 * (Aligned(kRows * kWidth * 2) + Aligned(kRows * 4)) + Aligned(4) + Aligned(sizeof(ControlBlock)) +
         Aligned(sizeof(StepState)) + Aligned(kUnits * sizeof(double)) + Aligned((1 + ranks) * sizeof(NormPart)) +
         Aligned(sizeof(MetricsRing));
}

// The founding formula, with accumulators in float32: weights, accumulators, masters where their dtype differs, and
// what the optimizer keeps.
TEST_P(FoundingTest, PersistentBytesAreTheFormula) {
  for (const DType master : {DType::kBFloat16, DType::kFloat32}) {
    for (const Optimizer& optimizer : {Optimizer(Sgd{}), Optimizer(AdamW{})}) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining training,
                                   StartTraining(world_, Stack(), Options({}, optimizer), master));
      const bool keeps_moments = std::holds_alternative<AdamW>(optimizer);
      const int64_t per_element = 2 + 4 + (master == DType::kFloat32 ? 4 : 0) + (keeps_moments ? 2 * 4 : 0);
      const int64_t shards = kUnits * kWidth * kWidth * per_element / ranks();
      const SessionReport& report = training.session->report();
      EXPECT_EQ(report.persistent_bytes, training.session->plan().memory.persistent_bytes());
      EXPECT_EQ(report.persistent_bytes, shards + BytesBesideShards(ranks()))
          << Name(master) << ", moments " << keeps_moments;
    }
  }
}

// Beside the slots one copy more is all that activations and what a rank receives of a reduction may take; where one
// rank receives all of it, that is another copy.
TEST_P(FoundingTest, TransientBytesAreSlotsAndOneCopyMore) {
  for (const int slots : {1, 2, 4}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const ChainTraining training,
        StartTraining(world_, Stack(), Options({.weight_slots = slots, .gradient_slots = slots})));
    const MemoryPlan& memory = training.session->plan().memory;
    EXPECT_EQ(training.session->report().transient_bytes, memory.transient_bytes());
    EXPECT_GE(memory.transient_bytes(), slots * kUnitBytes);
    const int64_t copies = 2 * slots + 1 + (ranks() == 1 ? 1 : 0);
    EXPECT_LT(memory.transient_bytes(), copies * kUnitBytes) << slots << " slots of either kind";
  }
}

int64_t Taken(const MemoryUse& use) { return use.requested + use.rounding + use.recording + use.communication; }

// Where the memory is a device's, the world's own account is checked too. A block that was not freed would count as
// communication; small ones may come from what an earlier one left to the driver, so that only sums can be compared.
TEST_P(FoundingTest, MemoryIsThePlansRestsBetweenStepsAndGoesWithItsOwners) {
  const auto world = std::make_shared<WatchedWorld>(world_);
  const MemoryUse at_start = world_->memory();
  std::optional<int64_t> taken, left;  // at rest and at the end of the first cycle, in which communicators start
  for (int cycle = 0; cycle < 3; ++cycle) {
    SCOPED_TRACE(absl::StrCat("cycle ", cycle));
    {
      REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining training, StartTraining(world, Stack(), Options()));
      const MemoryPlan& memory = training.session->plan().memory;
      const int64_t planned = memory.persistent_bytes() + memory.transient_bytes();
      const int64_t requested = world_->memory().requested;
      for (int64_t step = 0; step < 3; ++step) {
        ASSERT_THAT(RunMicrobatches(training, step, {.learning_rate = 0.01f, .microbatches = 2}), IsOk());
        ASSERT_THAT(training.session->EndStep(), IsOk());
        ASSERT_THAT(training.session->Synchronize(), IsOk());
        const MemoryUse rest = world_->memory();
        if (!taken.has_value()) taken = Taken(rest);
        EXPECT_EQ(world->live_bytes(), planned);
        EXPECT_EQ(rest.requested, requested);
        EXPECT_LE(Taken(rest), *taken) << "step " << step;
      }
    }
    const MemoryUse rest = world_->memory();
    if (!left.has_value()) left = Taken(rest);
    EXPECT_EQ(world->live_bytes(), 0);
    EXPECT_EQ(rest.requested, at_start.requested);
    EXPECT_EQ(rest.recording, at_start.recording);
    EXPECT_LE(Taken(rest), *left);
  }
}

}  // namespace
}  // namespace reprise::testing
