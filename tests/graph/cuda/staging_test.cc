// What is staged for the next launch is copied beside the last one, after all earlier ones, and before the next one.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/time/clock.h"
#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/graph/cuda/dependent_kernels.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

// A world, and a graph that ends once the host has opened a gate.
class StagingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    REPRISE_ASSERT_OK_AND_ASSIGN(world_, NewCudaWorld());
    void* opened = nullptr;
    ASSERT_EQ(cudaHostAlloc(&opened, sizeof(int), cudaHostAllocMapped), cudaSuccess);
    opened_ = static_cast<int*>(opened);
    *opened_ = 1 << 30;
    ASSERT_EQ(cudaStreamCreateWithFlags(&look_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&passed_), sizeof(int)), cudaSuccess);
    Classifier classifier = MakeClassifier(2, DType::kFloat32);
    classifier.compute[CallId(0)].forward = [this,
                                             forward = classifier.compute[CallId(0)].forward](ComputeContext& context) {
      if (LaunchGate(CudaStream(context.stream()), opened_, passed_) != cudaSuccess) {
        return absl::InternalError("the gate was not launched");
      }
      return forward(context);
    };
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, world_->size(), {}));
    first_ = plan.first;
    REPRISE_ASSERT_OK_AND_ASSIGN(runner_, PlanRunner::Create(world_, plan, classifier.compute, ClassifierParameter));
    REPRISE_ASSERT_OK_AND_ASSIGN(memory_, world_->Allocate(internal::MemoryKind::kLocal, sizeof(int32_t)));
    ASSERT_THAT(world_->FillBytes(0, memory_->address(0), 0, sizeof(int32_t)), IsOk());
    ASSERT_THAT(world_->Synchronize(), IsOk());
    ASSERT_EQ(cudaMemset(passed_, 0, sizeof(int)), cudaSuccess);
    *opened_ = 0;
  }
  void TearDown() override {
    *opened_ = 1 << 30;
    EXPECT_THAT(world_->Synchronize(), IsOk());
    runner_ = nullptr;
    cudaFree(passed_);
    cudaStreamDestroy(look_);
    cudaFreeHost(const_cast<int*>(opened_));
  }

  absl::Status Stage(int32_t value) { return world_->StageToRank(0, memory_->address(0), &value, sizeof(value)); }
  // The staged value, read beside everything else.
  int32_t Look() {
    int32_t value = -1;
    EXPECT_EQ(cudaMemcpyAsync(&value, memory_->address(0), sizeof(value), cudaMemcpyDeviceToHost, look_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(look_), cudaSuccess);
    return value;
  }
  bool LooksLike(int32_t value, absl::Duration within) {
    const absl::Time end = absl::Now() + within;
    while (Look() != value) {
      if (absl::Now() > end) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  std::shared_ptr<internal::Machine> world_;
  std::unique_ptr<PlanRunner> runner_;
  std::shared_ptr<internal::MemoryBlock> memory_;
  int first_ = 0;
  volatile int* opened_ = nullptr;  // how many replays may pass the gate
  int* passed_ = nullptr;           // on the device: how many did
  cudaStream_t look_ = nullptr;
};

constexpr auto kSoon = absl::Seconds(10);
constexpr auto kAWhile = absl::Milliseconds(100);

TEST_F(StagingTest, RunsBesideTheLastLaunch) {
  ASSERT_THAT(runner_->Replay(first_), IsOk());
  ASSERT_THAT(Stage(7), IsOk());
  EXPECT_TRUE(LooksLike(7, kSoon)) << "while the replay waits at the gate";
}

TEST_F(StagingTest, ComesAfterEarlierLaunches) {
  ASSERT_THAT(runner_->Replay(first_), IsOk());
  ASSERT_THAT(runner_->Replay(first_), IsOk());
  ASSERT_THAT(Stage(7), IsOk());
  EXPECT_FALSE(LooksLike(7, kAWhile)) << "while the first of two replays waits";
  *opened_ = 1;
  EXPECT_TRUE(LooksLike(7, kSoon)) << "while the second one waits";
}

TEST_F(StagingTest, ComesBeforeTheNextLaunchAndEveryWait) {
  // More than one launch may hold, so that copies queue up behind each other.
  *opened_ = 1 << 30;
  for (int32_t value = 1; value <= 200; ++value) {
    ASSERT_THAT(Stage(value), IsOk());
    ASSERT_THAT(runner_->Replay(first_), IsOk());
    int32_t got = 0;
    if (value % 50 != 0) continue;
    ASSERT_THAT(world_->CopyToHost(0, &got, memory_->address(0), sizeof(got)), IsOk());
    EXPECT_EQ(got, value);
  }
  ASSERT_THAT(Stage(1000), IsOk());
  ASSERT_THAT(world_->Synchronize(), IsOk());
  EXPECT_EQ(Look(), 1000);
}

}  // namespace
}  // namespace reprise::testing
