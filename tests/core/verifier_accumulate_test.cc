// What a reduction reads, and what its accumulate must agree on with it and with the plan: one mistake at a time, in
// random plans.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "tests/core/reduction_mistakes.h"
#include "tests/testing/random_model.h"
#include "tests/testing/violations.h"

namespace reprise {
namespace {

using reprise::testing::GradientMistakes;
using reprise::testing::Mistake;
using reprise::testing::Pair;
using reprise::testing::Random;
using ::testing::Contains;
using ::testing::Field;
using ::testing::IsEmpty;

ScheduledCommand* NextOnLane(Schedule& schedule, size_t command) {
  for (size_t i = command + 1; i < schedule.commands.size(); ++i) {
    if (schedule.commands[i].lane == schedule.commands[command].lane) return &schedule.commands[i];
  }
  return nullptr;
}

std::vector<Pair> PairsOf(Plan& plan, Random& random) {
  std::vector<Pair> pairs;
  for (Schedule& schedule : plan.schedules) {
    for (size_t i = 0; i < schedule.commands.size(); ++i) {
      ScheduledCommand& command = schedule.commands[i];
      if (!std::holds_alternative<ReduceScatter>(command.command)) continue;
      pairs.push_back({plan, schedule, command, *NextOnLane(schedule, i), random});
    }
  }
  return pairs;
}

std::vector<Mistake> PairMistakes() {
  return {
      {"AccumulateAtOtherPosition",
       [](const Pair& p) {
         ++p.accumulate().position;
         return true;
       },
       {"accumulate"}},
      {"BothAtOtherPosition",
       [](const Pair& p) {
         if (p.InPlace()) return false;  // nothing in its schedule wrote the gradient
         // Check::kSuccession knows the position of what the schedule starts with.
         for (const OutstandingReduction& carried : p.schedule.start.outstanding) {
           if (carried.unit == p.reduce().unit) return false;
         }
         ++p.reduce().position;
         ++p.accumulate().position;
         return true;
       },
       {"reduce_scatter"}},
      {"OtherSum",
       [](const Pair& p) {
         p.accumulate().sum = p.Exchanges() ? Sum::kNccl : Sum::kRankOrder;
         return true;
       },
       {"accumulate", "has sum", "but its unit has"}},
      {"SegmentLeftOut",
       [](const Pair& p) {
         p.accumulate().segments.pop_back();
         return true;
       },
       {"accumulate", "adds other segments than the"}},
      {"SegmentOfPadding",
       [](const Pair& p) {
         ++p.accumulate().segments.back().num_elements;
         return true;
       },
       {"accumulate", "adds other segments than the"}},
      {"OtherUnit",
       [](const Pair& p) {
         const int64_t units = static_cast<int64_t>(p.plan.model.units().size());
         if (units == 1) return false;
         p.accumulate().unit = UnitId((p.reduce().unit.value() + 1) % units);
         p.sum.uses.clear();  // they are of groups that the other unit need not have
         return true;
       },
       {"accumulate", "adds other segments than the"}},
      {"NoAccumulate",
       [](const Pair& p) {
         p.sum.command = SumNorm{AxisId(0)};
         return true;
       },
       {"sum_norm", "uses bytes", "which it does not need"}},
      {"NoReduction",
       [](const Pair& p) {
         p.reduction.command = SumNorm{AxisId(0)};
         return true;
       },
       {"sum_norm", "uses bytes", "as reduce_buffer ", "which it does not need"}},
      {"OtherMode",
       [](const Pair& p) {
         AccumulateMode& mode = p.accumulate().mode;
         mode = mode == AccumulateMode::kByMicrobatch ? AccumulateMode::kAlwaysAssign : AccumulateMode::kByMicrobatch;
         return true;
       },
       {"accumulate", "assign", "but the plan reduces"}},
  };
}

std::vector<Mistake> UseMistakes() {
  return {
      {"NoNorm",
       [](const Pair& p) {
         p.EraseFromSum(Role::kNormPartials);
         return true;
       },
       {"accumulate", "has no use as norm_partials "}},
      {"NormTwice",
       [](const Pair& p) {
         p.sum.uses.push_back(p.UseOfSum(Role::kNormPartials));
         return true;
       },
       {"accumulate", "uses bytes", "as norm_partials ", "which it does not need"}},
      {"NormInPart",
       [](const Pair& p) {
         p.UseOfSum(Role::kNormPartials).num_bytes -= 8;
         return true;
       },
       {"updates bytes", "as norm_partials ", "but must update "}},
      {"NormAtOtherPlace",
       [](const Pair& p) {
         BufferUse& use = p.UseOfSum(Role::kNormPartials);
         const int64_t room = p.plan.buffer(use.buffer).num_bytes - use.num_bytes;
         if (room == 0) return false;
         use.offset = use.offset == 0 ? room : 0;
         return true;
       },
       {"updates bytes", "as norm_partials ", "whose place there is byte "}},
      {"NormAssigned",
       [](const Pair& p) {
         p.UseOfSum(Role::kNormPartials).access = Access::kAssign;
         return true;
       },
       {"assigns bytes", "as norm_partials ", "but must update "}},
      {"OtherAccumulator",
       [](const Pair& p) {
         p.UseOfSum(Role::kAccumulator).buffer = p.plan.norm_partials;
         p.UseOfSum(Role::kAccumulator).num_bytes = 8;
         return true;
       },
       {"updates bytes", "of norm_partials as accumulator "}},
      {"GroupLeftOut",
       [](const Pair& p) {
         const int32_t id = p.UseOfSum(Role::kAccumulator).id;
         std::erase_if(p.sum.uses, [&](const BufferUse& use) {
           return use.id == id &&
                  (use.role == Role::kAccumulator || use.role == Role::kReceived || use.role == Role::kNormPartials);
         });
         return true;
       },
       {"accumulate", "has no use as received "}},
      {"GroupNotReceived",
       [](const Pair& p) {
         const int32_t id = p.UseOfSum(Role::kAccumulator).id;
         std::erase_if(p.reduction.uses,
                       [&](const BufferUse& use) { return use.role == Role::kReceived && use.id == id; });
         return true;
       },
       {"reduce_scatter", "has no use as received "}},
      {"GroupNeitherReceivedNorSummed",
       [](const Pair& p) {
         const int32_t id = p.UseOfSum(Role::kAccumulator).id;
         for (ScheduledCommand* const command : {&p.reduction, &p.sum}) {
           std::erase_if(command->uses, [&](const BufferUse& use) {
             return use.id == id &&
                    (use.role == Role::kReceived || use.role == Role::kAccumulator || use.role == Role::kNormPartials);
           });
         }
         return true;
       },
       {"reduce_scatter", "has no use as received "}},
      {"GroupReceivedTwice",
       [](const Pair& p) {
         for (const BufferUse& use : p.reduction.uses) {
           if (use.role != Role::kReceived) continue;
           p.reduction.uses.push_back(use);
           return true;
         }
         return false;
       },
       {"reduce_scatter", "uses bytes", "as received ", "which it does not need"}},
      {"OtherReceivedBytes",
       [](const Pair& p) {
         BufferUse& use = p.UseOfSum(Role::kReceived);
         if (use.num_bytes == 0) return false;
         use.num_bytes /= 2;
         return true;
       },
       {"reads bytes", "as received ", "but must read "}},
      {"BothReceiveInPart",
       [](const Pair& p) {
         if (p.UseOfSum(Role::kReceived).num_bytes == 0) return false;
         for (ScheduledCommand* command : {&p.reduction, &p.sum}) {
           for (BufferUse& use : command->uses) use.num_bytes /= use.role == Role::kReceived ? 2 : 1;
         }
         return true;
       },
       {"reduce_scatter", "assigns bytes", "as received ", "but must assign "}},
      {"NoOwnPart",
       [](const Pair& p) {
         if (p.Exchanges()) p.EraseFromSum(Role::kReduceBuffer);
         return p.Exchanges();
       },
       {"accumulate", "has no use as reduce_buffer "}},
      {"OneOwnPartMissing",
       [](const Pair& p) {
         if (!p.Exchanges()) return false;
         const int64_t parts = std::count_if(p.sum.uses.begin(), p.sum.uses.end(),
                                             [](const BufferUse& use) { return use.role == Role::kReduceBuffer; });
         int64_t erased = p.random.Below(parts);
         std::erase_if(p.sum.uses,
                       [&](const BufferUse& use) { return use.role == Role::kReduceBuffer && erased-- == 0; });
         return true;
       },
       {"accumulate", "has no use as reduce_buffer "}},
      {"OwnPartTwice",
       [](const Pair& p) {
         if (p.Exchanges()) p.sum.uses.push_back(p.UseOfSum(Role::kReduceBuffer));
         return p.Exchanges();
       },
       {"accumulate", "uses bytes", "as reduce_buffer ", "which it does not need"}},
      {"OwnPartOfSums",
       [](const Pair& p) {
         if (p.Exchanges()) return false;
         const auto reduce_dtype = std::find_if(p.reduction.uses.begin(), p.reduction.uses.end(),
                                                [](const BufferUse& use) { return use.role == Role::kReduceBuffer; });
         p.sum.uses.push_back(*reduce_dtype);
         return true;
       },
       {"accumulate", "uses bytes", "as reduce_buffer ", "which it does not need"}},
  };
}

std::vector<Mistake> PlanMistakes() {
  const auto place = [](const Pair& p) -> int64_t& {
    return p.plan.unit_buffers[p.reduce().unit.value()].norm_partials[p.UseOfSum(Role::kNormPartials).id];
  };
  const auto places = [](const Pair& p) {
    std::vector<int64_t*> all;
    for (size_t u = 0; u < p.plan.unit_buffers.size(); ++u) {
      for (size_t g = 0; g < p.plan.unit_buffers[u].norm_partials.size(); ++g) {
        const FlatGroup& group = p.plan.layout.units[u].groups[g];
        if (group.trainable && group.num_elements > 0) all.push_back(&p.plan.unit_buffers[u].norm_partials[g]);
      }
    }
    return all;
  };
  return {
      {"NormsShareOnePlace",
       [=](const Pair& p) {
         for (int64_t* offset : places(p)) *offset = 0;
         return places(p).size() > 1;
       },
       {"the partial norms of group ", " are at byte 0, not "}},
      {"NormPastBuffer",
       [=](const Pair& p) {
         place(p) = p.plan.buffer(p.plan.norm_partials).num_bytes;
         return true;
       },
       {"the partial norms of group ", " are at byte "}},
      {"NormUnaligned",
       [=](const Pair& p) {
         place(p) += 4;
         return true;
       },
       {"the partial norms of group ", " are at byte "}},
      {"NoPlace",
       [](const Pair& p) {
         p.plan.unit_buffers[p.reduce().unit.value()].norm_partials.pop_back();
         return true;
       },
       {"partial norms of a unit, but its model has "}},
      {"NoSuchNormBuffer",
       [](const Pair& p) {
         p.plan.norm_partials = BufferId(static_cast<int64_t>(p.plan.buffers.size()));
         return true;
       },
       {"which is to hold the partial norms, does not exist"}},
      {"NoSuchAccumulator",
       [](const Pair& p) {
         p.plan.unit_buffers[p.reduce().unit.value()].accumulators[p.UseOfSum(Role::kAccumulator).id] = BufferId();
         return true;
       },
       {"buffer -1, which is to hold the accumulator of group "}},
      {"ShardIsNotAnEqualPart",
       [](const Pair& p) {
         ++p.plan.layout.units[p.reduce().unit.value()].groups[p.UseOfSum(Role::kReceived).id].shard_elements;
         return true;
       },
       {"the plan's layout is not that of its model on "}},
  };
}

Plan RandomPlan(Random& random, uint64_t seed, bool in_place) {
  const Model model = testing::RandomModel(seed, {.max_units = 4});
  PlanOptions options = testing::RandomPlanOptions(random);
  if (in_place) {
    options.reduce = Reduce::kOncePerStep;
    options.tail = Tail::kInGraph;
    options.reduce_dtype = DType::kFloat32;
  }
  return PlanTraining(model, static_cast<int>(1 + random.Below(4)), options).value();
}

std::vector<Pair> InPlaceOf(const std::vector<Pair>& pairs) {
  std::vector<Pair> in_place;
  for (const Pair& pair : pairs) {
    if (pair.InPlace()) in_place.push_back(pair);
  }
  return in_place;
}

MATCHER_P(HasAll, words, "") {
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) { return absl::StrContains(arg, word); });
}

class VerifierAccumulateTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(VerifierAccumulateTest, IsFoundInRandomPlans) {
  constexpr int kSeeds = 100;
  const Mistake& mistake = GetParam();
  int made = 0;
  for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Plan plan = RandomPlan(random, seed, mistake.in_place);
    ASSERT_THAT(FindViolations(plan), IsEmpty());
    std::vector<Pair> pairs = PairsOf(plan, random);
    ASSERT_FALSE(pairs.empty());
    if (mistake.in_place) {
      pairs = InPlaceOf(pairs);
      if (pairs.empty()) continue;
    }
    const Pair& pair = pairs[random.Below(static_cast<int64_t>(pairs.size()))];
    if (!mistake.make(pair)) continue;
    ++made;
    const std::vector<Violation> found = FindViolations(plan);
    EXPECT_THAT(found, Contains(Field(&Violation::message, HasAll(mistake.words))));
  }
  EXPECT_GT(made, kSeeds / 5) << "or the plans have too little room for the mistake to prove anything";
}

std::string NameOf(const ::testing::TestParamInfo<Mistake>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Pairs, VerifierAccumulateTest, ::testing::ValuesIn(PairMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Gradients, VerifierAccumulateTest, ::testing::ValuesIn(GradientMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Uses, VerifierAccumulateTest, ::testing::ValuesIn(UseMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Plans, VerifierAccumulateTest, ::testing::ValuesIn(PlanMistakes()), NameOf);

}  // namespace
}  // namespace reprise
