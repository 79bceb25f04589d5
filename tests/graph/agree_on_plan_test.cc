#include "graph/agree_on_plan.h"

#include <chrono>
#include <functional>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/model/hasher.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "reprise/graph/forward_session.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/meeting_ranks.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using internal::Fact;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::Meeting;
using ::testing::Not;
using testing::OnRanks;
using testing::StatusIs;

// ---- sessions ----

// One rank's session on two layers, as it would be on all ranks.
struct Job {
  std::vector<std::string> names = {"l0", "l1"};
  ParameterSpec weight = {"l1.w", {8, 8}, DType::kFloat32};  // of the second layer
  TensorSpec hidden = {"l0.y", {4, 8}, DType::kFloat32};
  int64_t scratch_bytes = 0;  // of the second layer
  bool gradient = false;      // of the input is kept
  DType master = DType::kFloat32;
  TrainOptions options = {};
};

struct Built {
  Model model;
  ComputeTable compute;
};

absl::StatusOr<Built> Build(const Job& job) {
  ModelBuilder builder;
  Built built;
  const ComputeTable::mapped_type nothing = {[](ComputeContext&) { return absl::OkStatus(); },
                                             [](ComputeContext&) { return absl::OkStatus(); }};
  const TensorId x = builder.AddInput({"x", {4, 8}, DType::kFloat32});
  TensorId y = x;
  for (size_t l = 0; l < job.names.size(); ++l) {
    const std::string& name = job.names[l];
    const UnitId unit = builder.AddUnit(name);
    builder.AddParameter(unit, l == 1 ? job.weight : ParameterSpec{name + ".w", {8, 8}, DType::kFloat32});
    CallSpec call = {.name = name, .units = {unit}, .inputs = {y}};
    y = builder.AddActivation(l == 0 ? job.hidden : TensorSpec{name + ".y", {4, 8}, DType::kFloat32});
    call.outputs = {y};
    if (l == 1) call.scratch_bytes = job.scratch_bytes;
    built.compute[builder.AddCall(call)] = nothing;
  }
  const TensorId loss = builder.AddOutput({"loss", {}, DType::kFloat32});
  built.compute[builder.AddCall({.name = "sum", .inputs = {y}, .outputs = {loss}})] = nothing;
  builder.SetLoss(loss);
  if (job.gradient) builder.KeepGradient(x);
  REPRISE_ASSIGN_OR_RETURN(built.model, builder.Build());
  return built;
}

absl::Status Create(const std::shared_ptr<World>& world, const Job& job) {
  REPRISE_ASSIGN_OR_RETURN(const Built built, Build(job));
  REPRISE_ASSIGN_OR_RETURN(auto parameters, ShardedParameters::Create(world, built.model, job.master));
  return TrainSession::Create(parameters, built.model, built.compute, job.options).status();
}

struct Disagreement {
  const char* words;  // of the message, for ranks 0, 1 and 2, of which 1 is changed
  std::function<void(Job&)> change;
};

TEST(AgreeOnPlanTest, SessionsNameTheFirstDifference) {
  const std::vector<Disagreement> disagreements = {
      {"option prefetch_depth is 1 on ranks 0, 2 but 2 on rank 1",
       [](Job& job) { job.options.run.plan.prefetch_depth = 2; }},
      {"option weight_slots is 2 on ranks 0, 2 but 3 on rank 1",
       [](Job& job) { job.options.run.plan.weight_slots = 3; }},
      {"option residency is keep on ranks 0, 2 but off on rank 1",
       [](Job& job) { job.options.run.plan.residency = Residency::kOff; }},
      {"option transports is nccl on ranks 0, 2 but symmetric on rank 1",
       [](Job& job) { job.options.run.plan.transports = EveryUnit(Transport::kSymmetric); }},
      {"option reduce_dtype is bf16 on ranks 0, 2 but f32 on rank 1",
       [](Job& job) { job.options.run.plan.reduce_dtype = DType::kFloat32; }},
      {"option master_dtype is f32 on ranks 0, 2 but bf16 on rank 1", [](Job& job) { job.master = DType::kBFloat16; }},
      {"parameter 1 \"l1.w\" is f32[8,8] of l1 on ranks 0, 2 but f32[8,4] of l1 on rank 1",
       [](Job& job) {
         job.weight.shape = {8, 4};
       }},
      {"parameter 1 \"l1.w\" is f32[8,8] of l1 on ranks 0, 2 but f32[8,8] of l1 frozen on rank 1",
       [](Job& job) { job.weight.trainable = false; }},
      {"unit 1 \"l1\" is with parameters: l1.w on ranks 0, 2 but with parameters: l1.v on rank 1",
       [](Job& job) { job.weight.name = "l1.v"; }},
      {"unit 1 is \"l1\" with parameters: l1.w on ranks 0, 2 but \"m1\" with parameters: l1.w on rank 1",
       [](Job& job) { job.names[1] = "m1"; }},
      {"unit 2 \"l2\" is missing on ranks 0, 2 but with parameters: l2.w on rank 1",
       [](Job& job) { job.names.push_back("l2"); }},
      {"unit 1 \"l1\" is with parameters: l1.w on ranks 0, 2 but missing on rank 1",
       [](Job& job) { job.names.pop_back(); }},
      {"tensor 1 \"l0.y\" is activation f32[4,8] on ranks 0, 2 but activation f32[8,4] on rank 1",
       [](Job& job) {
         job.hidden.shape = {8, 4};
       }},
      {"tensor 0 \"x\" is input f32[4,8] on ranks 0, 2 but input f32[4,8] keep_gradient on rank 1",
       [](Job& job) { job.gradient = true; }},
      {"call 1 \"l1\" is with units: l1; inputs: l0.y; outputs: l1.y on ranks 0, 2 but with units: l1; inputs: l0.y; "
       "outputs: l1.y; scratch_bytes: 64 on rank 1",
       [](Job& job) { job.scratch_bytes = 64; }},
      {"the optimizer is AdamW with beta1 0.9, beta2 0.999, epsilon 1e-08, weight_decay 0 on ranks 0, 2 but AdamW with "
       "beta1 0.9, beta2 0.999, epsilon 1e-08, weight_decay 0.1 on rank 1",
       [](Job& job) { job.options.optimizer = AdamW{.weight_decay = 0.1f}; }},
      {"but Sgd with momentum 0.5, weight_decay 0 on rank 1",
       [](Job& job) { job.options.optimizer = Sgd{.momentum = 0.5f}; }},
      {"TrainOptions::clip_norm is unset on ranks 0, 2 but 1.5 on rank 1",
       [](Job& job) { job.options.clip_norm = 1.5f; }},
      {"TrainOptions::loss_scale is 1 on ranks 0, 2 but 1024 on rank 1",
       [](Job& job) { job.options.loss_scale = 1024; }},
      {"TrainOptions::seed is 0 on ranks 0, 2 but 7 on rank 1", [](Job& job) { job.options.seed = 7; }},
      {"RunOptions::execution is graph on ranks 0, 2 but eager on rank 1",
       [](Job& job) { job.options.run.execution = Execution::kEager; }},
      {"RunOptions::check_writes is ", [](Job& job) { job.options.run.check_writes = !job.options.run.check_writes; }},
  };
  for (const Disagreement& disagreement : disagreements) {
    Meeting meeting(3);
    const std::vector<absl::Status> results =
        OnRanks(meeting, 3, [&](int rank, const std::shared_ptr<internal::Machine>& world) {
          Job job;
          if (rank == 1) disagreement.change(job);
          return Create(world, job);
        });
    for (const absl::Status& result : results) EXPECT_EQ(result, results[0]);
    EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                     AllOf(HasSubstr("planning: ranks disagree: "), HasSubstr(disagreement.words),
                                           HasSubstr("; give every rank the same"), Not(HasSubstr("fingerprint")))));
  }
}

TEST(AgreeOnPlanTest, LongTextsAreCutToTheFirstDifference) {
  const auto agree = [](const std::string& a, const std::string& b) {
    Meeting two(2);
    return OnRanks(two, 2, [&](int rank, const std::shared_ptr<internal::Machine>& world) {
      return internal::AgreeOnFacts(*world, "testing", absl::OkStatus(), {0, static_cast<uint64_t>(rank)}, [&] {
        return std::vector<Fact>{{0, "text", "", rank == 0 ? a : b}};
      });
    })[0];
  };
  const std::string same(1000, 'x');
  EXPECT_THAT(agree(same + "A" + same, same + "B" + same),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("text is ...", std::string(60, 'x'), "A", std::string(139, 'x'),
                                              "... on rank 0 but ...", std::string(60, 'x'), "B"))));
  EXPECT_THAT(agree(same, same + "B"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("text is ...", std::string(60, 'x'), " on rank 0 but ...",
                                              std::string(60, 'x'), "B on rank 1"))));
  // Characters of several bytes stay whole.
  std::string umlauts;
  for (int i = 0; i < 500; ++i) umlauts += "\u00e4";
  const std::string message(agree("A" + umlauts, "AB" + umlauts).message());
  EXPECT_EQ(absl::StrReplaceAll(message, {{"\u00e4", ""}}).find_first_of("\xc3\xa4"), std::string::npos) << message;
}

TEST(AgreeOnPlanTest, VariantsAndFailuresAreNamed) {
  const auto create = [](const std::function<void(int, std::vector<ForwardVariant>&)>& change) {
    Meeting meeting(2);
    return OnRanks(meeting, 2, [&](int rank, const std::shared_ptr<internal::Machine>& world) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(const Built built, Build({}));
      REPRISE_ASSIGN_OR_RETURN(auto parameters, ShardedParameters::Create(world, built.model));
      std::vector<ForwardVariant> variants = {{"one", built.model, built.compute}, {"two", built.model, built.compute}};
      change(rank, variants);
      return ForwardSession::Create(parameters, variants, {}).status();
    });
  };
  std::vector<absl::Status> results = create([](int rank, std::vector<ForwardVariant>& variants) {
    Job job;
    job.scratch_bytes = 128;
    if (rank == 1) variants[1].model = Build(job)->model;
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("planning of variant \"two\": ranks disagree: call 1 \"l1\" is "),
                                       HasSubstr("scratch_bytes: 128 on rank 1"))));
  }
  // A rank that fails where the others do not votes on no variant, and its error reaches them.
  results = create([](int rank, std::vector<ForwardVariant>& variants) {
    if (rank == 1) variants[1].compute.clear();
  });
  EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no forward function")));
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("planning failed on rank 1 of 2: INVALID_ARGUMENT"),
                                         HasSubstr("has no forward function"))));
  results = create([](int rank, std::vector<ForwardVariant>& variants) {
    if (rank == 0) variants.clear();
  });
  EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("planning failed on rank 0 of 2: INVALID_ARGUMENT")));
}

TEST(AgreeOnPlanTest, ProfilesOfDifferentPlansAreNamed) {
  Meeting meeting(2);
  const std::vector<absl::Status> results =
      OnRanks(meeting, 2, [&](int rank, const std::shared_ptr<internal::Machine>& world) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const Built built, Build({}));
        PlanOptions options;
        if (rank == 1) options.gradient_slots = 1;
        REPRISE_ASSIGN_OR_RETURN(const Plan plan, PlanTraining(built.model, 2, options));
        return internal::AgreeOnPlan(*world, "starting a profile", absl::OkStatus(), plan);
      });
  EXPECT_THAT(
      results[0],
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("starting a profile: ranks disagree: option gradient_slots is 2 on rank 0 but 1 on rank 1")));
}

// ---- any facts ----

Fingerprint Of(const std::vector<Fact>& facts) {
  internal::Hasher hasher;
  for (const Fact& fact : facts) hasher.Add(absl::StrCat(fact.section, fact.subject, fact.name, fact.value));
  return hasher.Finish();
}

// A list of several sections, as FactsOf would give.
std::vector<Fact> RandomFacts(std::mt19937_64& random, size_t size) {
  std::vector<Fact> facts;
  int64_t section = 0;
  for (size_t i = 0, place = 0; i < size; ++i, ++place) {
    if (random() % 100 == 0) ++section, place = 0;
    facts.push_back({section, absl::StrCat("item ", place, " of section ", section), "", absl::StrCat(random() % 10)});
  }
  return facts;
}

TEST(AgreeOnPlanTest, AnyDifferenceOfAnyListsIsFound) {
  for (const size_t size : {0, 1, 255, 256, 257, 511, 512, 513, 1000, 70'000}) {
    for (uint64_t seed = 0; seed < (size > 1000 ? 3 : 12); ++seed) {
      std::mt19937_64 random(seed * 1000 + size);
      const std::vector<Fact> facts = RandomFacts(random, size);
      // Rank 0 has these facts, and rank 1 others from one place on.
      std::vector<Fact> changed = facts;
      const size_t place = size == 0 ? 0 : random() % size;
      std::string words;
      if (size == 0 || seed % 3 == 0) {
        changed.push_back({1 << 20, "the last", "", "new"});
        words = "the last is missing on rank 0 but new on rank 1";
      } else if (seed % 3 == 1) {
        changed.resize(place);
        words = absl::StrCat(facts[place].subject, " is ", facts[place].value, " on rank 0 but missing on rank 1");
      } else {
        for (size_t i = place; i < size; i += 1 + random() % 300) changed[i].value += "!";
        words = absl::StrCat(facts[place].subject, " is ", facts[place].value, " on rank 0 but ", facts[place].value,
                             "! on rank 1");
      }
      Meeting meeting(2);
      const std::vector<absl::Status> results =
          OnRanks(meeting, 2, [&](int rank, const std::shared_ptr<internal::Machine>& world) {
            const std::vector<Fact>& mine = rank == 0 ? facts : changed;
            return internal::AgreeOnFacts(*world, "testing", absl::OkStatus(), Of(mine), [&] { return mine; });
          });
      EXPECT_EQ(results[0], results[1]);
      EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(words))) << size << " " << seed;
    }
  }
}

TEST(AgreeOnPlanTest, EqualFactsOfDifferentFingerprintsAreToldByTheFingerprints) {
  Meeting meeting(2);
  const std::vector<absl::Status> results =
      OnRanks(meeting, 2, [&](int rank, const std::shared_ptr<internal::Machine>& world) {
        return internal::AgreeOnFacts(*world, "testing", absl::OkStatus(), {0, static_cast<uint64_t>(rank)}, [] {
          return std::vector<Fact>{{0, "text", "", "same"}};
        });
      });
  EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("fingerprint 00000000000000000000000000000000 on rank 0 but "
                                             "00000000000000000000000000000001 on rank 1")));
}

TEST(AgreeOnPlanTest, RanksThatAgreeExchangeOneFingerprintMore) {
  Meeting meeting(2);
  for (const absl::Status& result : OnRanks(meeting, 2, [&](int, const std::shared_ptr<internal::Machine>& world) {
         return internal::AgreeOnFacts(*world, "testing", absl::OkStatus(), {1, 2}, []() -> std::vector<Fact> {
           ADD_FAILURE() << "facts are told only of different fingerprints";
           return {};
         });
       })) {
    EXPECT_THAT(result, IsOk());
  }
  EXPECT_EQ(meeting.exchanges(), 2);
}

// 10,000 units whose last one differs: each rank sends little, and it takes a moment.
TEST(AgreeOnPlanTest, LargePlansSendLittle) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, StackModel(10'000, {4, 4}, DType::kBFloat16, 4));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan0, PlanTraining(model, 2, {}));
  Plan plan1 = plan0;
  std::vector<ScheduledCommand>& commands = plan1.schedules[plan1.body].commands;
  const size_t last = commands.size() - 2;
  commands[last].lane = Lane::kCopy;
  plan1.fingerprint = ComputeFingerprint(plan1);
  Meeting meeting(2);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<absl::Status> results =
      OnRanks(meeting, 2, [&](int rank, const std::shared_ptr<internal::Machine>& world) {
        return internal::AgreeOnPlan(*world, "testing", absl::OkStatus(), rank == 0 ? plan0 : plan1);
      });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr(absl::StrCat("command ", last, " of schedule \"")),
                                         HasSubstr(" on lane copy"))));
  const size_t facts = internal::FactsOf(plan0).size();
  // Hashes of 8 bytes for each block of 256 facts and each fact of one, the fact itself, and the votes.
  EXPECT_LE(meeting.sent(), facts / 256 * 8 + 8 + 256 * 8 + 1000);
  std::cout << facts << " facts, " << meeting.sent() << " bytes sent by a rank, " << seconds.count() << " s\n";
}

}  // namespace
}  // namespace reprise
