// What goes wrong on one of two ranks is told on both, and neither hangs.
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <cstdio>

#include "graph/cuda/driver_api.h"
#include "reprise/graph/measure.h"
#include "reprise/graph/train_session.h"
#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr CallId kCall(1);  // "c1"

// Before any test that uses device 0 on both ranks.
TEST(CudaContextTest, ARankOpensItsOwnDeviceAlone) {
  decltype(&cuDevicePrimaryCtxGetState) get_state = nullptr;
  ASSERT_THAT(REPRISE_LOAD_DRIVER_FUNCTION(cuDevicePrimaryCtxGetState, 7000, get_state), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewCudaWorld());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::MemoryBlock> block,
                               world->Allocate(internal::MemoryKind::kLocal, 1024));
  const int rank = world->local_ranks()[0];
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  const int own = DeviceOf(launch, SharesDevice());
  for (int device = 0; device < NumCudaDevices(); ++device) {
    unsigned flags = 0;
    int active = 0;
    ASSERT_EQ(get_state(device, &flags, &active), CUDA_SUCCESS);
    EXPECT_EQ(active, device == own ? 1 : 0) << "device " << device << " on rank " << rank;
  }
  int current = -1;
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, own) << "of a thread that never used a device";
  if (own == 0) return;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_THAT(world->Synchronize(), IsOk());
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0) << "the caller's choice stays";
  ASSERT_EQ(cudaSetDevice(own), cudaSuccess);
}

class CudaErrorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    REPRISE_ASSERT_OK_AND_ASSIGN(world_, NewCudaWorld());
    ASSERT_EQ(world_->size(), 2);
  }
  int rank() const { return world_->local_ranks()[0]; }

  absl::Status CreateSession(const Classifier& classifier, TrainOptions options = {}) {
    REPRISE_ASSIGN_OR_RETURN(const auto parameters, ShardedParameters::Create(world_, classifier.model));
    return TrainSession::Create(parameters, classifier.model, classifier.compute, std::move(options)).status();
  }

  std::shared_ptr<World> world_;
};

TEST_F(CudaErrorsTest, DifferentModelsAreNamedOnBoth) {
  EXPECT_THAT(CreateSession(MakeClassifier(rank() == 0 ? 2 : 3, DType::kBFloat16)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ranks disagree")));
}

TEST_F(CudaErrorsTest, DifferentOptionsAreNamedOnBoth) {
  TrainOptions options;
  options.run.plan.prefetch_depth = rank() + 1;
  EXPECT_THAT(CreateSession(MakeClassifier(2, DType::kBFloat16), options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("planning"), HasSubstr("rank 0"), HasSubstr("rank 1"))));
  EXPECT_THAT(CreateSession(MakeClassifier(2, DType::kBFloat16)), IsOk()) << "afterwards";
}

TEST_F(CudaErrorsTest, APlanThatFailsOnOneRankFailsOnBoth) {
  TrainOptions options;
  if (rank() == 1) options.run.plan.weight_slots = 0;
  EXPECT_THAT(CreateSession(MakeClassifier(2, DType::kBFloat16), options),
              StatusIs(rank() == 1 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition,
                       HasSubstr("weight_slots")));
  EXPECT_THAT(CreateSession(MakeClassifier(2, DType::kBFloat16)), IsOk()) << "afterwards";
}

// Warm-up runs backward of "c1" while the other rank's device waits in a collective for this one.
TEST_F(CudaErrorsTest, AWarmUpThatFailsOnOneRankFailsOnBoth) {
  Classifier classifier = MakeClassifier(3, DType::kBFloat16);
  if (rank() == 1) {
    classifier.compute[kCall].backward = [](ComputeContext&) { return absl::AbortedError("only here"); };
  }
  EXPECT_THAT(CreateSession(classifier),
              StatusIs(rank() == 1 ? absl::StatusCode::kAborted : absl::StatusCode::kFailedPrecondition,
                       HasSubstr("only here")));
}

TEST_F(CudaErrorsTest, ARecordingThatFailsOnOneRankFailsOnBoth) {
  Classifier classifier = MakeClassifier(3, DType::kBFloat16);
  if (rank() == 1) {
    classifier.compute[kCall].backward = [backward = classifier.compute[kCall].backward](ComputeContext& context) {
      cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
      cudaStreamIsCapturing(CudaStream(context.stream()), &capture);
      if (capture == cudaStreamCaptureStatusActive) return absl::AbortedError("only here");
      return backward(context);
    };
  }
  EXPECT_THAT(CreateSession(classifier),
              StatusIs(rank() == 1 ? absl::StatusCode::kAborted : absl::StatusCode::kFailedPrecondition,
                       HasSubstr("only here")));
  EXPECT_THAT(CreateSession(MakeClassifier(3, DType::kBFloat16)), IsOk()) << "afterwards";
}

TEST(CudaErrorsDeviceTest, TwoRanksOnOneDeviceAreNamed) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  EXPECT_THAT(CreateCudaWorld(launch, {.device = 0, .deadline = kTestDeadline}),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("ranks 0 and 1 share device"))));
}

TEST(CudaErrorsDeviceTest, ADeviceThatDoesNotExistIsNamedOnBoth) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  EXPECT_THAT(NewCudaWorld({.device = launch.rank == 0 ? 0 : 99}),
              StatusIs(launch.rank == 0 ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnavailable,
                       HasSubstr("device 99")));
}

TEST(CudaErrorsDeviceTest, DifferentNcclSettingsAreNamedOnBoth) {
  REPRISE_ASSERT_OK_AND_ASSIGN(LaunchEnvironment launch, DetectLaunch());
  launch.nccl_settings = {launch.rank == 1 ? "NCCL_ALGO=Tree" : "NCCL_ALGO=Ring"};
  CudaWorldOptions options;
  options.deadline = kTestDeadline;
  options.share_device = SharesDevice();
  EXPECT_THAT(CreateCudaWorld(launch, options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("NCCL settings: NCCL_ALGO is \"Ring\" on rank 0 but \"Tree\" on rank 1")));
}

TEST(CudaErrorsDeviceTest, ACostFileOnOneRankAloneIsNamedOnBoth) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  EXPECT_THAT(NewCudaWorld({.cost_file = launch.rank == 0 ? "" : "costs.json"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 has no cost file, but rank 1 has a cost file"),
                             HasSubstr("CudaWorldOptions::cost_file"))));
}

// A session's results, of a rank that comes after the other gave up: of no wait, and of each.
class CudaLateRankTest : public ::testing::TestWithParam<Transport> {};

INSTANTIATE_TEST_SUITE_P(All, CudaLateRankTest, ::testing::Values(Transport::kNccl, Transport::kCopyEngine),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(CudaLateRankTest, ReturnsNoResultOfOneThatGaveUp) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewCudaWorld({}, absl::Seconds(3)));
  const Classifier classifier = MakeClassifier(2, DType::kFloat32);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ShardedParameters> parameters,
                               ShardedParameters::Create(world, classifier.model));
  ASSERT_THAT(parameters->Initialize(Normal(/*seed=*/1, /*stddev=*/0.3f)), IsOk());
  TrainOptions train;
  train.run.plan.transports = EveryUnit(GetParam());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TrainSession> session,
                               TrainSession::Create(parameters, classifier.model, classifier.compute, train));
  const auto run_microbatch = [&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(session->BeginStep({.learning_rate = 0.1f}));
    REPRISE_RETURN_IF_ERROR(
        session->CopyInput(launch.rank, classifier.x, std::vector<float>(kClassifierRows * kClassifierWidth, 0.5f)));
    REPRISE_RETURN_IF_ERROR(
        session->CopyInput(launch.rank, classifier.labels, std::vector<int32_t>(kClassifierRows, 0)));
    return session->RunMicrobatch();
  };
  ASSERT_THAT(run_microbatch(), IsOk());
  ASSERT_THAT(session->EndStep(), IsOk());
  ASSERT_THAT(session->Synchronize(), IsOk());
  ASSERT_EQ(session->PollMetrics().size(), 1u) << "before";
  constexpr absl::Duration kLate = absl::Seconds(7), kTime = absl::Seconds(6);
  const absl::Time begin = absl::Now();
  if (launch.rank == 0) {
    ASSERT_THAT(run_microbatch(), IsOk());
    EXPECT_THAT(session->Synchronize(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("3s")));
    EXPECT_TRUE(session->PollMetrics().empty()) << "its own went on, too";
  } else {
    absl::SleepFor(kLate);
    run_microbatch().IgnoreError();
    session->EndStep().IgnoreError();
    // Long enough for what goes on.
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(session->PollMetrics().empty());
      absl::SleepFor(absl::Milliseconds(10));
    }
    const auto is_told = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 0 of 2 failed"));
    EXPECT_THAT(session->ReadOutput<float>(launch.rank, classifier.loss), is_told);
    EXPECT_THAT(session->Synchronize(), is_told);
    EXPECT_THAT(world->Synchronize(), is_told);
  }
  absl::SleepFor(kLate + kTime - (absl::Now() - begin));
}

struct TransportErrors {
  std::string name;
  Transport transport = Transport::kNccl;
  bool measures = false;  // first, so that the world knows whether devices can use each other's memory
};

class CudaTransportErrorsTest : public ::testing::TestWithParam<TransportErrors> {};

INSTANTIATE_TEST_SUITE_P(All, CudaTransportErrorsTest,
                         // Last the one after which a rank is much later than the other.
                         ::testing::Values(TransportErrors{"nccl", Transport::kNccl},
                                           TransportErrors{"nccl_in_a_world_that_measured", Transport::kNccl, true},
                                           TransportErrors{"copy_engine", Transport::kCopyEngine},
                                           TransportErrors{"symmetric", Transport::kSymmetric}),
                         [](const auto& info) { return info.param.name; });

TEST_P(CudaTransportErrorsTest, ARankThatNeverReplaysIsReportedAtTheDeadline) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  REPRISE_ASSERT_OK_AND_ASSIGN(std::shared_ptr<internal::Machine> world, NewCudaWorld({}, absl::Seconds(5)));
  if (GetParam().measures) {
    ASSERT_THAT(Measure(*world), IsOk());
  }
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const Plan plan, PlanTraining(classifier.model, world->size(), {.transports = EveryUnit(GetParam().transport)}));
  REPRISE_ASSERT_OK_AND_ASSIGN(std::unique_ptr<PlanRunner> runner,
                               PlanRunner::Create(world, plan, classifier.compute, ClassifierParameter));
  ASSERT_THAT(runner->RunStep(1, ClassifierInput), IsOk());
  ASSERT_THAT(world->Synchronize(), IsOk());
  // After rank 0 has given up; and as long as rank 1 then may take. Both go on together.
  constexpr absl::Duration kRank1Late = absl::Seconds(10), kRank1Time = absl::Seconds(5);
  const absl::Time begin = absl::Now();
  if (launch.rank == 0) {
    // A queue of them: each must leave the device, or destroying the world would wait for ever.
    for (int i = 0; i < 20; ++i) ASSERT_THAT(runner->Replay(plan.first), IsOk());
    EXPECT_THAT(world->Synchronize(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("5s")));
    EXPECT_THAT(runner->Replay(plan.first), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("5s")))
        << "the first error is kept";
    const absl::Time start = absl::Now();
    runner.reset();
    world.reset();
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  } else {
    absl::SleepFor(kRank1Late);
    for (int i = 0; i < 20; ++i) ASSERT_THAT(runner->Replay(plan.first), IsOk());
    if (GetParam().transport == Transport::kSymmetric) {
      // NCCL's collectives on windows cannot be aborted: rank 0 has left theirs, and all that they
      // use, to it. Now they end, long before this rank would give up because rank 0 is gone, with the right bytes.
      EXPECT_THAT(world->Synchronize(), IsOk());
    } else {
      // Those of rank 0 were made to go on, and with them this one's: over bytes that mean nothing.
      const absl::Status gave_up = world->Synchronize();
      EXPECT_THAT(gave_up, StatusIs(absl::StatusCode::kFailedPrecondition,
                                    AllOf(HasSubstr("rank 0 of 2 failed"), HasSubstr("5s"))));
      EXPECT_EQ(world->CheckResults(), gave_up);
      EXPECT_EQ(runner->Replay(plan.first), gave_up);
    }
    EXPECT_LT(absl::Now() - begin, kRank1Late + kRank1Time);
  }
  // Rank 1 may still write to this process's memory.
  absl::SleepFor(kRank1Late + kRank1Time - (absl::Now() - begin));
}

}  // namespace
}  // namespace reprise::testing
