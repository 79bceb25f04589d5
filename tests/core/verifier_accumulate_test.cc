// What a reduction reads, and what its accumulate must agree on with it and with the plan: one mistake at a time, in
// random plans.
#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/violations.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using reprise::testing::Random;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A reduction and its accumulate, which is the next command of its lane.
struct Pair {
  Plan& plan;
  Schedule& schedule;
  ScheduledCommand& reduction;
  ScheduledCommand& sum;
  Random& random;

  ReduceScatter& reduce() const { return std::get<ReduceScatter>(reduction.command); }
  Accumulate& accumulate() const { return std::get<Accumulate>(sum.command); }
  // The uses of the reduction that are its unit's gradients.
  std::vector<BufferUse*> Gradients() const {
    std::vector<BufferUse*> gradients;
    for (BufferUse& use : reduction.uses) {
      if (use.role == Role::kWire) gradients.push_back(&use);
    }
    return gradients;
  }
  bool InPlace() const { return plan.buffer(Gradients()[0]->buffer).storage == Storage::kGradients; }
  // The first use of the role, which every accumulate has of all but kWire.
  BufferUse& UseOfSum(Role role) const {
    return *std::find_if(sum.uses.begin(), sum.uses.end(), [&](const BufferUse& use) { return use.role == role; });
  }
  bool Exchanges() const { return ExchangesParts(reduce().transport); }
  void EraseFromSum(Role role) const {
    std::erase_if(sum.uses, [&](const BufferUse& use) { return use.role == role; });
  }
};

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

struct Mistake {
  std::string name;
  std::function<bool(const Pair&)> make;  // false: this pair has no room for it
  std::vector<std::string> words;
  bool of_plan = false;   // found before the schedules are looked at
  bool in_place = false;  // of reductions that read a full gradient where it is
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

std::vector<Mistake> PairMistakes() {
  return {
      {"AccumulateAtOtherPosition",
       [](const Pair& p) {
         ++p.accumulate().position;
         return true;
       },
       {"accumulate", "is at position", "before it is at"}},
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
       {"reduce_scatter", "is at position", "wrote its gradient at"}},
      {"OtherTransport",
       [](const Pair& p) {
         p.accumulate().transport =
             p.reduce().transport == Transport::kCopyEngine ? Transport::kSymmetric : Transport::kCopyEngine;
         return true;
       },
       {"accumulate", "has transport", "before it has"}},
      {"OtherUnit",
       [](const Pair& p) {
         const int64_t units = static_cast<int64_t>(p.plan.model.units().size());
         if (units == 1) return false;
         p.accumulate().unit = UnitId((p.reduce().unit.value() + 1) % units);
         p.sum.uses.clear();  // they are of groups that the other unit need not have
         return true;
       },
       {"accumulates", "before it reduces"}},
      {"NoAccumulate",
       [](const Pair& p) {
         p.sum.command = SumNorm{AxisId(0)};
         return true;
       },
       {"reduce_scatter", "is not directly followed by its accumulate on its lane, but by #"}},
      {"NoReduction",
       [](const Pair& p) {
         p.reduction.command = SumNorm{AxisId(0)};
         return true;
       },
       {"accumulate", "does not directly follow a reduction on its lane, but #"}},
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
       {"accumulate", "has 0 uses as norm_partials ", ", not one"}},
      {"NormTwice",
       [](const Pair& p) {
         p.sum.uses.push_back(p.UseOfSum(Role::kNormPartials));
         return true;
       },
       {"accumulate", "has 2 uses as norm_partials ", ", not one"}},
      {"NormInPart",
       [](const Pair& p) {
         p.UseOfSum(Role::kNormPartials).num_bytes -= 8;
         return true;
       },
       {"updates bytes", "as norm_partials ", "but must update bytes", "of norm_partials"}},
      {"NormAtOtherPlace",
       [](const Pair& p) {
         BufferUse& use = p.UseOfSum(Role::kNormPartials);
         const int64_t room = p.plan.buffer(use.buffer).num_bytes - use.num_bytes;
         if (room == 0) return false;
         use.offset = use.offset == 0 ? room : 0;
         return true;
       },
       {"updates bytes", "as norm_partials ", "but must update bytes", "of norm_partials"}},
      {"NormAssigned",
       [](const Pair& p) {
         p.UseOfSum(Role::kNormPartials).access = Access::kAssign;
         return true;
       },
       {"assigns bytes", "as norm_partials ", "but must update bytes"}},
      {"OtherAccumulator",
       [](const Pair& p) {
         p.UseOfSum(Role::kAccumulator).buffer = p.plan.norm_partials;
         p.UseOfSum(Role::kAccumulator).num_bytes = 8;
         return true;
       },
       {"updates bytes", "as accumulator ", "but must update bytes", "of accumulator."}},
      {"GroupLeftOut",
       [](const Pair& p) {
         const int32_t id = p.UseOfSum(Role::kAccumulator).id;
         std::erase_if(p.sum.uses, [&](const BufferUse& use) {
           return use.id == id &&
                  (use.role == Role::kAccumulator || use.role == Role::kReceived || use.role == Role::kNormPartials);
         });
         return true;
       },
       {"accumulate", "has 0 uses as received ", ", not one"}},
      {"GroupNotReceived",
       [](const Pair& p) {
         const int32_t id = p.UseOfSum(Role::kAccumulator).id;
         std::erase_if(p.reduction.uses,
                       [&](const BufferUse& use) { return use.role == Role::kReceived && use.id == id; });
         return true;
       },
       {"reduce_scatter", "delivers group ", " 0 times, but must once"}},
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
       {"reduce_scatter", "delivers group ", " 0 times, but must once"}},
      {"GroupReceivedTwice",
       [](const Pair& p) {
         for (const BufferUse& use : p.reduction.uses) {
           if (use.role != Role::kReceived) continue;
           p.reduction.uses.push_back(use);
           return true;
         }
         return false;
       },
       {"reduce_scatter", "delivers group ", " 2 times, but must once"}},
      {"OtherReceivedBytes",
       [](const Pair& p) {
         BufferUse& use = p.UseOfSum(Role::kReceived);
         if (use.num_bytes == 0) return false;
         use.num_bytes /= 2;
         return true;
       },
       {"reads bytes", "as received ", "but must read bytes"}},
      {"BothReceiveInPart",
       [](const Pair& p) {
         if (p.UseOfSum(Role::kReceived).num_bytes == 0) return false;
         for (ScheduledCommand* command : {&p.reduction, &p.sum}) {
           for (BufferUse& use : command->uses) use.num_bytes /= use.role == Role::kReceived ? 2 : 1;
         }
         return true;
       },
       {"reduce_scatter", "assigns bytes", "as received ", "but must assign", "elements"}},
      {"NoOwnPart",
       [](const Pair& p) {
         if (p.Exchanges()) p.EraseFromSum(Role::kWire);
         return p.Exchanges();
       },
       {"accumulate", "does not read bytes", "as wire ", "has not its own part"}},
      {"OneOwnPartMissing",
       [](const Pair& p) {
         if (!p.Exchanges()) return false;
         const int64_t parts = std::count_if(p.sum.uses.begin(), p.sum.uses.end(),
                                             [](const BufferUse& use) { return use.role == Role::kWire; });
         int64_t erased = p.random.Below(parts);
         std::erase_if(p.sum.uses, [&](const BufferUse& use) { return use.role == Role::kWire && erased-- == 0; });
         return true;
       },
       {"accumulate", "does not read bytes", "as wire ", "has not its own part"}},
      {"OwnPartTwice",
       [](const Pair& p) {
         if (p.Exchanges()) p.sum.uses.push_back(p.UseOfSum(Role::kWire));
         return p.Exchanges();
       },
       {"accumulate", "reads bytes", "as wire ", "does not"}},
      {"OwnPartOfSums",
       [](const Pair& p) {
         if (p.Exchanges()) return false;
         const auto wire = std::find_if(p.reduction.uses.begin(), p.reduction.uses.end(),
                                        [](const BufferUse& use) { return use.role == Role::kWire; });
         p.sum.uses.push_back(*wire);
         return true;
       },
       {"accumulate", "uses bytes", "as wire ", "delivers sums"}},
  };
}

std::vector<Mistake> GradientMistakes() {
  std::vector<Mistake> mistakes = {
      {"NoGradients",
       [](const Pair& p) {
         std::erase_if(p.reduction.uses, [](const BufferUse& use) { return use.role == Role::kWire; });
         return true;
       },
       {"reduce_scatter", "reads no gradient of u"}},
      {"AGradientLeftOut",
       [](const Pair& p) {
         const std::vector<BufferUse*> gradients = p.Gradients();
         if (gradients.size() == 1) return false;
         const int32_t id = gradients[p.random.Below(static_cast<int64_t>(gradients.size()))]->id;
         for (ScheduledCommand* command : {&p.reduction, &p.sum}) {
           std::erase_if(command->uses, [&](const BufferUse& u) { return u.role == Role::kWire && u.id == id; });
         }
         return true;
       },
       {"reduce_scatter", "does not read the gradient of u"}},
      {"AGradientTwice",
       [](const Pair& p) {
         p.reduction.uses.push_back(*p.Gradients()[0]);
         return true;
       },
       {"reduce_scatter", "uses bytes", "beside another part of it"}},
      {"AGradientOfAnotherUnitToo",
       [](const Pair& p) {
         BufferUse use = *p.Gradients()[0];
         for (size_t other = 0; other < p.plan.model.parameters().size(); ++other) {
           if (p.plan.model.parameters()[other].unit == p.reduce().unit) continue;
           use.id = static_cast<int32_t>(other);
           p.reduction.uses.push_back(use);
           return true;
         }
         return false;
       },
       {"reduce_scatter", "reads bytes", "as wire ", "which is none of u"}},
      {"AByteLeftOut",
       [](const Pair& p) {
         --p.Gradients().back()->num_bytes;
         return true;
       },
       {"reduce_scatter", "reads bytes", "as wire ", "but must read bytes"}},
      {"AByteTooEarly",
       [](const Pair& p) {
         BufferUse& use = *p.Gradients().back();
         if (use.offset == 0) return false;
         --use.offset;
         return true;
       },
       {"reduce_scatter", "reads bytes", "as wire ", "but must read bytes"}},
      {"AGradientAssigned",
       [](const Pair& p) {
         p.Gradients()[0]->access = Access::kAssign;
         return true;
       },
       {"reduce_scatter", "assigns bytes", "as wire ", "but must read bytes"}},
      {"GradientsInTwoBuffers",
       [](const Pair& p) {
         if (p.Gradients().size() == 1) return false;
         BufferUse& use = *p.Gradients().back();
         p.plan.buffers.push_back(p.plan.buffer(use.buffer));
         use.buffer = BufferId(static_cast<int64_t>(p.plan.buffers.size()) - 1);
         return true;
       },
       {"reduce_scatter", "reads bytes", "as wire ", "but must read bytes"}},
      {"GradientsOfAnotherUnit",
       [](const Pair& p) {
         const int64_t units = static_cast<int64_t>(p.plan.model.units().size());
         const UnitId other((p.reduce().unit.value() + 1) % units);
         const std::vector<FlatGroup>& groups = p.plan.layout.units[other.value()].groups;
         const auto trains = [](const FlatGroup& group) { return group.trainable; };
         if (units == 1 || std::none_of(groups.begin(), groups.end(), trains)) return false;
         p.reduce().unit = p.accumulate().unit = other;
         return true;
       },
       {"reduce_scatter"}},
      {"SlotsAndTheirAbsence",
       [](const Pair& p) {
         p.reduce().slot = p.InPlace() ? 0 : -1;
         return true;
       },
       {"reduce_scatter", "slot, but ", " takes "}},
  };
  std::vector<Mistake> in_place = {
      {"FullGradientOfAnotherUnit",
       [](const Pair& p) {
         BufferId& mine = p.plan.unit_buffers[p.reduce().unit.value()].full_gradient;
         for (UnitBuffers& unit : p.plan.unit_buffers) {
           if (!unit.full_gradient.valid() || unit.full_gradient == mine) continue;
           std::swap(unit.full_gradient, mine);
           return true;
         }
         return false;
       },
       {"reads full_gradient.u", "in storage gradients", "neither a wire gradient nor the full gradient of u"}},
      {"FullGradientInAnotherDType",
       [](const Pair& p) {
         for (FlatGroup& group : p.plan.layout.units[p.reduce().unit.value()].groups) group.wire = DType::kBFloat16;
         return true;
       },
       {"reads group ", " as bf16, but full_gradient.u", " holds f32"}},
      {"FullGradientWhereCollectivesCannotRead",
       [](const Pair& p) {
         Buffer& buffer = p.plan.buffers[p.Gradients()[0]->buffer.value()];
         int64_t& room = p.plan.memory.num_bytes[static_cast<int>(Storage::kSession)];
         buffer.storage = Storage::kSession;
         buffer.offset = (room + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
         room = buffer.offset + buffer.num_bytes;
         return true;
       },
       {"reads full_gradient.u", "in storage session", "neither a wire gradient nor the full gradient of u"}},
      {"OfOneMicrobatch",
       [](const Pair& p) {
         ++p.reduce().position;
         ++p.accumulate().position;
         return true;
       },
       {"reduce_scatter", "is at position 1, but full_gradient.u", "is of a whole step"}},
      {"ByMicrobatch",
       [](const Pair& p) {
         p.accumulate().mode = AccumulateMode::kByMicrobatch;
         return true;
       },
       {"accumulate", "does not always assign, but the plan reduces once per step"}},
      {"InAGraphOfMicrobatches",
       [](const Pair& p) {
         p.schedule.microbatches = 1;
         return true;
       },
       {"accumulate", "is in a graph of microbatches, but the plan reduces once per step"}},
  };
  for (Mistake& mistake : in_place) mistake.in_place = true;
  // Every mistake with a gradient can be made with one that is reduced in place.
  for (Mistake mistake : mistakes) {
    mistake.name += "InPlace";
    mistake.in_place = true;
    in_place.push_back(mistake);
  }
  mistakes.insert(mistakes.end(), in_place.begin(), in_place.end());
  return mistakes;
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
       {"the partial norms of group ", " share bytes [0, ", ") of norm_partials"},
       true},
      {"NormPastBuffer",
       [=](const Pair& p) {
         place(p) = p.plan.buffer(p.plan.norm_partials).num_bytes;
         return true;
       },
       {"bytes of partial norms of group ", "are not doubles inside norm_partials"},
       true},
      {"NormUnaligned",
       [=](const Pair& p) {
         place(p) += 4;
         return true;
       },
       {"bytes of partial norms of group ", "are not doubles inside norm_partials"},
       true},
      {"NoPlace",
       [](const Pair& p) {
         p.plan.unit_buffers[p.reduce().unit.value()].norm_partials.pop_back();
         return true;
       },
       {"places of partial norms for", "groups"},
       true},
      {"NoSuchNormBuffer",
       [](const Pair& p) {
         p.plan.norm_partials = BufferId(static_cast<int64_t>(p.plan.buffers.size()));
         return true;
       },
       {"partial norms are in buffer", "does not exist"},
       true},
      {"NoSuchAccumulator",
       [](const Pair& p) {
         p.plan.unit_buffers[p.reduce().unit.value()].accumulators[p.UseOfSum(Role::kAccumulator).id] = BufferId();
         return true;
       },
       {"the accumulator of group ", "is buffer -1, which does not exist"},
       true},
      {"ShardIsNotAnEqualPart",
       [](const Pair& p) {
         ++p.plan.layout.units[p.reduce().unit.value()].groups[p.UseOfSum(Role::kReceived).id].shard_elements;
         return true;
       },
       {"group ", "elements on each of"},
       true},
  };
}

Plan RandomPlan(Random& random, uint64_t seed, bool in_place) {
  const Model model = testing::RandomModel(seed, {.max_units = 4});
  PlanOptions options = testing::RandomPlanOptions(random);
  if (options.transport == Transport::kSymmetric && random.Chance(50)) options.transport = Transport::kCopyEngine;
  if (in_place) {
    options.reduce = Reduce::kOncePerStep;
    options.tail = Tail::kInGraph;
    options.wire = DType::kFloat32;
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
    const std::string where = mistake.of_plan ? "" : pair.schedule.name;
    ASSERT_THAT(found, ElementsAre(AllOf(Field(&Violation::check, Check::kForm), Field(&Violation::schedule, where))));
    for (const std::string& word : mistake.words) EXPECT_THAT(found[0].message, HasSubstr(word));
  }
  EXPECT_GT(made, kSeeds / 5) << "or the plans have too little room for the mistake to prove anything";
}

std::string NameOf(const ::testing::TestParamInfo<Mistake>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Pairs, VerifierAccumulateTest, ::testing::ValuesIn(PairMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Gradients, VerifierAccumulateTest, ::testing::ValuesIn(GradientMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Uses, VerifierAccumulateTest, ::testing::ValuesIn(UseMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Plans, VerifierAccumulateTest, ::testing::ValuesIn(PlanMistakes()), NameOf);

// ---- whole schedules of one plan, where every accumulate makes the same mistake ----

Plan CarriedExchange() {
  return PlanTraining(StackModel(3, {512, 512}, DType::kBFloat16, 4).value(), 2,
                      {.microbatches_per_graph = 2, .tail = Tail::kCarried, .transport = Transport::kCopyEngine})
      .value();
}

std::string MessageAfter(Plan plan, const char* schedule, const std::function<void(ScheduledCommand&)>& change) {
  for (Schedule& s : plan.schedules) {
    if (s.name != schedule && *schedule != '\0') continue;
    for (ScheduledCommand& command : s.commands) {
      if (std::holds_alternative<Accumulate>(command.command)) change(command);
    }
  }
  const std::vector<Violation> found = FindViolations(plan);
  return found.empty() ? "" : absl::StrCat(Name(found[0].check), " ", found[0].schedule, ": ", found[0].message);
}

TEST(VerifierAccumulatesTest, NamesWhatEveryAccumulateOfAPlanGetsWrong) {
  const Plan plan = CarriedExchange();
  ASSERT_THAT(Verify(plan), IsOk());
  const auto at_zero = [](ScheduledCommand& c) { std::get<Accumulate>(c.command).position = 0; };
  EXPECT_THAT(MessageAfter(plan, "finish", at_zero),
              AllOf(HasSubstr("form finish: #"), HasSubstr("is at position 0, but #"), HasSubstr("before it is at 1")));
  EXPECT_THAT(MessageAfter(plan, "body", at_zero),
              AllOf(HasSubstr("form body: #"), HasSubstr("is at position 0, but #"), HasSubstr("before it is at -1")));
  const auto without = [](Role role) {
    return
        [role](ScheduledCommand& c) { std::erase_if(c.uses, [&](const BufferUse& use) { return use.role == role; }); };
  };
  EXPECT_THAT(MessageAfter(plan, "", without(Role::kNormPartials)),
              HasSubstr("has 0 uses as norm_partials 0, not one"));
  EXPECT_THAT(MessageAfter(plan, "", without(Role::kWire)), HasSubstr("and so has not its own part"));
  const auto norm = [](std::function<void(BufferUse&)> change) {
    return [change](ScheduledCommand& c) {
      for (BufferUse& use : c.uses) {
        if (use.role == Role::kNormPartials) change(use);
      }
    };
  };
  EXPECT_THAT(MessageAfter(plan, "", norm([](BufferUse& use) { use.offset = 0; })),
              AllOf(HasSubstr("updates bytes [0, 64) of norm_partials as norm_partials 0"),
                    HasSubstr("but must update bytes [128, 192) of norm_partials")));
  EXPECT_THAT(MessageAfter(plan, "", norm([](BufferUse& use) { use.num_bytes = 8; })),
              AllOf(HasSubstr("updates bytes [128, 136) of norm_partials as norm_partials 0"),
                    HasSubstr("but must update bytes [128, 192) of norm_partials")));
  EXPECT_THAT(
      MessageAfter(plan, "first", [](auto& c) { std::get<Accumulate>(c.command).transport = Transport::kDefault; }),
      AllOf(HasSubstr("form first: #"), HasSubstr("has transport"), HasSubstr("has copy_engine")));
  EXPECT_THAT(
      MessageAfter(plan, "", [](auto& c) { std::get<Accumulate>(c.command).mode = AccumulateMode::kAlwaysAssign; }),
      HasSubstr("does not assign by microbatch, but the plan reduces every microbatch"));
}

TEST(VerifierAccumulatesTest, TheNormIsOfAllPartialNorms) {
  for (const auto& change : std::vector<std::function<void(BufferUse&)>>{
           [](BufferUse& use) { use.num_bytes -= 8; }, [](BufferUse& use) { use.offset += 8, use.num_bytes -= 8; },
           [](BufferUse& use) { use.access = Access::kAssign; }, [](BufferUse& use) { use.role = Role::kStepState; }}) {
    Plan plan = CarriedExchange();
    for (ScheduledCommand& command : plan.schedules[plan.step].commands) {
      if (!std::holds_alternative<SumNorm>(command.command)) continue;
      for (BufferUse& use : command.uses) {
        if (use.role == Role::kNormPartials) change(use);
      }
    }
    const std::vector<Violation> found = FindViolations(plan);
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found[0].check, Check::kForm);
    EXPECT_THAT(found[0].message, HasSubstr("sum_norm (reduce_scatter) does not read all 192 bytes of partial norms"));
  }
}

// The next gradient of a slot follows the sum, which reads a rank's own part, and not the exchange alone.
TEST(VerifierAccumulatesTest, AGradientSlotOfAnExchangeIsTakenUntilTheSum) {
  Plan plan = PlanTraining(StackModel(3, {512, 512}, DType::kBFloat16, 4).value(), 2,
                           {.gradient_slots = 1, .transport = Transport::kCopyEngine})
                  .value();
  Schedule& schedule = plan.schedules[plan.first];
  int changed = 0;
  for (ScheduledCommand& command : schedule.commands) {
    for (Wait& wait : command.waits) {
      if (!std::holds_alternative<Accumulate>(schedule.commands[wait.command.value()].command)) continue;
      if (wait.reason != WaitReason::kOrder) continue;
      ++changed;
      const CommandId before(wait.command.value() - 1);
      ASSERT_TRUE(std::holds_alternative<ReduceScatter>(schedule.commands[before.value()].command));
      wait.command = before;
    }
  }
  EXPECT_EQ(changed, 2);
  EXPECT_THAT(FindViolations(plan),
              Contains(AllOf(Field(&Violation::check, Check::kOrder), Field(&Violation::schedule, "first"),
                             Field(&Violation::message,
                                   AllOf(HasSubstr("takes gradient slot 0 from u2, but no wait orders it after #"),
                                         HasSubstr("accumulate u2"))))));
}

TEST(VerifierAccumulatesTest, AnotherUnitsPackDoesNotTakeASum) {
  Plan plan =
      PlanTraining(StackModel(2, {8, 8}, DType::kBFloat16, 4).value(), 2, {.reduce = Reduce::kOncePerStep}).value();
  ASSERT_THAT(Verify(plan), IsOk());
  for (ScheduledCommand& command : plan.schedules[plan.finish].commands) {
    if (auto* const pack = std::get_if<PackGradients>(&command.command)) pack->unit = UnitId(1);
  }
  EXPECT_THAT(FindViolations(plan),
              ElementsAre(AllOf(Field(&Violation::check, Check::kSuccession), Field(&Violation::schedule, "finish"),
                                Field(&Violation::message, HasSubstr("the sum in bytes [0, 256) of full_gradient.u0 is "
                                                                     "neither reduced nor in the end state")))));
}

TEST(VerifierAccumulatesTest, APlanWithoutPartialNormsAccumulatesNothing) {
  Plan plan = CarriedExchange();
  plan.norm_partials = BufferId();
  const std::vector<Violation> found = FindViolations(plan);
  ASSERT_FALSE(found.empty());
  EXPECT_THAT(found[0].message, HasSubstr("takes norms, but the plan has no buffer of partial norms"));
}

}  // namespace
}  // namespace reprise
