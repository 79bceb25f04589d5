// Padding of shards and slots reaches no sum, no norm and no parameter, whatever it holds.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/graph/founding/founding.h"
#include "tests/graph/founding/watched_world.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using Kind = ChainCall::Kind;

// Whole groups lie within one alignment, so that nearly all of a shard is padding, and with more ranks than one some
// have nothing else.
ChainSpec SmallUnits() {
  return {.name = "SmallUnits",
          .parameters = {{"w0", "a", {5, 3}},
                         {"w1", "b", {3, 5}},
                         {.name = "idle", .unit = "b", .shape = {7}, .unused = true}},
          .calls = {{.kind = Kind::kLinearRelu, .weight = "w0"}, {.kind = Kind::kLinear, .weight = "w1"}},
          .width = 3};
}

// Persistent shards of every local rank, with their padding.
absl::StatusOr<std::vector<float>> Masters(internal::Machine& world, const ShardedParameters& parameters,
                                           Storage storage) {
  const std::shared_ptr<internal::MemoryBlock> block = parameters.memory(storage);
  std::vector<float> all;
  for (int local = 0; local < static_cast<int>(world.local_ranks().size()); ++local) {
    std::vector<float> values(static_cast<size_t>(block->num_bytes()) / sizeof(float));
    REPRISE_RETURN_IF_ERROR(world.CopyToHost(local, values.data(), block->address(local), block->num_bytes()));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_P(FoundingTest, NanInPaddingReachesNothing) {
  const auto world = std::make_shared<WatchedWorld>(world_);
  const PlanOptions plans[] = {
      {}, {.reduce = Reduce::kOncePerStep}, {.reduce = Reduce::kOncePerStep, .reduce_dtype = DType::kFloat32}};
  for (const PlanOptions& plan : plans) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(absl::StrCat(Name(dtype), ", reduce_dtype ", Name(plan.reduce_dtype), ", once per step ",
                                plan.reduce == Reduce::kOncePerStep));
      TrainOptions options = Options(plan, AdamW{.weight_decay = 0.125f});
      options.clip_norm = 0x1p-6f;  // so that the norm is in every update
      REPRISE_ASSERT_OK_AND_ASSIGN(const ChainTraining training,
                                   StartTraining(world, MakeChain(SmallUnits(), dtype), options));
      for (int64_t step = 0; step < 3; ++step) {
        ChainStep done;
        ASSERT_NO_FATAL_FAILURE(RunCheckedStep(training, step, {.learning_rate = 0.125f, .microbatches = 2}, done));
        EXPECT_GT(done.metrics.gradient_norm, *options.clip_norm);
        EXPECT_FALSE(done.metrics.skipped);
      }
      const Storage masters = dtype == DType::kFloat32 ? Storage::kWeights : Storage::kMasters;
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> shards, Masters(*world, *training.parameters, masters));
      for (size_t i = 0; i < shards.size(); ++i) ASSERT_TRUE(std::isfinite(shards[i])) << "element " << i;
    }
  }
}

}  // namespace
}  // namespace reprise::testing
