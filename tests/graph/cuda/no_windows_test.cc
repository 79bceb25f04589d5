// Transports where NCCL opens no memory to other devices, as without peer access between them.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

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

constexpr char kWhy[] = "the devices cannot reach each other's memory through NCCL";

class CudaNoWindowsTest : public ::testing::Test {
 protected:
  // Before NCCL is first used.
  static void SetUpTestSuite() { setenv("NCCL_WIN_ENABLE", "0", /*overwrite=*/1); }

  absl::StatusOr<std::unique_ptr<TrainSession>> NewSession(const std::shared_ptr<World>& world,
                                                           const PlanOptions& plan) const {
    const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
    REPRISE_ASSIGN_OR_RETURN(const std::shared_ptr<ShardedParameters> parameters,
                             ShardedParameters::Create(world, classifier.model));
    REPRISE_RETURN_IF_ERROR(parameters->Initialize(Normal(/*seed=*/1, /*stddev=*/0.3f)));
    return TrainSession::Create(parameters, classifier.model, classifier.compute, {.run = {.plan = plan}});
  }
};

TEST_F(CudaNoWindowsTest, AutoIsNcclAndSaysWhy) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/no-windows-", getpid(), ".json");
  std::shared_ptr<internal::Machine> world;
  REPRISE_ASSERT_OK_AND_ASSIGN(world, NewCudaWorld());
  // Only GEMMs are measured.
  const auto run = [&] { return NewSession(world, {}).status(); };
  REPRISE_ASSERT_OK_AND_ASSIGN(CostFile file, Measure(*world, {.run = run}));
  EXPECT_THAT(file.transports, ::testing::IsEmpty());
  EXPECT_THAT(file.gemms, ::testing::Not(::testing::IsEmpty()));
  const auto refused = AllOf(HasSubstr("no other can be used: "), HasSubstr(kWhy));
  EXPECT_THAT(world->auto_transports().reason, refused);
  // Nor is what a file has used.
  file.transports = EveryUnit(Transport::kCopyEngine);
  if (world->local_ranks()[0] == 0) {
    ASSERT_THAT(WriteCostFile(path, file), IsOk());
  }
  world.reset();
  REPRISE_ASSERT_OK_AND_ASSIGN(world, NewCudaWorld({.cost_file = path}));
  std::remove(path.c_str());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TrainSession> session, NewSession(world, {}));
  EXPECT_EQ(session->plan().options.transports, EveryUnit(Transport::kNccl));
  EXPECT_THAT(session->report().transport_reason, refused);
}

TEST_F(CudaNoWindowsTest, OthersAreRefusedByEveryRankAndTheWorldGoesOn) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  for (const Transport transport : {Transport::kSymmetric, Transport::kCopyEngine}) {
    EXPECT_THAT(NewSession(world, {.transports = EveryUnit(transport)}),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(absl::StrCat("the transport ", std::string(Name(transport)), " cannot")),
                               HasSubstr(kWhy), HasSubstr("plan with transport nccl or auto"))));
  }
  EXPECT_THAT(NewSession(world, {}), IsOk());
}

}  // namespace
}  // namespace reprise::testing
