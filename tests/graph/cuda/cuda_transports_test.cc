// What sessions without PlanOptions::transports use with a tuning file.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/graph/train_session.h"
#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Each rank has a path of its own, and rank 0's is the file.
class CudaTransportsTest : public ::testing::Test {
 protected:
  CudaTransportsTest() { std::remove(path_.c_str()); }
  ~CudaTransportsTest() override { std::remove(path_.c_str()); }
  absl::StatusOr<std::shared_ptr<internal::Machine>> NewWorld() const { return NewCudaWorld({.tuning_file = path_}); }
  std::string Contents() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // Rank 0 has the entry that it measured, with other transports.
  void Replace(const nlohmann::json& transports) const {
    if (Contents().empty()) return;
    nlohmann::json json = nlohmann::json::parse(Contents());
    json.begin().value()["transports"] = transports;
    std::ofstream(path_) << json.dump();
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/transports-", getpid(), ".json");
};

struct Session {
  PlanOptions options = {};
  std::string reason = {};
  std::vector<std::vector<float>> gradients = {};  // by parameter
};

// Of units of 8192, 4096, 6144 and 3072 bytes.
absl::StatusOr<Session> RunSession(const std::shared_ptr<World>& world, const PlanOptions& plan) {
  const LinearChain chain = MakeLinearChain({32, 64, 16, 96, 8});
  REPRISE_ASSIGN_OR_RETURN(const std::shared_ptr<ShardedParameters> parameters,
                           ShardedParameters::Create(world, chain.model));
  REPRISE_RETURN_IF_ERROR(parameters->Initialize(Normal(/*seed=*/1, /*stddev=*/0.3f)));
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<TrainSession> session,
                           TrainSession::Create(parameters, chain.model, chain.compute, {.run = {.plan = plan}}));
  REPRISE_RETURN_IF_ERROR(session->BeginStep({.learning_rate = 0.1f}));
  const int rank = world->local_ranks()[0];
  std::vector<float> x;
  for (int64_t i = 0; i < kChainRows * 32; ++i) x.push_back(static_cast<float>((i * 5 + rank) % 17 - 8) / 7);
  REPRISE_RETURN_IF_ERROR(session->CopyInput<float>(rank, chain.x, x));
  REPRISE_RETURN_IF_ERROR(session->CopyInput<int32_t>(rank, chain.labels, std::vector<int32_t>(kChainRows, rank)));
  REPRISE_RETURN_IF_ERROR(session->RunMicrobatch());
  Session result = {.options = session->plan().options, .reason = session->capture().transport_reason};
  for (const Parameter& parameter : chain.model.parameters()) {
    REPRISE_ASSIGN_OR_RETURN(result.gradients.emplace_back(), session->ReadGradient(parameter.spec.name));
  }
  return result;
}

TEST_F(CudaTransportsTest, AreMeasuredOnceAndTheSameOnEveryRank) {
  std::string measured;
  int64_t measuring = 0;
  {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewWorld());
    const internal::AutoTransports transports = world->auto_transports();
    EXPECT_EQ(transports.reason, absl::StrCat("measured, and kept in ", path_));
    measured = ToText(transports.choices);
    EXPECT_NE(measured, "");
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, world->ExchangeBytes("rates", {measured}));
    for (const std::string& other : all) EXPECT_EQ(other, measured);
    EXPECT_EQ(Contents().empty(), world->local_ranks()[0] != 0);
    if (!Contents().empty()) {
      const nlohmann::json entry = nlohmann::json::parse(Contents()).begin().value();
      EXPECT_EQ(entry["transports"], measured);
      EXPECT_EQ(entry["milliseconds"].size(), 6u);
      for (const auto& [bytes, of_size] : entry["milliseconds"].items()) {
        for (const char* transport : {"nccl", "symmetric", "copy_engine"}) EXPECT_GT(of_size[transport], 0) << bytes;
      }
    }
    EXPECT_EQ(world->memory().requested, 0);
    measuring = world->memory().communication;
  }
  const std::string contents = Contents();
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewWorld());
  EXPECT_EQ(world->auto_transports().reason, absl::StrCat("kept in ", path_));
  EXPECT_EQ(ToText(world->auto_transports().choices), measured);
  EXPECT_EQ(Contents(), contents);
  // The trial leaves the code of its kernels; its communicators took 1.2 GB.
  std::cout << "device memory of a world that measured " << measuring << ", of one that did not "
            << world->memory().communication << "\n";
  EXPECT_LT(measuring - world->memory().communication, int64_t{600} << 20);
}

TEST_F(CudaTransportsTest, OfTheFileAreWhatSessionsUse) {
  ASSERT_THAT(NewWorld(), IsOk());
  for (const char* text : {"copy_engine", "symmetric", "symmetric,5000:copy_engine", "nccl,7000:copy_engine", "nccl"}) {
    Replace(text);
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewWorld());
    REPRISE_ASSERT_OK_AND_ASSIGN(const Session by_file, RunSession(world, {}));
    EXPECT_THAT(by_file.reason, HasSubstr("kept in ")) << text;
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<TransportChoice> choices, TransportChoicesFromText(text));
    REPRISE_ASSERT_OK_AND_ASSIGN(const Session asked, RunSession(world, {.transports = choices}));
    EXPECT_EQ(by_file.options, asked.options) << text;
    EXPECT_EQ(by_file.options.transports.size(), choices.size()) << text;
    EXPECT_EQ(by_file.gradients, asked.gradients) << text;
    EXPECT_EQ(asked.reason, "") << text;
    // What is asked for goes before the file.
    REPRISE_ASSERT_OK_AND_ASSIGN(const Session plain, RunSession(world, {.transports = EveryUnit(Transport::kNccl)}));
    EXPECT_EQ(plain.options.transports, EveryUnit(Transport::kNccl)) << text;
    EXPECT_EQ(plain.reason, "") << text;
    EXPECT_EQ(by_file.gradients, plain.gradients) << text << ": the same bits on every transport";
  }
}

TEST_F(CudaTransportsTest, OfTheFileThatAreNoneAreRefusedByTheirPlace) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  ASSERT_THAT(NewWorld(), IsOk());
  const std::pair<nlohmann::json, const char*> cases[] = {{3, "\"transports\": not a text"},
                                                          {"auto", "not one or more transports"},
                                                          {"fast", "\"fast\" in \"fast\" is no transport"}};
  for (const auto& [value, why] : cases) {
    Replace(value);
    EXPECT_THAT(NewWorld(),
                StatusIs(launch.rank == 0 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("tuning file"), HasSubstr(why), HasSubstr("remove this entry"))));
  }
}

TEST(CudaAutoTransportsTest, AreTheDefaultWithoutATuningFile) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewCudaWorld());
  REPRISE_ASSERT_OK_AND_ASSIGN(const Session session, RunSession(world, {}));
  EXPECT_EQ(session.options.transports, EveryUnit(Transport::kNccl));
  EXPECT_EQ(session.reason, "no CudaWorldOptions::tuning_file");
}

}  // namespace
}  // namespace reprise::testing
