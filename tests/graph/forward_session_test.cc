#include "reprise/graph/forward_session.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "reprise/graph/host_world.h"
#include "tests/graph/breakable_world.h"
#include "tests/graph/forwarding_world.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using testing::Batch;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::MakeBatch;
using testing::MakeNetwork;
using testing::Network;
using ::testing::Not;
using testing::ReadAll;
using testing::StatusIs;

constexpr int kRanks = 3;

std::shared_ptr<World> MakeWorld() { return *CreateHostWorld({.size = kRanks}); }

absl::StatusOr<std::shared_ptr<ShardedParameters>> MakeParameters(std::shared_ptr<World> world, const Model& model) {
  REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<ShardedParameters> parameters,
                           ShardedParameters::Create(std::move(world), model));
  REPRISE_RETURN_IF_ERROR(parameters->Initialize(Normal(/*seed=*/3, /*stddev=*/0.4f)));
  return parameters;
}

// The same parameters at two batch sizes.
std::vector<Network> TwoSizes(DType dtype = DType::kFloat32) {
  return {MakeNetwork({.dtype = dtype, .rows = 6}), MakeNetwork({.dtype = dtype, .rows = 2})};
}
std::vector<ForwardVariant> VariantsOf(const std::vector<Network>& networks) {
  std::vector<ForwardVariant> variants;
  for (const Network& network : networks) {
    variants.push_back({absl::StrCat("rows", network.rows), network.model, network.compute});
  }
  return variants;
}

// Replays batch number `number` and reads the logits of every rank.
absl::StatusOr<std::vector<std::vector<float>>> Evaluate(ForwardSession& session, const std::vector<Network>& networks,
                                                         int variant, int64_t number) {
  const Network& network = networks[variant];
  for (int rank = 0; rank < kRanks; ++rank) {
    const Batch batch = MakeBatch(network, number, 0, rank);
    REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, variant, network.features, batch.features));
    REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, variant, network.labels, batch.labels));
  }
  REPRISE_RETURN_IF_ERROR(session.Replay(variant));
  std::vector<std::vector<float>> logits;
  for (int rank = 0; rank < kRanks; ++rank) {
    REPRISE_ASSIGN_OR_RETURN(logits.emplace_back(), session.ReadOutput<float>(rank, variant, network.logits));
  }
  return logits;
}

// The same by a session of its own for each replay, which has nothing to remember.
absl::StatusOr<std::vector<std::vector<float>>> EvaluateAfresh(const std::shared_ptr<ShardedParameters>& parameters,
                                                               const std::vector<Network>& networks, int variant,
                                                               int64_t number) {
  REPRISE_ASSIGN_OR_RETURN(const auto session, ForwardSession::Create(parameters, VariantsOf(networks), {}));
  return Evaluate(*session, networks, variant, number);
}

absl::Status TrainOneStep(TrainSession& session, const Network& network, const World& world, int64_t step) {
  REPRISE_RETURN_IF_ERROR(
      testing::RunMicrobatches(session, network, world, step, {.learning_rate = 0.05f, .microbatches = 2}));
  return session.EndStep();
}

int64_t Gathers(const Schedule& schedule) {
  return std::count_if(schedule.commands.begin(), schedule.commands.end(), [](const ScheduledCommand& command) {
    return std::holds_alternative<AllGather>(command.command);
  });
}

TEST(ForwardSessionTest, GivesTheLogitsOfTraining) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Network network = MakeNetwork({.dtype = dtype});
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, MakeParameters(MakeWorld(), network.model));
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto train,
                                 TrainSession::Create(parameters, network.model, network.compute, {}));
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto forward,
                                 ForwardSession::Create(parameters, {{"only", network.model, network.compute}}, {}));
    ASSERT_THAT(testing::RunMicrobatches(*train, network, *parameters->world(), 0, {.learning_rate = 0}), IsOk());
    for (int rank = 0; rank < kRanks; ++rank) {
      const Batch batch = MakeBatch(network, 0, 0, rank);
      ASSERT_THAT(forward->CopyInput(rank, 0, network.labels, batch.labels), IsOk());
      if (dtype == DType::kFloat32) {
        ASSERT_THAT(forward->CopyInput(rank, 0, network.features, batch.features), IsOk());
      } else {
        const std::vector<BFloat16> features(batch.features.begin(), batch.features.end());
        ASSERT_THAT(forward->CopyInput(rank, 0, network.features, features), IsOk());
      }
    }
    ASSERT_THAT(forward->Replay(0), IsOk());
    for (int rank = 0; rank < kRanks; ++rank) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto want, train->ReadOutput<float>(rank, network.loss));
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto got, forward->ReadOutput<float>(rank, 0, network.loss));
      EXPECT_EQ(want, got);
      EXPECT_GT(got[0], 0);
    }
  }
}

TEST(ForwardSessionTest, GathersLessAfterTheFirstReplayAndGivesTheSame) {
  const std::vector<Network> networks = TwoSizes();
  auto world = std::make_shared<testing::BreakableWorld>(kRanks);
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, MakeParameters(world, networks[0].model));
  for (const int slots : {3, 4}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto session, ForwardSession::Create(parameters, VariantsOf(networks),
                                                                            {.plan = {.weight_slots = slots}}));
    const Plan& plan = **session->plan(0);
    EXPECT_EQ(Gathers(plan.schedules[plan.first]), 4);
    EXPECT_LT(Gathers(plan.schedules[plan.body]), 4);
    for (int64_t number = 0; number < 5; ++number) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto want, EvaluateAfresh(parameters, networks, 0, number));
      world->TakeReplayed();
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto got, Evaluate(*session, networks, 0, number));
      EXPECT_EQ(want, got) << "replay " << number;
      EXPECT_EQ(world->TakeReplayed(), std::vector<std::string>{number == 0 ? "first" : "body"});
    }
  }
}

TEST(ForwardSessionTest, VariantsMayAlternateInOneArena) {
  const std::vector<Network> networks = TwoSizes();
  auto world = std::make_shared<testing::BreakableWorld>(kRanks);
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, MakeParameters(world, networks[0].model));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto session,
                               ForwardSession::Create(parameters, VariantsOf(networks), {.plan = {.weight_slots = 4}}));
  int64_t number = 0;
  int last = -1;
  for (const int variant : {0, 1, 0, 0, 1, 1, 0, 1, 0}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto want, EvaluateAfresh(parameters, networks, variant, number));
    world->TakeReplayed();
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto got, Evaluate(*session, networks, variant, number));
    EXPECT_EQ(want, got) << "replay " << number;
    // What a variant left in the arena is there only if no other one followed.
    EXPECT_EQ(world->TakeReplayed(), std::vector<std::string>{variant == last ? "body" : "first"});
    last = variant;
    ++number;
  }
}

// Whose sessions have the numbers that it is told to give.
class NumberingWorld : public testing::ForwardingWorld {
 public:
  NumberingWorld() : ForwardingWorld(MakeWorld()) {}
  int64_t num_exchanges() const override { return number; }
  absl::Status NoteLaunch(uint64_t key, absl::string_view name) override {
    names_of_key[key].insert(std::string(name));
    keys_of_name[std::string(name)].insert(key);
    return ForwardingWorld::NoteLaunch(key, name);
  }

  int64_t number = 0;
  std::map<uint64_t, std::set<std::string>> names_of_key;
  std::map<std::string, std::set<uint64_t>> keys_of_name;
};

// Sessions of more and of fewer schedules.
TEST(ForwardSessionTest, EveryLaunchHasAKeyAndANameOfItsOwn) {
  const Network network = MakeNetwork();
  const auto world = std::make_shared<NumberingWorld>();
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, MakeParameters(world, network.model));
  size_t launches = 0;
  for (world->number = 1; world->number <= 12; ++world->number) {
    if (world->number % 2 == 0) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto train,
                                   TrainSession::Create(parameters, network.model, network.compute,
                                                        {.run = {.plan = {.reduce = Reduce::kOncePerStep}}}));
      for (int64_t step = 0; step < 2; ++step) ASSERT_THAT(TrainOneStep(*train, network, *world, step), IsOk());
      EXPECT_EQ(train->plan().schedules.size(), 4u);
      launches += 4;
      continue;
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const auto forward,
        ForwardSession::Create(parameters, {{"only", network.model, network.compute}}, {.plan = {.weight_slots = 4}}));
    for (int64_t number = 0; number < 3; ++number) ASSERT_THAT(Evaluate(*forward, {network}, 0, number), IsOk());
    EXPECT_EQ((*forward->plan(0))->schedules.size(), 2u);
    launches += 2;
  }
  EXPECT_EQ(world->names_of_key.size(), launches);
  for (const auto& [key, names] : world->names_of_key) EXPECT_EQ(names.size(), 1u) << ::testing::PrintToString(names);
  EXPECT_EQ(world->keys_of_name.size(), launches);
  for (const auto& [name, keys] : world->keys_of_name) EXPECT_EQ(keys.size(), 1u) << name;
}

TEST(ForwardSessionTest, SaysWhichSharedArenaIsTooSmallAndWhatHelps) {
  const std::vector<Network> networks = {MakeNetwork({.rows = 60}), MakeNetwork({.rows = 2})};
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, MakeParameters(MakeWorld(), networks[0].model));
  const auto share = [&](const Network& trained, int slots) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const auto train, TrainSession::Create(parameters, trained.model, trained.compute, {}));
    return ForwardSession::Create(parameters, VariantsOf(networks), {.plan = {.weight_slots = slots}}, train.get())
        .status();
  };
  const auto weights = HasSubstr("communicating arena has "), activations = HasSubstr("local arena has ");
  const auto fewer_slots = HasSubstr("; lower the variants' weight_slots, or raise the training session's; ");
  const auto smaller = HasSubstr("but variant \"rows60\" needs ");
  const auto by_itself = ::testing::EndsWith("; or leave share_arena null");
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  EXPECT_THAT(share(networks[0], 2), IsOk());
  EXPECT_THAT(share(networks[0], 4), StatusIs(kExhausted, AllOf(weights, Not(activations), fewer_slots, by_itself)));
  EXPECT_THAT(share(networks[1], 2), StatusIs(kExhausted, AllOf(activations, Not(weights), smaller, by_itself)));
  EXPECT_THAT(share(networks[1], 4), StatusIs(kExhausted, AllOf(activations, weights, fewer_slots, smaller)));
}

TEST(ForwardSessionTest, SeesEveryChangeOfTheParameters) {
  const std::vector<Network> networks = TwoSizes();
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, MakeParameters(MakeWorld(), networks[0].model));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto train,
                               TrainSession::Create(parameters, networks[0].model, networks[0].compute, {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto session,
                               ForwardSession::Create(parameters, VariantsOf(networks), {.plan = {.weight_slots = 4}}));
  std::vector<std::vector<std::vector<float>>> seen;
  const auto evaluate = [&](const char* after) {
    absl::StatusOr<std::vector<std::vector<float>>> want = EvaluateAfresh(parameters, networks, 0, 0);
    absl::StatusOr<std::vector<std::vector<float>>> got = Evaluate(*session, networks, 0, 0);
    ASSERT_THAT(want, IsOk());
    ASSERT_THAT(got, IsOk());
    EXPECT_EQ(*want, *got) << after;
    for (const auto& other : seen) EXPECT_NE(other, *got) << after;
    seen.push_back(*got);
  };
  evaluate("Initialize");
  ASSERT_THAT(TrainOneStep(*train, networks[0], *parameters->world(), 0), IsOk());
  evaluate("a step");
  ASSERT_THAT(parameters->Write("layer0.bias", std::vector<float>(7, 0.5f)), IsOk());
  evaluate("Write");
  ASSERT_THAT(parameters->Initialize(Normal(9, 0.3f)), IsOk());
  evaluate("Initialize again");
}

TEST(ForwardSessionTest, EvaluationInTheTrainingArenaLeavesTrainingAsItWas) {
  const std::vector<Network> networks = TwoSizes();
  std::vector<std::vector<std::vector<float>>> results;
  for (const bool evaluates : {false, true}) {
    auto world = std::make_shared<testing::BreakableWorld>(kRanks);
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, MakeParameters(world, networks[0].model));
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto train,
                                 TrainSession::Create(parameters, networks[0].model, networks[0].compute, {}));
    const int64_t before = world->allocated_bytes();
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto session,
                                 ForwardSession::Create(parameters, VariantsOf(networks), {}, train.get()));
    int64_t session_bytes = 0;
    for (int v = 0; v < 2; ++v) {
      session_bytes += (*session->plan(v))->memory.num_bytes[static_cast<int>(Storage::kSession)];
    }
    EXPECT_EQ(world->allocated_bytes() - before, session_bytes) << "no transient memory";
    for (int64_t step = 0; step < 4; ++step) {
      ASSERT_THAT(TrainOneStep(*train, networks[0], *world, step), IsOk());
      for (const int variant : {0, 0, 1}) {
        if (!evaluates) continue;
        REPRISE_ASSERT_OK_AND_ASSIGN(const auto want, EvaluateAfresh(parameters, networks, variant, step));
        REPRISE_ASSERT_OK_AND_ASSIGN(const auto got, Evaluate(*session, networks, variant, step));
        EXPECT_EQ(want, got) << "variant " << variant << " after step " << step;
      }
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(results.emplace_back(), ReadAll(*parameters));
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(ForwardSessionTest, ASharedArenaOutlivesTheTrainingSession) {
  const std::vector<Network> networks = TwoSizes();
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, MakeParameters(MakeWorld(), networks[0].model));
  REPRISE_ASSERT_OK_AND_ASSIGN(auto train,
                               TrainSession::Create(parameters, networks[0].model, networks[0].compute, {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto session,
                               ForwardSession::Create(parameters, VariantsOf(networks), {}, train.get()));
  ASSERT_THAT(train->BeginStep({.learning_rate = 0}), IsOk());
  train.reset();
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto want, EvaluateAfresh(parameters, networks, 1, 0));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto got, Evaluate(*session, networks, 1, 0));
  EXPECT_EQ(want, got);
  EXPECT_THAT(session->Synchronize(), IsOk());
}

// ---- state ----

// total += x + 1; sum = total.
struct Counter {
  Model model;
  ComputeTable compute;
  TensorId x, total, sum;
};
Counter MakeCounter(bool external) {
  Counter counter;
  ModelBuilder builder;
  const TensorId x = counter.x = builder.AddInput({.name = "x", .shape = {4}, .dtype = DType::kFloat32});
  const TensorId total = counter.total =
      builder.AddState({.name = "total", .shape = {4}, .dtype = DType::kFloat32, .external = external});
  const TensorId sum = counter.sum = builder.AddOutput({.name = "sum", .shape = {4}, .dtype = DType::kFloat32});
  const CallId call = builder.AddCall({.name = "count", .inputs = {x}, .outputs = {sum}, .state = {total}});
  counter.compute[call].forward = [=](ComputeContext& c) {
    const auto added = c.input<float>(x);
    const auto totals = c.state<float>(total);
    const auto sums = c.output<float>(sum);
    c.stream().host_queue().Enqueue([=] {
      for (int i = 0; i < 4; ++i) sums.data[i] = totals.data[i] += added.data[i] + 1;
    });
    return absl::OkStatus();
  };
  counter.model = *builder.Build();
  return counter;
}

absl::StatusOr<std::vector<float>> Count(ForwardSession& session, const Counter& counter, float x) {
  for (int rank = 0; rank < kRanks; ++rank) {
    REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, 0, counter.x, std::vector<float>(4, x + rank)));
  }
  REPRISE_RETURN_IF_ERROR(session.Replay(0));
  return session.ReadOutput<float>(/*rank=*/1, 0, counter.sum);
}

TEST(ForwardSessionStateTest, SurvivesReplaysUntilCleared) {
  const Counter counter = MakeCounter(/*external=*/false);
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(), counter.model));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto session,
                               ForwardSession::Create(parameters, {{"count", counter.model, counter.compute}}, {}));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(*session->ReadOutput<float>(1, 0, counter.total), std::vector<float>(4, 0.0f)) << "warm-up left nothing";
    float want = 0;
    for (const float x : {1.0f, 5.0f, 10.0f}) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto sum, Count(*session, counter, x));
      want += x + 2;
      EXPECT_EQ(sum, std::vector<float>(4, want));
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(void* const address, session->Address(1, 0, counter.total));
    EXPECT_EQ(static_cast<float*>(address)[3], want);
    ASSERT_THAT(session->ClearState(0), IsOk());
  }
}

TEST(ForwardSessionStateTest, WarmUpRestoresExternalState) {
  const Counter counter = MakeCounter(/*external=*/true);
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(MakeWorld(), counter.model));
  alignas(16) float totals[kRanks][4];
  RunOptions run = {.check_writes = true};
  for (int rank = 0; rank < kRanks; ++rank) {
    std::fill_n(totals[rank], 4, 100.0f * rank);
    run.external.push_back({rank, counter.total, totals[rank], sizeof(totals[rank])});
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto session,
                               ForwardSession::Create(parameters, {{"count", counter.model, counter.compute}}, run));
  EXPECT_THAT(totals[2], ::testing::Each(200.0f));
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto sum, Count(*session, counter, 2));
  EXPECT_EQ(sum, std::vector<float>(4, 104.0f));
  EXPECT_THAT(totals[1], ::testing::Each(104.0f)) << "used in place";
}

}  // namespace
}  // namespace reprise
