#include <algorithm>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/model/hasher.h"
#include "core/plan/plan_facts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/plan.h"
#include "tests/core/sample_plan.h"

namespace reprise {
namespace {

using internal::Hasher;
using testing::SampleModel;
using testing::SamplePlan;

struct Mutation {
  const char* field;
  std::function<void(Plan&)> apply;
};

template <class T>
T& CommandOf(Plan& plan) {
  for (Schedule& schedule : plan.schedules) {
    for (ScheduledCommand& command : schedule.commands) {
      if (T* found = std::get_if<T>(&command.command)) return *found;
    }
  }
  ADD_FAILURE() << "the sample plan lacks a command";
  std::abort();
}

const std::vector<Mutation>& PlanMutations() {
  static const auto* mutations = new std::vector<Mutation>{
      {"model", [](Plan& p) { p.model = SampleModel("u1"); }},
      {"layout.world_size", [](Plan& p) { p.layout.world_size = 3; }},
      {"group.dtype", [](Plan& p) { p.layout.units[0].groups[0].dtype = DType::kFloat32; }},
      {"group.reduce_dtype", [](Plan& p) { p.layout.units[0].groups[0].reduce_dtype = DType::kBFloat16; }},
      {"group.reduce_dtype unset", [](Plan& p) { p.layout.units[0].groups[0].reduce_dtype.reset(); }},
      {"group.trainable", [](Plan& p) { p.layout.units[0].groups[0].trainable = false; }},
      {"group.parameters.parameter",
       [](Plan& p) { p.layout.units[0].groups[0].parameters[0].parameter = ParameterId(1); }},
      {"group.parameters.first", [](Plan& p) { p.layout.units[0].groups[0].parameters[0].first_element = 64; }},
      {"group.parameters.count", [](Plan& p) { p.layout.units[0].groups[0].parameters[0].num_elements = 31; }},
      {"group.num_elements", [](Plan& p) { p.layout.units[0].groups[0].num_elements = 64; }},
      {"group.shard_elements", [](Plan& p) { p.layout.units[0].groups[0].shard_elements = 32; }},
      {"unit.gathered_offsets", [](Plan& p) { p.layout.units[0].gathered_offsets[0] = 128; }},
      {"unit.gathered_bytes", [](Plan& p) { p.layout.units[0].gathered_bytes = 512; }},
      {"layout.parameters.group", [](Plan& p) { p.layout.parameters[0].group = 1; }},
      {"layout.parameters.first", [](Plan& p) { p.layout.parameters[0].first_element = 64; }},
      {"options.prefetch_depth", [](Plan& p) { p.options.prefetch_depth = 2; }},
      {"options.prefetch_depth unset", [](Plan& p) { p.options.prefetch_depth.reset(); }},
      {"options.weight_slots", [](Plan& p) { p.options.weight_slots = 3; }},
      {"options.gradient_slots", [](Plan& p) { p.options.gradient_slots = 3; }},
      {"options.microbatches_per_graph", [](Plan& p) { p.options.microbatches_per_graph = 1; }},
      {"options.residency", [](Plan& p) { p.options.residency = Residency::kOff; }},
      {"options.reduce", [](Plan& p) { p.options.reduce = Reduce::kOncePerStep; }},
      {"options.tail", [](Plan& p) { p.options.tail = Tail::kCarried; }},
      {"options.transports.gather",
       [](Plan& p) {
         p.options.transports = EveryUnit({Transport::kSymmetric, Transport::kNccl});
       }},
      {"options.sum", [](Plan& p) { p.options.sum = Sum::kNccl; }},
      {"options.sum unset", [](Plan& p) { p.options.sum.reset(); }},
      {"options.reduce_dtype", [](Plan& p) { p.options.reduce_dtype = DType::kFloat32; }},
      {"options.master_dtype", [](Plan& p) { p.options.master_dtype = DType::kBFloat16; }},
      {"options.optimizer_states", [](Plan& p) { p.options.optimizer_states = 1; }},
      {"options.transports", [](Plan& p) { p.options.transports.emplace_back(); }},
      {"options.transports.unit_bytes", [](Plan& p) { p.options.transports = {{.unit_bytes = 1}}; }},
      {"options.transports.exchange",
       [](Plan& p) {
         p.options.transports = EveryUnit({Transport::kNccl, Transport::kSymmetric});
       }},
      {"unit_policies.gather", [](Plan& p) { p.unit_policies[0].transports.gather = Transport::kSymmetric; }},
      {"unit_policies.exchange", [](Plan& p) { p.unit_policies[0].transports.exchange = Transport::kSymmetric; }},
      {"unit_policies.sum", [](Plan& p) { p.unit_policies[0].sum = Sum::kNccl; }},
      {"norm_parts", [](Plan& p) { p.norm_parts = BufferId(3); }},
      {"use.peers", [](Plan& p) { p.schedules[0].commands[3].uses[0].peers = AxisId(0); }},
      {"segments", [](Plan& p) { CommandOf<Accumulate>(p).segments.clear(); }},
      {"segment.group", [](Plan& p) { CommandOf<Accumulate>(p).segments[0].group = 1; }},
      {"segment.first_element", [](Plan& p) { CommandOf<Accumulate>(p).segments[0].first_element = 1; }},
      {"segment.num_elements", [](Plan& p) { CommandOf<Accumulate>(p).segments[0].num_elements = 1; }},
      {"ReduceScatter.sum", [](Plan& p) { CommandOf<ReduceScatter>(p).sum = Sum::kNccl; }},
      {"AllGather.transport", [](Plan& p) { CommandOf<AllGather>(p).transport = Transport::kSymmetric; }},
      {"axis.name", [](Plan& p) { p.axes[0].name = "model"; }},
      {"axis.size", [](Plan& p) { p.axes[0].size = 3; }},
      {"buffer.name", [](Plan& p) { p.buffers[0].name = "weights.u1"; }},
      {"buffer.storage", [](Plan& p) { p.buffers[0].storage = Storage::kMasters; }},
      {"buffer.num_bytes", [](Plan& p) { p.buffers[0].num_bytes = 129; }},
      {"buffer.offset", [](Plan& p) { p.buffers[0].offset = 256; }},
      {"unit_buffers.weights", [](Plan& p) { p.unit_buffers[0].weights[0] = BufferId(3); }},
      {"unit_buffers.masters", [](Plan& p) { p.unit_buffers[0].masters[0] = BufferId(3); }},
      {"unit_buffers.accumulators", [](Plan& p) { p.unit_buffers[0].accumulators[0] = BufferId(3); }},
      {"unit_buffers.unsharded_gradient", [](Plan& p) { p.unit_buffers[0].unsharded_gradient = BufferId(); }},
      {"unit_buffers.optimizer_states", [](Plan& p) { p.unit_buffers[0].optimizer_states[0].pop_back(); }},
      {"unit_buffers.norm_partials", [](Plan& p) { p.unit_buffers[0].norm_partials[0] = 0; }},
      {"tensor_buffers.staging", [](Plan& p) { p.tensor_buffers[0].staging = BufferId(3); }},
      {"tensor_buffers.value", [](Plan& p) { p.tensor_buffers[0].value = BufferId(3); }},
      {"tensor_buffers.kept_gradient", [](Plan& p) { p.tensor_buffers[0].kept_gradient = BufferId(3); }},
      {"control", [](Plan& p) { p.control = BufferId(3); }},
      {"step_state", [](Plan& p) { p.step_state = BufferId(3); }},
      {"norm_partials", [](Plan& p) { p.norm_partials = BufferId(3); }},
      {"metrics", [](Plan& p) { p.metrics = BufferId(0); }},
      {"first", [](Plan& p) { p.first = 1; }},
      {"body", [](Plan& p) { p.body = 1; }},
      {"finish", [](Plan& p) { p.finish = 1; }},
      {"step", [](Plan& p) { p.step = -1; }},
      {"weight_slots", [](Plan& p) { p.weight_slots = 2; }},
      {"dedicated_gradient_slots", [](Plan& p) { p.dedicated_gradient_slots = 0; }},
      {"memory.num_bytes", [](Plan& p) { p.memory.num_bytes[2] += 1; }},
      {"memory.lower_bound", [](Plan& p) { p.memory.lower_bound[4] += 1; }},
  };
  return *mutations;
}

const std::vector<Mutation>& ScheduleMutations() {
  static const auto* mutations = new std::vector<Mutation>{
      {"schedules", [](Plan& p) { p.schedules.pop_back(); }},
      {"schedule.name", [](Plan& p) { p.schedules[0].name = "first"; }},
      {"schedule.microbatches", [](Plan& p) { p.schedules[0].microbatches = 1; }},
      {"schedule.commands", [](Plan& p) { std::swap(p.schedules[0].commands[5], p.schedules[0].commands[6]); }},
      {"resident.unit", [](Plan& p) { p.schedules[0].start.residents[0].unit = UnitId(1); }},
      {"resident.buffer", [](Plan& p) { p.schedules[0].start.residents[0].buffer = BufferId(3); }},
      {"resident.slot", [](Plan& p) { p.schedules[0].start.residents[0].slot = 0; }},
      {"resident at the other end",
       [](Plan& p) { std::swap(p.schedules[0].start.residents, p.schedules[0].end.residents); }},
      {"outstanding.unit", [](Plan& p) { p.schedules[0].end.outstanding[0].unit = UnitId(1); }},
      {"outstanding.buffer", [](Plan& p) { p.schedules[0].end.outstanding[0].buffer = BufferId(3); }},
      {"outstanding.slot", [](Plan& p) { p.schedules[0].end.outstanding[0].slot = 0; }},
      {"state.gradients", [](Plan& p) { p.schedules[0].end.gradients = false; }},
      {"lane", [](Plan& p) { p.schedules[0].commands[3].lane = Lane::kCopy; }},
      {"use.buffer", [](Plan& p) { p.schedules[0].commands[3].uses[0].buffer = BufferId(3); }},
      {"use.offset", [](Plan& p) { p.schedules[0].commands[3].uses[0].offset = 1; }},
      {"use.num_bytes", [](Plan& p) { p.schedules[0].commands[3].uses[0].num_bytes = 127; }},
      {"use.access", [](Plan& p) { p.schedules[0].commands[3].uses[0].access = Access::kUpdate; }},
      {"use.role", [](Plan& p) { p.schedules[0].commands[3].uses[0].role = Role::kMaster; }},
      {"use.id", [](Plan& p) { p.schedules[0].commands[3].uses[0].id = 1; }},
      {"wait.command", [](Plan& p) { p.schedules[0].commands[4].waits[0].command = CommandId(2); }},
      {"wait.reason", [](Plan& p) { p.schedules[0].commands[4].waits[0].reason = WaitReason::kOrder; }},
      {"command kind", [](Plan& p) { p.schedules[0].commands[0].command = End{}; }},
      {"NextMicrobatch.count", [](Plan& p) { CommandOf<NextMicrobatch>(p).count = 1; }},
      {"StageInputs.position", [](Plan& p) { CommandOf<StageInputs>(p).position = 0; }},
      {"StageInputs.slots", [](Plan& p) { CommandOf<StageInputs>(p).slots = 2; }},
      {"AllGather.unit", [](Plan& p) { CommandOf<AllGather>(p).unit = UnitId(1); }},
      {"AllGather.slot", [](Plan& p) { CommandOf<AllGather>(p).slot = 0; }},
      {"AllGather.axis", [](Plan& p) { CommandOf<AllGather>(p).axis = AxisId(1); }},
      {"Forward.call", [](Plan& p) { CommandOf<Forward>(p).call = CallId(1); }},
      {"Forward.position", [](Plan& p) { CommandOf<Forward>(p).position = 0; }},
      {"Forward.recompute", [](Plan& p) { CommandOf<Forward>(p).recompute = false; }},
      {"Backward.call", [](Plan& p) { CommandOf<Backward>(p).call = CallId(1); }},
      {"Backward.position", [](Plan& p) { CommandOf<Backward>(p).position = 0; }},
      {"PackGradients.unit", [](Plan& p) { CommandOf<PackGradients>(p).unit = UnitId(1); }},
      {"PackGradients.position", [](Plan& p) { CommandOf<PackGradients>(p).position = 0; }},
      {"ReduceScatter.unit", [](Plan& p) { CommandOf<ReduceScatter>(p).unit = UnitId(1); }},
      {"ReduceScatter.position", [](Plan& p) { CommandOf<ReduceScatter>(p).position = 0; }},
      {"ReduceScatter.slot", [](Plan& p) { CommandOf<ReduceScatter>(p).slot = 0; }},
      {"ReduceScatter.transport", [](Plan& p) { CommandOf<ReduceScatter>(p).transport = Transport::kNccl; }},
      {"ReduceScatter.axis", [](Plan& p) { CommandOf<ReduceScatter>(p).axis = AxisId(1); }},
      {"Accumulate.unit", [](Plan& p) { CommandOf<Accumulate>(p).unit = UnitId(1); }},
      {"Accumulate.position", [](Plan& p) { CommandOf<Accumulate>(p).position = 0; }},
      {"Accumulate.sum", [](Plan& p) { CommandOf<Accumulate>(p).sum = Sum::kNccl; }},
      {"Accumulate.mode", [](Plan& p) { CommandOf<Accumulate>(p).mode = AccumulateMode::kByMicrobatch; }},
      {"Accumulate.beside_compute", [](Plan& p) { CommandOf<Accumulate>(p).beside_compute = true; }},
      {"RecordLoss.position", [](Plan& p) { CommandOf<RecordLoss>(p).position = 0; }},
      {"SumNorm.axis", [](Plan& p) { CommandOf<SumNorm>(p).axis = AxisId(1); }},
      {"UpdateParameters.unit", [](Plan& p) { CommandOf<UpdateParameters>(p).unit = UnitId(1); }},
      {"RefreshShards.unit", [](Plan& p) { CommandOf<RefreshShards>(p).unit = UnitId(1); }},
  };
  return *mutations;
}

TEST(FingerprintTest, EveryFieldChangesIt) {
  std::set<std::string> seen = {ComputeFingerprint(SamplePlan()).ToString()};
  for (const auto* mutations : {&PlanMutations(), &ScheduleMutations()}) {
    for (const Mutation& mutation : *mutations) {
      Plan plan = SamplePlan();
      mutation.apply(plan);
      EXPECT_TRUE(seen.insert(ComputeFingerprint(plan).ToString()).second) << mutation.field;
    }
  }
}

std::string Text(const internal::Fact& fact) { return absl::StrCat(fact.subject, "|", fact.name, "|", fact.value); }

// What fingerprints tell apart facts tell apart too, at one place: all facts before it are equal, and there either both
// speak of one subject or one list has no more of that section.
TEST(FingerprintTest, EveryFieldIsAFact) {
  const std::vector<internal::Fact> sample = internal::FactsOf(SamplePlan());
  for (size_t i = 1; i < sample.size(); ++i) EXPECT_LE(sample[i - 1].section, sample[i].section) << Text(sample[i]);
  for (const auto* mutations : {&PlanMutations(), &ScheduleMutations()}) {
    for (const Mutation& mutation : *mutations) {
      Plan plan = SamplePlan();
      mutation.apply(plan);
      const std::vector<internal::Fact> facts = internal::FactsOf(plan);
      size_t i = 0;
      while (i < std::min(facts.size(), sample.size()) && Text(facts[i]) == Text(sample[i])) ++i;
      ASSERT_TRUE(i < facts.size() || i < sample.size()) << mutation.field;
      if (i == facts.size() || i == sample.size()) continue;
      EXPECT_EQ(facts[i].section == sample[i].section, facts[i].subject == sample[i].subject) << mutation.field;
    }
  }
}

// Every declaration of a model changes the fingerprint, as the model alone differs.
TEST(FingerprintTest, EveryDeclarationOfAModelChangesIt) {
  struct Declarations {
    ParameterSpec parameter = {"w", {4}};
    TensorSpec tensor = {"x", {4}};
    CallSpec call = {.name = "c"};
    bool state = false, keep_gradient = false, allow_unused = false, loss = false;
  };
  const auto fingerprint = [](const std::function<void(Declarations&)>& change) {
    Declarations d;
    d.call.inputs = {TensorId(0)};
    change(d);
    ModelBuilder builder;
    const UnitId unit = builder.AddUnit("u");
    const ParameterId parameter = builder.AddParameter(unit, d.parameter);
    const TensorId x = builder.AddInput(d.tensor);
    const TensorId y = d.state ? builder.AddState({"y", {4}}) : builder.AddOutput({"y", {4}});
    const TensorId loss = builder.AddOutput({"loss", {}, DType::kFloat32});
    builder.AddCall(d.call);
    builder.AddCall({.name = "last",
                     .inputs = {x},
                     .outputs = d.state ? std::vector{loss} : std::vector{y, loss},
                     .state = d.state ? std::vector{y} : std::vector<TensorId>{}});
    if (d.keep_gradient) builder.KeepGradient(x);
    if (d.allow_unused) builder.AllowUnused(parameter);
    if (d.loss) builder.SetLoss(loss);
    Plan plan;
    const absl::StatusOr<Model> model = builder.Build();
    EXPECT_TRUE(model.ok()) << model.status();
    if (model.ok()) plan.model = *model;
    std::string facts;
    for (const internal::Fact& fact : internal::FactsOf(plan)) absl::StrAppend(&facts, Text(fact), "\n");
    return std::pair(ComputeFingerprint(plan).ToString(), facts);
  };
  const std::vector<std::function<void(Declarations&)>> changes = {
      [](Declarations&) {},
      [](Declarations& d) { d.parameter.name = "v"; },
      [](Declarations& d) {
        d.parameter.shape = {2, 2};
      },
      [](Declarations& d) { d.parameter.dtype = DType::kFloat32; },
      [](Declarations& d) { d.parameter.trainable = false; },
      [](Declarations& d) { d.parameter.reduce_dtype = DType::kFloat32; },
      [](Declarations& d) { d.tensor.name = "z"; },
      [](Declarations& d) { d.tensor.shape = {5}; },
      [](Declarations& d) { d.tensor.dtype = DType::kFloat32; },
      [](Declarations& d) { d.tensor.external = true; },
      [](Declarations& d) { d.call.name = "d"; },
      [](Declarations& d) { d.call.units = {UnitId(0)}; },
      [](Declarations& d) { d.call.forward_only_units = {UnitId(0)}; },
      [](Declarations& d) { d.call.parameters = {ParameterId(0)}; },
      [](Declarations& d) { d.call.inputs.clear(); },
      [](Declarations& d) { d.call.saved = {TensorId(0)}; },
      [](Declarations& d) { d.call.scratch_bytes = 1; },
      [](Declarations& d) { d.call.recompute = true; },
      [](Declarations& d) { d.state = true; },
      [](Declarations& d) { d.state = true, d.call.state = {TensorId(1)}; },
      [](Declarations& d) { d.keep_gradient = true; },
      [](Declarations& d) { d.allow_unused = true; },
      [](Declarations& d) { d.loss = true; },
  };
  std::set<std::string> seen, told;
  for (const auto& change : changes) {
    const auto [of_plan, facts] = fingerprint(change);
    seen.insert(of_plan);
    told.insert(facts);
  }
  EXPECT_EQ(seen.size(), changes.size());
  EXPECT_EQ(told.size(), changes.size());
}

TEST(FingerprintTest, IgnoresTheStoredFingerprint) {
  Plan plan = SamplePlan();
  plan.fingerprint = {1, 2};
  EXPECT_EQ(ComputeFingerprint(plan), SamplePlan().fingerprint);
}

// Pinned: ranks of different builds compare fingerprints. A change here must be a change of what plans hold.
TEST(FingerprintTest, IsTheSameForEveryCompilerAndMachine) {
  EXPECT_EQ(ComputeFingerprint(SamplePlan()).ToString(), "5a4a7e975bccee3b985b22c0e7e8759c");
}

TEST(FingerprintTest, PrintsThirtyTwoDigits) {
  EXPECT_EQ((Fingerprint{0xab, 0x1}).ToString(), "00000000000000ab0000000000000001");
}

TEST(FingerprintTest, IsFastForTenThousandUnits) {
  Plan plan = SamplePlan();
  ScheduledCommand command = plan.schedules[0].commands[3];
  command.uses.resize(5, command.uses[0]);
  plan.schedules[0].commands.assign(60'000, command);
  const auto start = std::chrono::steady_clock::now();
  const Fingerprint fingerprint = ComputeFingerprint(plan);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_NE(fingerprint, Fingerprint());
  // 0.1 s in a release build; ten times that leaves room for instrumented builds and a busy machine.
  EXPECT_LT(seconds.count(), 1.0);
}

TEST(HasherTest, StringsDoNotRunIntoEachOther) {
  const auto hash = [](const std::vector<std::string>& texts) {
    Hasher hasher;
    for (const std::string& text : texts) hasher.Add(absl::string_view(text));
    return hasher.Finish().ToString();
  };
  std::set<std::string> seen;
  const std::vector<std::vector<std::string>> lists = {
      {}, {""}, {"", ""}, {"ab", "c"}, {"a", "bc"}, {"abc"}, {"abc", ""}, {std::string("abc\0", 4)}, {"abcdefgh"}};
  for (const auto& list : lists) seen.insert(hash(list));
  EXPECT_EQ(seen.size(), lists.size());
}

// Each of the 128 bits of the result flips for about half of the one-bit changes of a word, wherever the word is. Of
// n = 3 * 64 independent fair flips a bit sees n / 2 with standard deviation sqrt(n) / 2 = 6.9; 6 deviations are 42.
TEST(HasherTest, EveryBitOfAWordReachesEveryBitOfTheResult) {
  const auto hash = [](int position, uint64_t flip) {
    Hasher hasher;
    for (int i = 0; i < 3; ++i) hasher.Add(static_cast<uint64_t>(i) ^ (i == position ? flip : 0));
    return hasher.Finish();
  };
  const Fingerprint plain = hash(0, 0);
  std::vector<int> flips(128);
  for (int position = 0; position < 3; ++position) {
    for (int bit = 0; bit < 64; ++bit) {
      const Fingerprint flipped = hash(position, uint64_t{1} << bit);
      for (int out = 0; out < 64; ++out) {
        flips[out] += static_cast<int>((plain.high ^ flipped.high) >> out & 1);
        flips[64 + out] += static_cast<int>((plain.low ^ flipped.low) >> out & 1);
      }
    }
  }
  EXPECT_THAT(flips, ::testing::Each(::testing::AllOf(::testing::Ge(96 - 42), ::testing::Le(96 + 42))));
}

// 2^18 sequences make 2^35 pairs: in 64 random bits some pair is equal with probability 2^-29.
TEST(HasherTest, HalvesOfCountersDoNotCollide) {
  std::set<uint64_t> high, low;
  constexpr int kSequences = 1 << 18;
  for (int i = 0; i < kSequences; ++i) {
    Hasher hasher;
    hasher.Add(static_cast<uint64_t>(i & 511));
    hasher.Add(static_cast<uint64_t>(i >> 9) << 32);
    const Fingerprint fingerprint = hasher.Finish();
    high.insert(fingerprint.high);
    low.insert(fingerprint.low);
  }
  EXPECT_EQ(high.size(), static_cast<size_t>(kSequences));
  EXPECT_EQ(low.size(), static_cast<size_t>(kSequences));
}

}  // namespace
}  // namespace reprise
