// Memory that is open to other ranks' devices: the same on every rank before more is opened, whatever was freed when.
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/cuda/handles.h"
#include "reprise/graph/train_session.h"
#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A session on parameters of its own: both have windows.
struct Sharded {
  std::shared_ptr<ShardedParameters> parameters;
  std::unique_ptr<TrainSession> session;
};

class CudaWindowsTest : public ::testing::TestWithParam<UnitTransports> {
 protected:
  void Open(CudaWorldOptions options = {}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(world_, NewCudaWorld(options));
    ASSERT_EQ(world_->size(), 2);
  }
  int rank() const { return world_->local_ranks()[0]; }
  absl::StatusOr<Sharded> New() const {
    const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
    Sharded sharded;
    REPRISE_ASSIGN_OR_RETURN(sharded.parameters, ShardedParameters::Create(world_, classifier.model));
    REPRISE_RETURN_IF_ERROR(sharded.parameters->Initialize(Normal(/*seed=*/1, /*stddev=*/0.3f)));
    TrainOptions options;
    options.run.plan.transports = EveryUnit(GetParam());
    REPRISE_ASSIGN_OR_RETURN(sharded.session,
                             TrainSession::Create(sharded.parameters, classifier.model, classifier.compute, options));
    return sharded;
  }

  std::shared_ptr<internal::Machine> world_;
};

INSTANTIATE_TEST_SUITE_P(All, CudaWindowsTest,
                         ::testing::Values(UnitTransports(Transport::kCopyEngine),
                                           UnitTransports(Transport::kSymmetric),
                                           UnitTransports(Transport::kCopyEngine, Transport::kSymmetric),
                                           UnitTransports(Transport::kNccl, Transport::kSymmetric)),
                         [](const auto& info) {
                           return absl::StrCat(Name(info.param.gather), "_", Name(info.param.exchange));
                         });

TEST_P(CudaWindowsTest, WhatOneRankAloneFreedIsNamed) {
  ASSERT_NO_FATAL_FAILURE(Open());
  REPRISE_ASSERT_OK_AND_ASSIGN(Sharded first, New());
  if (rank() == 0) first = {};
  EXPECT_THAT(New(), StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr("ranks differ in the memory that is open to other devices: rank 0 has 1 "
                                              "of "),
                                    HasSubstr("but rank 1 has"),
                                    HasSubstr("destroy the same sessions and parameters on every rank"))));
  first = {};
  EXPECT_THAT(New(), IsOk()) << "afterwards";
}

TEST_P(CudaWindowsTest, TheOrderInWhichRanksFreeDoesNotMatter) {
  ASSERT_NO_FATAL_FAILURE(Open());
  REPRISE_ASSERT_OK_AND_ASSIGN(Sharded a, New());
  REPRISE_ASSERT_OK_AND_ASSIGN(Sharded b, New());
  (rank() == 0 ? a : b) = {};
  (rank() == 0 ? b : a) = {};
  EXPECT_THAT(New(), IsOk());
}

// Nothing can run on the launch stream then, but windows are closed all the same.
TEST_P(CudaWindowsTest, WhatIsFreedWhileTheCallerCapturesIsGivenBack) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  ASSERT_EQ(cudaSetDevice(DeviceOf(launch)), cudaSuccess);
  internal::StreamHandle stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(stream.receive(), cudaStreamNonBlocking), cudaSuccess);
  ASSERT_NO_FATAL_FAILURE(Open({.stream = stream.get()}));
  MemoryUse first;
  for (int cycle = 0; cycle < 4; ++cycle) {
    REPRISE_ASSERT_OK_AND_ASSIGN(Sharded sharded, New());
    ASSERT_THAT(world_->Synchronize(), IsOk());
    if (rank() == 0) {
      ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
      sharded = {};
      internal::GraphHandle graph;
      ASSERT_EQ(cudaStreamEndCapture(stream.get(), graph.receive()), cudaSuccess) << "the capture goes on";
    } else {
      sharded = {};
    }
    // Memory is free once every rank has closed its window on it.
    ASSERT_THAT(world_->ExchangeBytes("nothing", {std::string()}), IsOk());
    if (cycle == 0) first = world_->memory();
    EXPECT_LE(world_->memory().communication, first.communication) << "cycle " << cycle;
    EXPECT_EQ(world_->memory().requested, 0);
    ASSERT_THAT(world_->ExchangeBytes("nothing", {std::string()}), IsOk());
  }
  world_.reset();
}

}  // namespace
}  // namespace reprise::testing
