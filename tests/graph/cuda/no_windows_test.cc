// Transports where NCCL opens no memory to other devices, as without peer access between them.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
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

TEST_F(CudaNoWindowsTest, AutoIsTheDefaultAndSaysWhy) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/no-windows-", getpid(), ".json");
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld({.tuning_file = path}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TrainSession> session, NewSession(world, {}));
  EXPECT_EQ(session->plan().options.transport, Transport::kDefault);
  EXPECT_THAT(session->capture().transport_reason, AllOf(HasSubstr("no other can be used: "), HasSubstr(kWhy)));
  // The session's products are kept there, but no transports.
  std::ifstream file(path);
  const std::string contents((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(contents.empty(), world->local_ranks()[0] != 0);
  EXPECT_THAT(contents, ::testing::Not(HasSubstr("transports")));
  std::remove(path.c_str());
}

TEST_F(CudaNoWindowsTest, OthersAreRefusedByEveryRankAndTheWorldGoesOn) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  for (const Transport transport : {Transport::kSymmetric, Transport::kCopyEngine}) {
    EXPECT_THAT(NewSession(world, {.transport = transport}),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(absl::StrCat("the transport ", std::string(Name(transport)), " cannot")),
                               HasSubstr(kWhy), HasSubstr("plan with transport nccl or auto"))));
  }
  EXPECT_THAT(NewSession(world, {}), IsOk());
}

}  // namespace
}  // namespace reprise::testing
