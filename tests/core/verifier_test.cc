// Correct plans made by hand, and one mistake at a time.
#include "reprise/core/verifier.h"

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/verifier_plans.h"
#include "tests/testing/violations.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Matcher;
using namespace reprise::testing;  // NOLINT: the hand-made plans

// The first violation, as a list of at most one. The plans have all that order and memory need, and not all of a step.
std::vector<Violation> First(const Plan& plan) {
  std::vector<Violation> violations = FindViolations(plan, Check::kSuccession);
  if (violations.size() > 1) violations.resize(1);
  return violations;
}

template <class... Words>
Matcher<std::vector<Violation>> Shows(Check check, const char* schedule, const Words&... words) {
  return ElementsAre(AllOf(Field(&Violation::check, check), Field(&Violation::schedule, schedule),
                           Field(&Violation::message, AllOf(HasSubstr(words)...))));
}

ScheduledCommand& At(Plan& plan, int schedule, int command) { return plan.schedules[schedule].commands[command]; }

// ---- correct plans ----

TEST(VerifierTest, AcceptsHandMadePlans) {
  for (const Plan& plan : {TwoUnitPlan().plan, CarriedPlan().plan, UnshardedGradientPlan().plan, InPlacePlan().plan}) {
    EXPECT_THAT(FindViolations(plan, Check::kSuccession), IsEmpty()) << First(plan)[0].message;
  }
}

TEST(VerifierTest, NamesTheReasonOfEachRemovedWait) {
  int removed = 0;
  for (const Plan& plan : {TwoUnitPlan().plan, CarriedPlan().plan, UnshardedGradientPlan().plan, InPlacePlan().plan}) {
    for (size_t s = 0; s < plan.schedules.size(); ++s) {
      const Schedule& schedule = plan.schedules[s];
      for (size_t c = 0; c < schedule.commands.size(); ++c) {
        const std::vector<Wait>& waits = schedule.commands[c].waits;
        for (size_t w = 0; w < waits.size(); ++w) {
          Plan broken = plan;
          std::vector<Wait>& left = broken.schedules[s].commands[c].waits;
          left.erase(left.begin() + static_cast<std::ptrdiff_t>(w));
          const std::string waiter = "#" + std::to_string(c) + " ";
          const std::string waited = "#" + std::to_string(waits[w].command.value()) + " ";
          EXPECT_THAT(First(broken), Shows(CheckOf(waits[w].reason), schedule.name.c_str(), waiter, waited))
              << schedule.name << " without the wait of " << waiter << "on " << waited;
          ++removed;
        }
      }
    }
  }
  EXPECT_EQ(removed, 12 + 7 + 6 + 6);  // two units, carried, unsharded gradient, in place
}

TEST(VerifierTest, VerifyReportsTheFirstViolation) {
  Plan plan = TwoUnitPlan().plan;
  At(plan, 0, 2).waits.clear();
  const absl::Status status = Verify(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("check data failed in schedule body"), HasSubstr("g0"), HasSubstr("report")));
}

TEST(VerifierTest, NamesEveryCheck) {
  EXPECT_EQ(Name(Check::kForm), "form");
  EXPECT_EQ(Name(Check::kData), "data");
  EXPECT_EQ(Name(Check::kOrder), "order");
  EXPECT_EQ(Name(Check::kFork), "fork");
  EXPECT_EQ(Name(Check::kJoin), "join");
  EXPECT_EQ(Name(Check::kMemory), "memory");
  EXPECT_EQ(Name(Check::kSuccession), "succession");
  EXPECT_EQ(Name(Check::kMeaning), "meaning");
}

// ---- one mistake each ----

struct Mistake {
  std::string name;
  std::function<Plan()> plan;
  Check check;
  const char* schedule;
  std::vector<std::string> words;
};

void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

class VerifierMistakeTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(VerifierMistakeTest, IsFound) {
  const Mistake& mistake = GetParam();
  const std::vector<Violation> found = First(mistake.plan());
  ASSERT_THAT(found, Shows(mistake.check, mistake.schedule, ""));
  for (const std::string& word : mistake.words) EXPECT_THAT(found[0].message, HasSubstr(word));
}

// The plan of `made` after `change`.
template <class MadePlan>
std::function<Plan()> Changed(MadePlan (*make)(), std::function<void(MadePlan&)> change) {
  return [make, change] {
    MadePlan made = make();
    change(made);
    return made.plan;
  };
}
std::function<Plan()> Two(std::function<void(TwoUnits&)> change) { return Changed(&TwoUnitPlan, std::move(change)); }
std::function<Plan()> Carried(std::function<void(OneUnit&)> change) { return Changed(&CarriedPlan, std::move(change)); }
std::function<Plan()> Full(std::function<void(OneUnit&)> change) {
  return Changed(&UnshardedGradientPlan, std::move(change));
}

std::vector<Mistake> FormMistakes() {
  const auto form = [](const char* name, std::function<Plan()> plan, std::vector<std::string> words) {
    return Mistake{name, std::move(plan), Check::kForm, "body", std::move(words)};
  };
  const auto whole = [](const char* name, std::function<Plan()> plan, std::vector<std::string> words) {
    return Mistake{name, std::move(plan), Check::kForm, "", std::move(words)};
  };
  return {
      whole("FinishIsStep", Full([](OneUnit& o) { o.plan.finish = o.plan.step; }), {"is more than one of first"}),
      whole("StepIsBody", Full([](OneUnit& o) { o.plan.step = o.plan.body; }), {"is more than one of first"}),
      whole("UnshardedGradientButReducedEveryMicrobatch",
            Full([](OneUnit& o) { o.plan.options.reduce = Reduce::kEveryMicrobatch; }),
            {"the unsharded gradient of u0 is buffer ", "the options have no use for"}),
      whole("NoUnshardedGradient", Full([](OneUnit& o) { o.plan.unit_buffers[0].unsharded_gradient = BufferId(); }),
            {"the unsharded gradient of u0 is buffer -1, which does not exist"}),
      form("StateOfFullGradients", Two([](TwoUnits& t) { t.plan.schedules[0].end.gradients = true; }),
           {"a state holds unsharded gradients, but the plan reduces every microbatch"}),
      whole("UnsetOption", Two([](TwoUnits& t) { t.plan.options.prefetch_depth.reset(); }), {"unset"}),
      whole("ScheduleIndex", Two([](TwoUnits& t) { t.plan.step = 2; }), {"step 2", "2 schedules"}),
      whole("LayoutOfOtherModel", Two([](TwoUnits& t) { t.plan.layout.units.pop_back(); }),
            {"layout is not that of its model on 2 ranks"}),
      whole("BufferPastStorage", Two([](TwoUnits& t) { t.plan.memory.num_bytes[int(Storage::kLocal)] = 511; }),
            {"da0", "offset 256", "511 bytes of storage"}),
      whole("UnalignedBuffer", Two([](TwoUnits& t) { t.plan.buffers[t.a0.value()].offset = 128; }),
            {"a0", "offset 128", "256"}),
      whole("NegativeSize", Two([](TwoUnits& t) { t.plan.buffers[t.a0.value()].num_bytes = -1; }), {"a0", "-1 bytes"}),
      form("NoEnd", Two([](TwoUnits& t) { t.plan.schedules[0].commands.resize(1); }), {"1 commands"}),
      form("SecondBegin", Two([](TwoUnits& t) { At(t.plan, 0, 5).command = Begin{}; }), {"#5 ", "Begin"}),
      form("CommandAfterEnd", Two([](TwoUnits& t) { std::swap(At(t.plan, 0, 12).command, At(t.plan, 0, 9).command); }),
           {"#9 ", "End"}),
      form("UnknownUnit", Two([](TwoUnits& t) {
             At(t.plan, 0, 1).command = AllGather{UnitId(2), 0, Transport::kNccl, AxisId(0)};
           }),
           {"#1 ", "unit 2"}),
      form("UnknownCall", Two([](TwoUnits& t) { At(t.plan, 0, 2).command = Forward{CallId(2)}; }), {"#2 ", "call 2"}),
      form("UnknownAxis", Two([](TwoUnits& t) {
             At(t.plan, 0, 1).command = AllGather{UnitId(0), 0, Transport::kNccl, AxisId(1)};
           }),
           {"#1 ", "axis 1"}),
      form("UnknownLane", Two([](TwoUnits& t) { At(t.plan, 0, 1).lane = static_cast<Lane>(7); }), {"#1 ", "lane 7"}),
      form("WrongLane", Two([](TwoUnits& t) { At(t.plan, 0, 6).lane = Lane::kAllGather; }),
           {"#6 ", "belongs on lane reduce_scatter"}),
      form("WeightSlotOutOfRange", Two([](TwoUnits& t) {
             At(t.plan, 0, 1).command = AllGather{UnitId(0), 1, Transport::kNccl, AxisId(0)};
           }),
           {"#1 ", "slot 1"}),
      form("GradientSlotOutOfRange",
           Two([](TwoUnits& t) { std::get<ReduceScatter>(At(t.plan, 0, 6).command).slot = 1; }), {"#6 ", "slot 1"}),
      form("NoTransport",
           Two([](TwoUnits& t) { std::get<ReduceScatter>(At(t.plan, 0, 6).command).transport = Transport(3); }),
           {"#6 ", "transport"}),
      form("TransportOfAnotherUnit",
           Two([](TwoUnits& t) { std::get<AllGather>(At(t.plan, 0, 1).command).transport = Transport::kSymmetric; }),
           {"#1 ", "has transport symmetric, but its unit has nccl"}),
      form("TransportOfAnotherUnitThroughout", Two([](TwoUnits& t) {
             for (ScheduledCommand& command : t.plan.schedules[0].commands) {
               if (auto* reduce = std::get_if<ReduceScatter>(&command.command))
                 reduce->transport = Transport::kSymmetric;
             }
           }),
           {"has transport symmetric, but its unit has nccl"}),
      whole("PolicyOfAnotherUnit", Two([](TwoUnits& t) { t.plan.unit_policies[1].sum = Sum::kRankOrder; }),
            {"u1 has transports nccl and sum rank_order, but the options give it nccl and sum nccl"}),
      whole("NoPolicy", Two([](TwoUnits& t) { t.plan.unit_policies.pop_back(); }), {"2, 2 and 1 units"}),
      form("PeersOnNoAxisThatIsOrdered", Two([](TwoUnits& t) { At(t.plan, 0, 2).uses[0].peers = AxisId(0); }),
           {"#2 ", "uses g0 of peers on axis 0, whose ranks it does not order"}),
      whole("TransportChoicesOutOfOrder", Two([](TwoUnits& t) {
              t.plan.options.transports = {{9, Transport::kNccl}, {3, Transport::kNccl}};
            }),
            {"transports has 3 bytes after 9"}),
      whole("TransportChoicesOfNone", Two([](TwoUnits& t) {
              t.plan.options.transports = {{9, static_cast<Transport>(77)}};
            }),
            {"transports has transport 77, which does not exist"}),
      whole("ExchangesThatCannotAdd", Two([](TwoUnits& t) {
              t.plan.options.transports = {{9, {Transport::kNccl, Transport::kSymmetric}}};
            }),
            {"are exchanged by symmetric, which cannot add"}),
      form("UnknownBuffer", Two([](TwoUnits& t) { At(t.plan, 0, 2).uses[0].buffer = BufferId(99); }),
           {"#2 ", "buffer 99"}),
      form("UnknownParameter", Two([](TwoUnits& t) { At(t.plan, 0, 2).uses[0].id = 2; }), {"#2 ", "g0", "parameter 2"}),
      form("UsePastBuffer", Two([](TwoUnits& t) { At(t.plan, 0, 2).uses[0].offset = 4; }),
           {"#2 ", "g0", "256 bytes from 4"}),
      form("CopyInTwoBuffers", Two([](TwoUnits& t) {
             BufferUse second = At(t.plan, 0, 1).uses[1];
             second.buffer = t.g1;
             At(t.plan, 0, 1).uses.push_back(second);
           }),
           {"#1 ", "one buffer", "g1"}),
      form("WaitForLaterCommand", Two([](TwoUnits& t) { At(t.plan, 0, 1).waits = {Fork(2)}; }), {"#1 ", "command 2"}),
      form("WaitOnOwnLane", Two([](TwoUnits& t) {
             At(t.plan, 0, 2).waits = {Data(0), Data(1)};
           }),
           {"#2 ", "#0 ", "own lane"}),
      form("TwoWaitsForOneLane", Two([](TwoUnits& t) {
             At(t.plan, 0, 4).waits = {Data(1), Data(3)};
           }),
           {"#4 ", "twice", "all_gather"}),
      form("UnsortedWaits", Two([](TwoUnits& t) {
             At(t.plan, 0, 9).waits = {Data(8), Order(6)};
           }),
           {"#9 ", "sorted"}),
      form("WaitImpliedByLane", Two([](TwoUnits& t) { At(t.plan, 0, 5).waits = {Data(3)}; }),
           {"#5 ", "#3 ", "#4 ", "implies"}),
      form("WaitImpliedByOtherWait", Two([](TwoUnits& t) {
             At(t.plan, 0, 12).waits = {Join(8), Join(11)};
           }),
           {"#12 ", "#8 ", "implies"}),
      form("NotMarkedAsBesideCompute",
           Two([](TwoUnits& t) { std::get<Accumulate>(At(t.plan, 0, 7).command).beside_compute = false; }),
           {"#7 ", "not marked as beside compute"}),
      form("BesideNoCompute",
           Two([](TwoUnits& t) { std::get<Accumulate>(At(t.plan, 0, 11).command).beside_compute = true; }),
           {"#11 ", "none follows"}),
      Mistake{"ResidentInNoSlot",
              Carried([](OneUnit& o) { o.plan.schedules[0].end.residents[0].slot = 1; }),
              Check::kForm,
              "first",
              {"slot 1"}},
      Mistake{"PersistentResident",
              Carried([](OneUnit& o) { o.plan.schedules[0].end.residents[0].buffer = o.weights; }),
              Check::kForm,
              "first",
              {"w0", "persistent"}},
  };
}

std::vector<Mistake> UseMistakes() {
  const auto mistake = [](const char* name, Check check, std::function<Plan()> plan, std::vector<std::string> words) {
    return Mistake{name, std::move(plan), check, "body", std::move(words)};
  };
  return {
      mistake("ReadOfUnwrittenBytes", Check::kData, Two([](TwoUnits& t) { At(t.plan, 0, 2).uses[1].num_bytes = 128; }),
              {"#4 ", "[128, 256) of a0", "nothing wrote"}),
      mistake("UpdateOfUnwrittenBytes", Check::kData,
              Two([](TwoUnits& t) { At(t.plan, 0, 5).uses[2].access = Access::kUpdate; }), {"#5 ", "wire1"}),
      mistake("ReadOfPreviousCopy", Check::kData, Two([](TwoUnits& t) {
                // The second gather of u0 writes half of the first copy again: the other half is not of this copy.
                At(t.plan, 0, 8).uses[1] = {t.g0, 0, 128, Access::kAssign, Role::kGathered, 0};
                At(t.plan, 0, 9).uses[0].buffer = t.g0;
              }),
              {"#9 ", "[128, 256) of g0", "nothing wrote"}),
      mistake("InputAlsoAssigned", Check::kData, Two([](TwoUnits& t) {
                At(t.plan, 0, 4).uses.push_back({t.a0, 64, 64, Access::kAssign, Role::kOutput, 0});
              }),
              {"#4 ", "both reads and assigns", "[64, 128) of a0"}),
      mistake("GatherBeforeReaderOfItsSlot", Check::kOrder, Two([](TwoUnits& t) {
                At(t.plan, 0, 3).waits.clear();
                t.plan.buffers[t.g1.value()].offset = 1024;
              }),
              {"#3 ", "weight slot 0", "u0", "#2 "}),
      mistake("GatherAheadOfPrefetchDepth", Check::kOrder, Two([](TwoUnits& t) {
                At(t.plan, 0, 3).command = AllGather{UnitId(1), 1, Transport::kNccl, AxisId(0)};
                At(t.plan, 0, 3).waits.clear();
                t.plan.weight_slots = 2;
                t.plan.options.prefetch_depth = 0;
              }),
              {"#3 ", "prefetch depth 0", "#4 ", "#2 "}),
      mistake("GradientSlotTakenBeforeReduction", Check::kOrder,
              Two([](TwoUnits& t) { At(t.plan, 0, 9).waits = {Data(8)}; }), {"#9 ", "gradient slot 0", "u1", "#6 "}),
      mistake("SharedBytes", Check::kMemory, Two([](TwoUnits& t) { t.plan.buffers[t.da0.value()].offset = 0; }),
              {"a0", "da0", "[0, 256) of storage", "#5 "}),
      mistake("SharedBytesAcrossLanes", Check::kMemory,
              Two([](TwoUnits& t) { t.plan.buffers[t.received1.value()].offset = 0; }),
              {"received1", "g0b", "[0, 128)"}),
      Mistake{"SharedPersistentBytes",
              Two([](TwoUnits& t) { t.plan.buffers[t.accumulator1.value()].offset = 0; }),
              Check::kMemory,
              "",
              {"accumulator0", "accumulator1", "session", "persistent"}},
      mistake("BytesOfStartResident", Check::kMemory,
              Carried([](OneUnit& o) { o.plan.buffers[o.received.value()].offset = 0; }),
              {"g0", "received0", "#1 ", "#5 "}),
      Mistake{"UnshardedGradientAddedToNothing",
              Full([](OneUnit& o) { At(o.plan, 0, 3).uses[1].access = Access::kUpdate; }),
              Check::kData,
              "first",
              {"#3 ", "full0", "nothing wrote"}},
  };
}

std::vector<Mistake> StateMistakes() {
  const auto mistake = [](const char* name, const char* schedule, std::function<Plan()> plan,
                          std::vector<std::string> words) {
    return Mistake{name, std::move(plan), Check::kSuccession, schedule, std::move(words)};
  };
  return {
      mistake("BodyStartsWithMoreThanFirstLeaves", "",
              Carried([](OneUnit& o) { o.plan.schedules[0].end.residents.clear(); }),
              {"body may follow first", "u0", "weight slot 0", "g0"}),
      mistake("BodyLeavesAnotherCopy", "", Carried([](OneUnit& o) {
                o.plan.buffers.push_back(o.plan.buffers[o.gathered.value()]);
                o.plan.buffers.back().name = "other";
                o.plan.schedules[1].end.residents[0].buffer = BufferId(static_cast<int64_t>(o.plan.buffers.size()) - 1);
              }),
              {"body may follow body", "g0"}),
      mistake("FinishDoesNotTakeOverReduction", "", Carried([](OneUnit& o) { o.plan.finish = -1; }),
              {"step may follow first", "does not take over the reduction of u0"}),
      mistake("FirstStartsWithReduction", "", Carried([](OneUnit& o) { o.plan.first = o.plan.body; }),
              {"a change of parameters", "resident"}),
      mistake("StepEndsWithResident", "",
              Carried([](OneUnit& o) { o.plan.schedules[3].end.residents = o.plan.schedules[0].end.residents; }),
              {"step changes the weights", "u0"}),
      mistake("StepStartsWithFullGradients", "", Full([](OneUnit& o) {
                o.plan.finish = -1;
                o.plan.schedules[3].start.gradients = true;
              }),
              {"step reads the summed gradients"}),
      mistake("UnshardedGradientsNotTakenOver", "", Full([](OneUnit& o) { o.plan.finish = -1; }),
              {"step may follow first", "unsharded gradients"}),
  };
}

std::string NameOf(const ::testing::TestParamInfo<Mistake>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Form, VerifierMistakeTest, ::testing::ValuesIn(FormMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(Uses, VerifierMistakeTest, ::testing::ValuesIn(UseMistakes()), NameOf);
INSTANTIATE_TEST_SUITE_P(States, VerifierMistakeTest, ::testing::ValuesIn(StateMistakes()), NameOf);

}  // namespace
}  // namespace reprise
