#include "reprise/core/plan.h"

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/sample_plan.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SamplePlan;

TEST(MemoryPlanTest, SumsPersistentAndTransientStorages) {
  MemoryPlan memory;
  memory.num_bytes = {1, 2, 4, 8, 16, 32, 64, 0};
  memory.lower_bound = {0, 0, 0, 0, 0, 10, 20, 0};
  EXPECT_EQ(memory.persistent_bytes(), 1 + 2 + 4 + 8 + 16);
  EXPECT_EQ(memory.transient_bytes(), 32 + 64);
  EXPECT_EQ(memory.transient_lower_bound_bytes(), 30);
}

// A plan whose schedules are told apart by their numbers of gathers, reductions and waits.
Plan PlanOfCounts() {
  Plan plan = SamplePlan();
  const ScheduledCommand gather{AllGather{UnitId(0), 0, Transport::kNccl, AxisId(0)}};
  const ScheduledCommand reduce{ReduceScatter{UnitId(0), 0, 0, Transport::kNccl, Sum::kNccl, AxisId(0)},
                                Lane::kReduceScatter,
                                {},
                                {{CommandId(0)}, {CommandId(1)}}};
  plan.schedules.assign(4, {});
  plan.schedules[0].commands = {gather, gather, gather};
  plan.schedules[1].commands = {gather, gather, reduce};
  plan.schedules[2].commands = {reduce};
  plan.schedules[3].commands = {{Begin{}}};
  plan.first = 0;
  plan.body = 1;
  plan.finish = 2;
  plan.step = 3;
  plan.options.microbatches_per_graph = 2;
  return plan;
}

TEST(SummarizeTest, CountsFirstOnceThenBodiesThenFinishAndStep) {
  const absl::StatusOr<PlanSummary> summary = Summarize(PlanOfCounts(), 6);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->microbatches, 6);
  EXPECT_EQ(summary->all_gathers, 3 + 2 * 2);
  EXPECT_EQ(summary->reduce_scatters, 2 * 1 + 1);
  EXPECT_EQ(summary->commands, 3 + 2 * 3 + 1 + 1);
  EXPECT_EQ(summary->waits, 2 * 2 + 2);
}

TEST(SummarizeTest, OneGraphRunsFirstAlone) {
  const absl::StatusOr<PlanSummary> summary = Summarize(PlanOfCounts(), 2);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->all_gathers, 3);
}

TEST(SummarizeTest, CopiesMemoryAndFingerprint) {
  const Plan plan = SamplePlan();
  const absl::StatusOr<PlanSummary> summary = Summarize(plan, 2);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->persistent_bytes, 100 + 200 + 400 + 800 + 1600 + 12800);
  EXPECT_EQ(summary->transient_bytes, 3200 + 6400);
  EXPECT_EQ(summary->transient_lower_bound_bytes, 1024 + 2048);
  EXPECT_EQ(summary->fingerprint, plan.fingerprint);
}

TEST(SummarizeTest, RefusesMicrobatchesThatDoNotFillGraphs) {
  for (int microbatches : {-2, 0, 1, 3}) {
    const absl::Status status = Summarize(PlanOfCounts(), microbatches).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << microbatches;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("graphs of 2"), HasSubstr("positive multiple of 2"),
                                                     HasSubstr("microbatches_per_graph")));
  }
}

TEST(DescribeTest, NamesWhatTheCommandWorksOn) {
  const Plan plan = SamplePlan();
  const UnitId u(0);
  EXPECT_EQ(Describe(plan, AllGather{u, 1, Transport::kNccl, AxisId(0)}), "all_gather u0 slot 1 nccl");
  EXPECT_EQ(Describe(plan, Forward{CallId(0), 2}), "forward call microbatch 2");
  EXPECT_EQ(Describe(plan, Forward{CallId(0), 2, true}), "forward call microbatch 2 recompute");
  EXPECT_EQ(Describe(plan, ReduceScatter{u, -1, 1, Transport::kCopyEngine, Sum::kNccl, AxisId(0)}),
            "reduce_scatter u0 microbatch -1 slot 1 copy_engine sum nccl");
  EXPECT_EQ(Describe(plan, Accumulate{u, 0, Sum::kNccl, AccumulateMode::kAlwaysAssign}),
            "accumulate u0 microbatch 0 sum nccl always_assign");
  EXPECT_EQ(Describe(plan, Accumulate{.unit = u, .position = 1, .beside_compute = true}),
            "accumulate u0 microbatch 1 sum rank_order by_microbatch beside_compute");
  EXPECT_EQ(Describe(plan, Begin{}), "begin");
}

TEST(DescribeTest, NamesTheAxisWhereThereAreSeveral) {
  Plan plan = SamplePlan();
  plan.axes.push_back({"model", 2});
  EXPECT_EQ(Describe(plan, AllGather{UnitId(0), 1, Transport::kNccl, AxisId(1)}), "all_gather u0 slot 1 nccl model");
}

// Verify describes the commands of plans that it refuses.
TEST(DescribeTest, ShowsIdsThatNameNothing) {
  const Plan plan = SamplePlan();
  EXPECT_EQ(Describe(plan, UpdateParameters{UnitId(7)}), "update_parameters unit#7");
  EXPECT_EQ(Describe(plan, Backward{CallId(), 0}), "backward call#-1 microbatch 0");
}

TEST(IsCollectiveTest, HoldsForTheCommandsThatRanksExecuteTogether) {
  int collectives = 0;
  for (const Schedule& schedule : SamplePlan().schedules) {
    for (const ScheduledCommand& command : schedule.commands) collectives += IsCollective(command.command) ? 1 : 0;
  }
  EXPECT_EQ(collectives, 3);
  EXPECT_TRUE(IsCollective(AllGather{}));
  EXPECT_TRUE(IsCollective(ReduceScatter{}));
  EXPECT_TRUE(IsCollective(SumNorm{}));
}

}  // namespace
}  // namespace reprise
