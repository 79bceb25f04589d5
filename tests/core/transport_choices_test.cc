// Which transport each unit gets from PlanOptions::transports.
#include <algorithm>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/verifier.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using testing::IsOk;
using testing::Random;

// Units of one parameter of 64 * `elements[i]` elements in bf16, which is what the world of two pads to.
Model Units(const std::vector<int64_t>& elements) {
  ModelBuilder builder;
  const TensorId x = builder.AddInput({.name = "x", .shape = {1}});
  for (size_t i = 0; i < elements.size(); ++i) {
    const UnitId unit = builder.AddUnit("u" + std::to_string(i));
    builder.AddParameter(unit, {.name = "p" + std::to_string(i), .shape = {64, elements[i]}});
    builder.AddCall({.name = "c" + std::to_string(i), .units = {unit}, .inputs = {x}});
  }
  return builder.Build().value();
}

std::vector<Transport> GatherTransports(const Plan& plan) {
  std::vector<Transport> transports(plan.model.units().size());
  for (const ScheduledCommand& command : plan.schedules[plan.first].commands) {
    const AllGather* const gather = std::get_if<AllGather>(&command.command);
    if (gather != nullptr) transports[gather->unit.value()] = gather->transport;
  }
  return transports;
}

TEST(TransportChoicesTest, GoByTheBytesOfAGatheredCopy) {
  const Model model = Units({2, 4, 8});  // 256, 512 and 1024 bytes
  const auto transports = [&](std::vector<TransportChoice> choices) {
    return GatherTransports(PlanForward(model, 2, {.transports = choices}).value());
  };
  const Transport d = Transport::kNccl, s = Transport::kSymmetric, c = Transport::kCopyEngine;
  using ::testing::ElementsAre;
  EXPECT_THAT(transports({}), ElementsAre(d, d, d));
  EXPECT_THAT(transports({{512, s}}), ElementsAre(d, s, s));
  EXPECT_THAT(transports({{513, s}}), ElementsAre(d, d, s));
  EXPECT_THAT(transports({{0, s}, {512, d}, {1024, c}}), ElementsAre(s, d, c));
  EXPECT_THAT(transports({{1025, c}}), ElementsAre(d, d, d));
}

TEST(TransportChoicesTest, AreThePlansOptionOnlyWhereUnitsDiffer) {
  const Model model = Units({2, 4});
  const auto options = [&](const PlanOptions& asked) { return PlanForward(model, 2, asked).value().options; };
  const std::vector<TransportChoice> mixed = {{0, Transport::kSymmetric}, {512, Transport::kCopyEngine}};
  EXPECT_EQ(options({.transports = mixed}).transports, mixed);
  EXPECT_THAT(ToText(*PlanForward(model, 2, {.transports = mixed})),
              ::testing::HasSubstr(" transports=symmetric,512:copy_engine "));
  const std::vector<TransportChoice> equal = {{0, Transport::kSymmetric}, {513, Transport::kCopyEngine}};
  EXPECT_EQ(PlanForward(model, 2, {.transports = equal}),
            PlanForward(model, 2, {.transports = EveryUnit(Transport::kSymmetric)}));
  EXPECT_EQ(PlanForward(Model(), 2, {.transports = mixed}), PlanForward(Model(), 2, {}));
}

TEST(TransportChoicesTest, AreTextAndBack) {
  for (const char* text : {"nccl", "auto", "symmetric,4194304:copy_engine", "7:symmetric,8:nccl", "copy_engine",
                           "copy_engine/symmetric,9:nccl/copy_engine"}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<TransportChoice> choices, TransportChoicesFromText(text));
    EXPECT_EQ(ToText(choices), text);
  }
  EXPECT_EQ(TransportChoicesFromText("0:nccl/nccl").value(), TransportChoicesFromText("nccl").value());
  EXPECT_THAT(TransportChoicesFromText("auto").value(), ::testing::IsEmpty());
  for (const char* text : {"",
                           "none",
                           "default",
                           "nccl,",
                           "x:nccl",
                           "1:2:nccl",
                           " 7:nccl",
                           "7 :nccl",
                           "+7:nccl",
                           "-0:nccl",
                           ":nccl",
                           "nccl:4",
                           "4:auto",
                           "4294967296",
                           "99999999999999999999:nccl",
                           "symmetric,copy_engine",
                           "8:symmetric,7:nccl",
                           "nccl/",
                           "/nccl",
                           "nccl/nccl/nccl",
                           "auto/nccl"}) {
    EXPECT_THAT(TransportChoicesFromText(text),
                testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("; give ")))
        << text;
  }
}

// Every command of a unit has the unit's transport, and received buffers have what that delivers.
TEST(TransportChoicesTest, HoldForEveryCommandOfRandomPlans) {
  constexpr int kSeeds = 200;
  int differ = 0;
  for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    Random random(seed);
    const Model model = testing::RandomModel(seed, {.max_units = 6});
    PlanOptions options = testing::RandomPlanOptions(random);
    options.transports.clear();
    options.sum = random.Chance(50) ? Sum::kRankOrder : Sum::kNccl;
    for (int64_t bytes = random.Below(1000); bytes < 8000; bytes += 1 + random.Below(4000)) {
      const Transport gather = kTransports[random.Below(3)].transport,
                      exchange = kTransports[random.Below(3)].transport;
      options.transports.push_back({bytes, {gather, options.sum == Sum::kNccl ? Transport::kNccl : exchange}});
    }
    const int world_size = static_cast<int>(1 + random.Below(4));
    const absl::StatusOr<Plan> plan = PlanTraining(model, world_size, options);
    ASSERT_THAT(plan, IsOk()) << "seed " << seed;
    EXPECT_THAT(Verify(*plan), IsOk()) << "seed " << seed;
    const auto expected = [&](UnitId unit) {
      UnitTransports transports;
      for (const TransportChoice& choice : options.transports) {
        if (choice.unit_bytes <= plan->layout.units[unit.value()].gathered_bytes) transports = choice.transports;
      }
      return transports;
    };
    std::set<Transport> used;
    for (const Schedule& schedule : plan->schedules) {
      for (const ScheduledCommand& command : schedule.commands) {
        if (const auto* gather = std::get_if<AllGather>(&command.command)) {
          EXPECT_EQ(gather->transport, expected(gather->unit).gather) << "seed " << seed;
          used.insert(gather->transport);
        }
        const auto* reduce = std::get_if<ReduceScatter>(&command.command);
        if (const auto* sum = std::get_if<Accumulate>(&command.command)) {
          EXPECT_EQ(sum->sum, *options.sum) << "seed " << seed;
        }
        if (reduce == nullptr) continue;
        EXPECT_EQ(reduce->transport, expected(reduce->unit).exchange) << "seed " << seed;
        const int64_t parts = options.sum == Sum::kNccl ? 1 : world_size - 1;
        for (const BufferUse& use : command.uses) {
          if (use.role != Role::kReceived) continue;
          // Where peers write what this rank receives, it writes theirs.
          const auto peers = std::count_if(command.uses.begin(), command.uses.end(), [&](const BufferUse& other) {
            return !other.is_own() && other.id == use.id && other.buffer == use.buffer && other.offset == use.offset &&
                   other.num_bytes == use.num_bytes && other.peers == reduce->axis;
          });
          EXPECT_EQ(peers, reduce->transport == Transport::kNccl ? 0 : 1) << "seed " << seed;
          const FlatGroup& group = plan->layout.units[reduce->unit.value()].groups[use.id];
          EXPECT_EQ(use.num_bytes, parts * group.shard_elements * SizeOf(plan->reduce_dtype(group))) << "seed " << seed;
        }
      }
    }
    differ += used.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(differ, kSeeds / 4);  // otherwise they prove little
}

}  // namespace
}  // namespace reprise
