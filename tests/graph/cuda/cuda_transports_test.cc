// What sessions without PlanOptions::transports use with a cost file.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "reprise/graph/measure.h"
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
  ~CudaTransportsTest() override { std::remove(path_.c_str()); }
  // With this file, where rank 0 writes it.
  absl::StatusOr<std::shared_ptr<internal::Machine>> NewWorld(const CostFile& file) const {
    REPRISE_ASSIGN_OR_RETURN(const LaunchEnvironment launch, DetectLaunch());
    if (launch.rank == 0) REPRISE_RETURN_IF_ERROR(WriteCostFile(path_, file));
    return NewCudaWorld({.cost_file = path_});
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
  REPRISE_RETURN_IF_ERROR(session->CopyInput(rank, chain.x, x));
  REPRISE_RETURN_IF_ERROR(session->CopyInput(rank, chain.labels, std::vector<int32_t>(kChainRows, rank)));
  REPRISE_RETURN_IF_ERROR(session->RunMicrobatch());
  Session result = {.options = session->plan().options, .reason = session->report().transport_reason};
  for (const Parameter& parameter : chain.model.parameters()) {
    REPRISE_ASSIGN_OR_RETURN(result.gradients.emplace_back(), session->ReadGradient(parameter.spec.name));
  }
  return result;
}

TEST_F(CudaTransportsTest, AreMeasuredAndTheSameOnEveryRank) {
  REPRISE_ASSERT_OK_AND_ASSIGN(std::shared_ptr<internal::Machine> world, NewCudaWorld());
  const int64_t before = world->memory().communication;
  std::vector<std::string> lines;
  const auto progress = [&](absl::string_view line) { lines.emplace_back(line); };
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile measured, Measure(*world, {.progress = progress}));
  EXPECT_FALSE(measured.transports.empty());
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "kernels of 0 GEMMs");
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_THAT(lines[i], AllOf(HasSubstr(absl::StrCat("units of ", int64_t{131072} << (2 * (i - 1)), " bytes")),
                                HasSubstr(" nccl "), HasSubstr(" symmetric "), HasSubstr(" copy_engine ")));
  }
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, world->ExchangeBytes("files", {ToJson(measured)}));
  for (const std::string& other : all) EXPECT_EQ(other, ToJson(measured));
  // The world uses what it measured.
  EXPECT_EQ(world->auto_transports().choices, measured.transports);
  EXPECT_EQ(world->auto_transports().reason, "measured");
  EXPECT_EQ(world->memory().requested, 0);
  std::cout << "device memory that NCCL takes before " << before << ", after measuring "
            << world->memory().communication << "\n";
  world.reset();
  REPRISE_ASSERT_OK_AND_ASSIGN(world, NewWorld(measured));
  EXPECT_EQ(world->auto_transports().reason, absl::StrCat("of cost file ", path_));
  EXPECT_EQ(world->auto_transports().choices, measured.transports);
}

TEST_F(CudaTransportsTest, OfTheFileAreWhatSessionsUse) {
  CostFile file;
  {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewCudaWorld());
    REPRISE_ASSERT_OK_AND_ASSIGN(file, Measure(*world));
  }
  for (const char* text : {"copy_engine", "symmetric", "symmetric,5000:copy_engine", "nccl,7000:copy_engine", "nccl"}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(file.transports, TransportChoicesFromText(text));
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewWorld(file));
    REPRISE_ASSERT_OK_AND_ASSIGN(const Session by_file, RunSession(world, {}));
    EXPECT_THAT(by_file.reason, HasSubstr("of cost file ")) << text;
    REPRISE_ASSERT_OK_AND_ASSIGN(const Session asked, RunSession(world, {.transports = file.transports}));
    EXPECT_EQ(by_file.options, asked.options) << text;
    EXPECT_EQ(by_file.options.transports.size(), file.transports.size()) << text;
    EXPECT_EQ(by_file.gradients, asked.gradients) << text;
    EXPECT_EQ(asked.reason, "") << text;
    // What is asked for goes before the file.
    REPRISE_ASSERT_OK_AND_ASSIGN(const Session plain, RunSession(world, {.transports = EveryUnit(Transport::kNccl)}));
    EXPECT_EQ(plain.options.transports, EveryUnit(Transport::kNccl)) << text;
    EXPECT_EQ(plain.reason, "") << text;
    EXPECT_EQ(by_file.gradients, plain.gradients) << text << ": the same bits on every transport";
  }
  file.job["ranks"] = "3";
  file.transports = EveryUnit(Transport::kCopyEngine);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewWorld(file));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Session session, RunSession(world, {}));
  EXPECT_EQ(session.options.transports, EveryUnit(Transport::kNccl));
  EXPECT_THAT(session.reason, AllOf(HasSubstr("the default: "), HasSubstr("\"ranks\" is \"3\" there but \"2\" here")));
}

TEST(CudaAutoTransportsTest, AreTheDefaultWithoutACostFile) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewCudaWorld());
  REPRISE_ASSERT_OK_AND_ASSIGN(const Session session, RunSession(world, {}));
  EXPECT_EQ(session.options.transports, EveryUnit(Transport::kNccl));
  EXPECT_EQ(session.reason, "the default: no CudaWorldOptions::cost_file");
}

}  // namespace
}  // namespace reprise::testing
