#include "core/planner/memory/memory_planner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/planner/memory/placement.h"
#include "core/planner/schedule_builder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/core/verifier.h"
#include "tests/core/hand_made_plan.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::HandMadeOptions;
using ::reprise::testing::HandMadePlan;
using ::reprise::testing::IsOk;
using ::reprise::testing::Random;
using ::reprise::testing::RandomModel;
using ::reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kCommunicating = static_cast<int>(Storage::kCommunicating);
constexpr int kLocal = static_cast<int>(Storage::kLocal);

// ---- which lives are ordered, without the planner's clocks ----

// For each command, which others are complete before it starts.
std::vector<std::vector<bool>> Predecessors(const Schedule& schedule) {
  const size_t n = schedule.commands.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  std::vector<int> latest(kNumLanes, -1);
  for (size_t i = 0; i < n; ++i) {
    const ScheduledCommand& command = schedule.commands[i];
    std::vector<int> direct;
    int& tail = latest[static_cast<int>(command.lane)];
    if (tail >= 0) direct.push_back(tail);
    tail = static_cast<int>(i);
    for (const Wait& wait : command.waits) direct.push_back(wait.command.value());
    for (const int d : direct) {
      before[i][d] = true;
      for (size_t j = 0; j < n; ++j) before[i][j] = before[i][j] || before[d][j];
    }
  }
  return before;
}

struct UseSet {
  int buffer;
  std::vector<int> commands;
};

std::vector<UseSet> Lives(const Plan& plan, const Schedule& schedule) {
  std::vector<UseSet> lives;
  const int num_commands = static_cast<int>(schedule.commands.size());
  for (int b = 0; b < static_cast<int>(plan.buffers.size()); ++b) {
    if (!IsTransient(plan.buffers[b].storage) || plan.buffers[b].num_bytes == 0) continue;
    const auto holds = [&](const ScheduleState& state) {
      return std::any_of(state.residents.begin(), state.residents.end(),
                         [&](const Resident& r) { return r.buffer.value() == b; }) ||
             std::any_of(state.outstanding.begin(), state.outstanding.end(),
                         [&](const OutstandingReduction& r) { return r.buffer.value() == b; });
    };
    UseSet life = {b, {}};
    if (holds(schedule.start)) life.commands.push_back(0);
    for (int c = 0; c < num_commands; ++c) {
      const ScheduledCommand& command = schedule.commands[c];
      for (const BufferUse& use : command.uses) {
        if (use.buffer.value() != b || use.num_bytes == 0) continue;
        const bool gathers = std::holds_alternative<AllGather>(command.command) && use.access == Access::kAssign;
        if (gathers && !life.commands.empty() && life.commands.back() != c) {
          lives.push_back(std::exchange(life, {b, {}}));
        }
        life.commands.push_back(c);
      }
    }
    if (holds(schedule.end)) life.commands.push_back(num_commands - 1);
    if (!life.commands.empty()) lives.push_back(std::move(life));
  }
  return lives;
}

// For each buffer the others of its storage that some legal run uses while it is in use.
std::vector<std::set<int>> Interference(const Plan& plan) {
  std::vector<std::set<int>> interfering(plan.buffers.size());
  for (const Schedule& schedule : plan.schedules) {
    const std::vector<std::vector<bool>> before = Predecessors(schedule);
    const std::vector<UseSet> lives = Lives(plan, schedule);
    const auto all_before = [&](const UseSet& a, const UseSet& b) {
      return std::all_of(a.commands.begin(), a.commands.end(), [&](int earlier) {
        return std::all_of(b.commands.begin(), b.commands.end(), [&](int later) { return before[later][earlier]; });
      });
    };
    for (const UseSet& a : lives) {
      for (const UseSet& b : lives) {
        if (a.buffer == b.buffer || plan.buffers[a.buffer].storage != plan.buffers[b.buffer].storage) continue;
        if (!all_before(a, b) && !all_before(b, a)) interfering[a.buffer].insert(b.buffer);
      }
    }
  }
  return interfering;
}

// A pair of buffers that share bytes although some legal run uses both at once; empty if there is none.
std::string FindClash(const Plan& plan) {
  const std::vector<std::set<int>> interfering = Interference(plan);
  for (size_t a = 0; a < interfering.size(); ++a) {
    for (const int b : interfering[a]) {
      const Buffer &of_a = plan.buffers[a], &of_b = plan.buffers[b];
      if (of_a.offset + of_a.num_bytes <= of_b.offset || of_b.offset + of_b.num_bytes <= of_a.offset) continue;
      return absl::StrCat(of_a.name, " (", a, ") and ", of_b.name, " (", b, ")");
    }
  }
  return "";
}

// The most bytes found of buffers of a storage any two of which interfere, in whichever schedule. No placement takes
// less, though at no time all of them need be in use.
class LargestClique {
 public:
  LargestClique(const Plan& plan, int storage) : plan_(plan), interfering_(Interference(plan)) {
    std::vector<int> buffers;
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      if (static_cast<int>(plan.buffers[b].storage) == storage && Bytes(static_cast<int>(b)) > 0) {
        buffers.push_back(static_cast<int>(b));
      }
    }
    std::stable_sort(buffers.begin(), buffers.end(), [&](int a, int b) { return Bytes(a) > Bytes(b); });
    Extend(buffers, 0);
  }
  int64_t bytes() const { return most_; }

 private:
  int64_t Bytes(int buffer) const { return internal::PaddedBytes(plan_.buffers[buffer].num_bytes); }
  void Extend(const std::vector<int>& candidates, int64_t bytes) {
    most_ = std::max(most_, bytes);
    int64_t left = 0;
    for (const int b : candidates) left += Bytes(b);
    for (size_t i = 0; i < candidates.size() && bytes + left > most_ && ++steps_ < 20'000; ++i) {
      std::vector<int> next;
      for (size_t j = i + 1; j < candidates.size(); ++j) {
        if (interfering_[candidates[i]].count(candidates[j]) > 0) next.push_back(candidates[j]);
      }
      Extend(next, bytes + Bytes(candidates[i]));
      left -= Bytes(candidates[i]);
    }
  }

  const Plan& plan_;
  const std::vector<std::set<int>> interfering_;
  int64_t most_ = 0;
  int steps_ = 0;
};

HandMadeOptions RandomOptions(Random& random) {
  const auto bytes = [&random] { return random.Below(8) == 0 ? 0 : random.Size(64 * 1024); };
  return {.calls = 1 + static_cast<int>(random.Below(10)),
          .weight_slots = 1 + static_cast<int>(random.Below(4)),
          .gradient_slots = 1 + static_cast<int>(random.Below(3)),
          .weights = bytes,
          .reduce_buffer = bytes,
          .received = bytes,
          .activation = bytes,
          .scratch = bytes};
}

HandMadeOptions EqualOptions(int calls, int weight_slots) {
  const auto of = [](int64_t bytes) { return [bytes] { return bytes; }; };
  return {.calls = calls,
          .weight_slots = weight_slots,
          .gradient_slots = 2,
          .weights = of(8192),
          .reduce_buffer = of(8192),
          .received = of(4096),
          .activation = of(2048),
          .scratch = of(1000)};
}

double OverBound(const MemoryPlan& memory) {
  if (memory.transient_lower_bound_bytes() == 0) return memory.transient_bytes() == 0 ? 1 : HUGE_VAL;
  return static_cast<double>(memory.transient_bytes()) / static_cast<double>(memory.transient_lower_bound_bytes());
}

// The same, over what no placement can go below.
double OverLargestClique(const Plan& plan) {
  int64_t bound = 0;
  for (const int storage : {kCommunicating, kLocal}) {
    bound += std::max(plan.memory.lower_bound[storage], LargestClique(plan, storage).bytes());
  }
  return bound == 0 ? OverBound(plan.memory)
                    : static_cast<double>(plan.memory.transient_bytes()) / static_cast<double>(bound);
}

// ---- small cases ----

Plan OneSchedule(std::vector<Buffer> buffers, std::vector<ScheduledCommand> commands) {
  Plan plan;
  plan.buffers = std::move(buffers);
  plan.schedules.push_back({.name = "body", .commands = std::move(commands)});
  return plan;
}

BufferUse Use(int buffer, Access access) { return {BufferId(buffer), 0, 1, access, Role::kScratch, -1}; }

TEST(PlaceBuffersTest, PersistentBuffersFollowEachOtherInIdOrder) {
  Plan plan = OneSchedule({{"a", Storage::kSession, 300},
                           {"w", Storage::kWeights, 10},
                           {"empty", Storage::kSession, 0},
                           {"b", Storage::kSession, 256},
                           {"x", Storage::kExternal, 1000, 77},
                           {"c", Storage::kSession, 1}},
                          {});
  ASSERT_THAT(internal::PlaceBuffers(plan), IsOk());
  std::vector<int64_t> offsets;
  for (const Buffer& buffer : plan.buffers) offsets.push_back(buffer.offset);
  EXPECT_THAT(offsets, ElementsAre(0, 0, 0, 512, 0, 768));
  EXPECT_EQ(plan.memory.num_bytes[static_cast<int>(Storage::kSession)], 1024);
  EXPECT_EQ(plan.memory.num_bytes[static_cast<int>(Storage::kWeights)], 256);
  EXPECT_EQ(plan.memory.num_bytes[static_cast<int>(Storage::kExternal)], 0);
  EXPECT_EQ(plan.memory.transient_bytes(), 0);
}

TEST(PlaceBuffersTest, BuffersUsedOneAfterTheOtherShareBytes) {
  internal::ScheduleBuilder builder;
  builder.Add(Forward{CallId(0)}, Lane::kCompute, {Use(0, Access::kAssign)});
  builder.Add(Forward{CallId(1)}, Lane::kCompute, {Use(0, Access::kRead), Use(1, Access::kAssign)});
  builder.Add(Forward{CallId(2)}, Lane::kCompute, {Use(2, Access::kAssign)});
  Plan plan = OneSchedule({{"a", Storage::kLocal, 256}, {"b", Storage::kLocal, 1}, {"c", Storage::kLocal, 512}},
                          builder.Finish());
  ASSERT_THAT(internal::PlaceBuffers(plan), IsOk());
  EXPECT_EQ(plan.memory.num_bytes[kLocal], 512);
  EXPECT_EQ(plan.memory.lower_bound[kLocal], 512);
  EXPECT_NE(plan.buffers[0].offset, plan.buffers[1].offset);
}

TEST(PlaceBuffersTest, BuffersOfLanesThatDoNotWaitForEachOtherDoNot) {
  // In issue order the first is done before the second begins, and no single completion shows both: only the moment at
  // which both commands run does.
  internal::ScheduleBuilder builder;
  builder.Add(ReduceScatter{}, Lane::kReduceScatter, {Use(0, Access::kAssign)});
  builder.Add(Forward{}, Lane::kCompute, {Use(1, Access::kAssign)});
  Plan plan = OneSchedule({{"a", Storage::kCommunicating, 256}, {"b", Storage::kCommunicating, 256}}, builder.Finish());
  ASSERT_THAT(internal::PlaceBuffers(plan), IsOk());
  EXPECT_EQ(plan.memory.num_bytes[kCommunicating], 512);
  EXPECT_EQ(plan.memory.lower_bound[kCommunicating], 512);
}

TEST(PlaceBuffersTest, ResidentLeavesItsBytesToOthersUntilItIsGatheredAgain) {
  internal::ScheduleBuilder builder;
  const CommandId reader = builder.Add(Forward{CallId(0)}, Lane::kCompute, {Use(0, Access::kRead)});
  builder.Add(AllGather{UnitId(1), 0, Transport::kNccl, AxisId(0)}, Lane::kAllGather, {Use(1, Access::kAssign)},
              {reader});
  const CommandId last = builder.Add(Forward{CallId(1)}, Lane::kCompute, {Use(1, Access::kRead)});
  builder.Add(AllGather{UnitId(0), 0, Transport::kNccl, AxisId(0)}, Lane::kAllGather, {Use(0, Access::kAssign)},
              {last});
  builder.Add(Backward{CallId(0)}, Lane::kCompute, {Use(0, Access::kRead)});
  Plan plan = OneSchedule({{"resident", Storage::kCommunicating, 256}, {"copy", Storage::kCommunicating, 256}},
                          builder.Finish());
  plan.schedules[0].start = plan.schedules[0].end = {{{UnitId(0), BufferId(0), 0}}};
  ASSERT_THAT(internal::PlaceBuffers(plan), IsOk());
  EXPECT_EQ(plan.memory.num_bytes[kCommunicating], 256);
}

TEST(PlaceBuffersTest, ResidentKeepsItsBytesInAScheduleThatDoesNotUseIt) {
  internal::ScheduleBuilder builder;
  builder.Add(AllGather{UnitId(1), 0, Transport::kNccl, AxisId(0)}, Lane::kAllGather, {Use(1, Access::kAssign)});
  Plan plan = OneSchedule({{"resident", Storage::kCommunicating, 256}, {"copy", Storage::kCommunicating, 256}},
                          builder.Finish());
  plan.schedules[0].start = plan.schedules[0].end = {{{UnitId(0), BufferId(0), 0}}};
  ASSERT_THAT(internal::PlaceBuffers(plan), IsOk());
  EXPECT_EQ(plan.memory.num_bytes[kCommunicating], 512);
}

TEST(PlaceBuffersTest, BuffersThatAddUpToMoreThanAnInt64AreRefusedByNameAndNumber) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() - 1000;
  Plan plan = OneSchedule({{"a", Storage::kLocal, kHuge}, {"b", Storage::kLocal, 4096}}, {});
  EXPECT_THAT(internal::PlaceBuffers(plan),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("buffer b of 4096 bytes"), HasSubstr("storage local"))));
  // Of different storages, whose sums people read.
  plan = OneSchedule({{"a", Storage::kMasters, kHuge}, {"b", Storage::kLocal, 4096}}, {});
  EXPECT_THAT(internal::PlaceBuffers(plan),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("buffer b of 4096 bytes")));
  plan.buffers = {{"a", Storage::kSession, std::numeric_limits<int64_t>::max()}};
  EXPECT_THAT(internal::PlaceBuffers(plan), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("buffer a")));
}

// ---- properties ----

TEST(PlaceBuffersTest, LivesThatMayInterfereNeverShareBytes) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Plan plan = HandMadePlan(RandomOptions(random));
    ASSERT_THAT(internal::PlaceBuffers(plan), IsOk());
    EXPECT_EQ(FindClash(plan), "");
    for (const Buffer& buffer : plan.buffers) {
      EXPECT_EQ(buffer.offset % kBufferAlignment, 0);
      EXPECT_LE(buffer.offset + buffer.num_bytes, plan.memory.num_bytes[static_cast<int>(buffer.storage)]);
      EXPECT_TRUE(buffer.num_bytes > 0 || buffer.offset == 0);
    }
    for (const int storage : {kCommunicating, kLocal}) {
      EXPECT_LE(plan.memory.lower_bound[storage], plan.memory.num_bytes[storage]);
    }
    Plan again = plan;
    ASSERT_THAT(internal::PlaceBuffers(again), IsOk());
    EXPECT_EQ(again, plan);
  }
}

TEST(PlaceBuffersTest, EqualHandMadeStacksReachTheBound) {
  for (const int calls : {4, 16, 100, 500}) {
    for (const int weight_slots : {1, 2, 5}) {
      Plan plan = HandMadePlan(EqualOptions(calls, weight_slots));
      ASSERT_THAT(internal::PlaceBuffers(plan), IsOk());
      EXPECT_LE(OverBound(plan.memory), 1.02) << calls << " calls, " << weight_slots << " slots";
    }
  }
}

TEST(PlaceBuffersTest, PlannedEqualStacksReachTheBound) {
  for (const int units : {1, 4, 16, 300}) {
    const Model model = StackModel(units, {64, 64}, DType::kBFloat16, 16).value();
    for (const int weight_slots : {1, 2, 3, std::max(units / 2, 1), units}) {
      for (const Residency residency : {Residency::kKeep, Residency::kOff}) {
        for (const Tail tail : {Tail::kInGraph, Tail::kCarried}) {
          const PlanOptions options = {.weight_slots = weight_slots,
                                       .microbatches_per_graph = units < 100 ? 2 : 1,
                                       .residency = residency,
                                       .tail = tail};
          REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(model, 2, options));
          EXPECT_LE(OverBound(plan.memory), 1.02) << units << " units, " << weight_slots << " slots";
        }
      }
    }
  }
}

// Embedding, blocks of attention and feed-forward with a residual stream, and a head.
Model Transformer(int blocks, int64_t width, int64_t vocabulary, int64_t tokens) {
  ModelBuilder builder;
  const UnitId embedding = builder.AddUnit("embedding"), head = builder.AddUnit("head");
  builder.AddParameter(embedding, {.name = "embedding", .shape = {vocabulary, width}});
  builder.AddParameter(head, {.name = "head", .shape = {vocabulary, width}});
  const auto activation = [&](const std::string& name, int64_t features) {
    return builder.AddActivation({.name = name, .shape = {tokens, features}});
  };
  const TensorId ids = builder.AddInput({.name = "ids", .shape = {tokens}, .dtype = DType::kInt32});
  TensorId x = activation("x", width);
  builder.AddCall(
      {.name = "embed", .inputs = {ids}, .outputs = {x}, .saved = {ids}, .forward_only_units = {embedding}});
  for (int b = 0; b < blocks; ++b) {
    const UnitId unit = builder.AddUnit(absl::StrCat("block", b));
    builder.AddParameter(unit, {.name = absl::StrCat("w", b), .shape = {12 * width, width}});
    const TensorId qkv = activation(absl::StrCat("qkv", b), 3 * width);
    const TensorId attention = activation(absl::StrCat("attention", b), width);
    const TensorId hidden = activation(absl::StrCat("hidden", b), 4 * width);
    const TensorId y = activation(absl::StrCat("y", b), width);
    builder.AddCall({.name = absl::StrCat("block", b),
                     .units = {unit},
                     .inputs = {x},
                     .outputs = {y},
                     .saved = {x, qkv, attention, hidden},
                     .scratch_bytes = 5 * tokens * width});
    x = y;
  }
  const TensorId logits = activation("logits", vocabulary);
  const TensorId loss = builder.AddOutput({.name = "loss", .dtype = DType::kFloat32});
  builder.AddCall({.name = "head", .units = {head}, .inputs = {x}, .outputs = {loss}, .saved = {x, logits}});
  builder.SetLoss(loss);
  return builder.Build().value();
}

TEST(PlaceBuffersTest, PlannedTransformersReachTheBound) {
  for (const int blocks : {2, 12, 96}) {
    const Model model = Transformer(blocks, 96, 5000, 400);
    for (const int weight_slots : {2, 3, 8}) {
      for (const Tail tail : {Tail::kInGraph, Tail::kCarried}) {
        REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan,
                                     PlanTraining(model, 8, {.weight_slots = weight_slots, .tail = tail}));
        EXPECT_THAT(Verify(plan), IsOk());
        EXPECT_LE(OverBound(plan.memory), 1.02) << blocks << " blocks, " << weight_slots << " slots";
      }
    }
  }
}

void ExpectMedianAndWorst(const char* what, std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  std::cout << what << ": bytes over what is needed: median " << ratios[ratios.size() / 2] << ", worst "
            << ratios.back() << "\n";
  EXPECT_EQ(ratios[ratios.size() / 2], 1) << what;
  EXPECT_LE(ratios.back(), 1.05) << what;
}

TEST(PlaceBuffersTest, RandomModelsStayNearTheBound) {
  std::vector<double> hand_made, planned;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Plan plan = HandMadePlan(RandomOptions(random));
    ASSERT_THAT(internal::PlaceBuffers(plan), IsOk());
    hand_made.push_back(OverLargestClique(plan));

    for (const Sum sum : {Sum::kRankOrder, Sum::kNccl}) {
      const PlanOptions options = {.prefetch_depth = static_cast<int>(seed % 3),
                                   .gradient_slots = 4,
                                   .microbatches_per_graph = 1 + static_cast<int>(seed % 2),
                                   .residency = seed % 5 == 0 ? Residency::kOff : Residency::kKeep,
                                   .tail = seed % 7 == 0 ? Tail::kCarried : Tail::kInGraph,
                                   .sum = sum};
      REPRISE_ASSERT_OK_AND_ASSIGN(const Plan real, PlanTraining(RandomModel(seed), 1 + seed % 8, options));
      planned.push_back(OverLargestClique(real));
      EXPECT_EQ(FindClash(real), "");
    }
  }
  ExpectMedianAndWorst("hand-made plans", std::move(hand_made));
  ExpectMedianAndWorst("planned models", std::move(planned));
}

}  // namespace
}  // namespace reprise
