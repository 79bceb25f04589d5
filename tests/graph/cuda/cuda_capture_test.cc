// What a compute function may not do while it is captured is refused by name, and leaves the process usable.
#include <cuda_runtime_api.h>

#include <functional>

#include "reprise/graph/cuda_world.h"
#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr CallId kCall(1);  // "c1"

class CudaCaptureTest : public ::testing::Test {
 protected:
  void SetUp() override { REPRISE_ASSERT_OK_AND_ASSIGN(world_, NewCudaWorld()); }

  // Records a training plan, graph by graph, with `extra` called at the end of one forward function.
  absl::Status RecordWith(const std::function<absl::Status(ComputeContext&)>& extra) {
    Classifier classifier = MakeClassifier(2, DType::kBFloat16);
    if (extra != nullptr) {
      classifier.compute[kCall].forward = [forward = classifier.compute[kCall].forward,
                                           extra](ComputeContext& context) {
        REPRISE_RETURN_IF_ERROR(forward(context));
        return extra(context);
      };
    }
    REPRISE_ASSIGN_OR_RETURN(const Plan plan, PlanTraining(classifier.model, world_->size(), {}));
    REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<PlanRunner> runner,
                             PlanRunner::Create(world_, plan, classifier.compute, ClassifierParameter));
    REPRISE_RETURN_IF_ERROR(runner->RunStep(1, ClassifierInput));
    return world_->Synchronize();
  }
  // `what`: of the message.
  void ExpectRefused(const std::function<void(cudaStream_t)>& extra, const char* what) {
    EXPECT_THAT(RecordWith([&](ComputeContext& context) {
                  extra(CudaStream(context.stream()));
                  return absl::OkStatus();
                }),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("command #"), HasSubstr("forward c1"), HasSubstr(what))));
    EXPECT_THAT(RecordWith(nullptr), IsOk()) << "after a refusal";
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }

  std::shared_ptr<World> world_;
};

TEST_F(CudaCaptureTest, AcceptsAForkThatIsJoined) {
  cudaStream_t side = nullptr;
  ASSERT_EQ(cudaStreamCreate(&side), cudaSuccess);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  EXPECT_THAT(RecordWith([&](ComputeContext& context) {
                const cudaStream_t stream = CudaStream(context.stream());
                cudaEventRecord(event, stream);
                cudaStreamWaitEvent(side, event);
                cudaMemsetAsync(memory, 0, 64, side);
                cudaEventRecord(event, side);
                cudaStreamWaitEvent(stream, event);
                return absl::OkStatus();
              }),
              IsOk());
  cudaFree(memory);
  cudaEventDestroy(event);
  cudaStreamDestroy(side);
}

TEST_F(CudaCaptureTest, RefusesAForkThatIsNotJoined) {
  cudaStream_t side = nullptr;
  ASSERT_EQ(cudaStreamCreate(&side), cudaSuccess);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  ExpectRefused(
      [&](cudaStream_t stream) {
        cudaEventRecord(event, stream);
        cudaStreamWaitEvent(side, event);
        cudaMemsetAsync(memory, 0, 64, side);
      },
      "did not join");
  cudaFree(memory);
  cudaEventDestroy(event);
  cudaStreamDestroy(side);
}

TEST_F(CudaCaptureTest, RefusesAnAllocation) {
  void* memory = nullptr;
  ExpectRefused([&](cudaStream_t) { cudaMalloc(&memory, 64); }, "may not allocate");
}

TEST_F(CudaCaptureTest, RefusesAnAllocationOnTheStream) {
  ExpectRefused(
      [](cudaStream_t stream) {
        void* memory = nullptr;
        cudaMallocAsync(&memory, 64, stream);
        cudaFreeAsync(memory, stream);
      },
      "captured an allocation");
}

TEST_F(CudaCaptureTest, RefusesSynchronisation) {
  ExpectRefused([](cudaStream_t stream) { cudaStreamSynchronize(stream); }, "synchronise");
  ExpectRefused([](cudaStream_t) { cudaDeviceSynchronize(); }, "synchronise");
}

TEST_F(CudaCaptureTest, RefusesTheLegacyStream) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  ExpectRefused([&](cudaStream_t) { cudaMemsetAsync(memory, 0, 64, cudaStreamLegacy); }, "legacy stream");
  cudaFree(memory);
}

TEST_F(CudaCaptureTest, RefusesAHostFunction) {
  ExpectRefused(
      [](cudaStream_t stream) {
        cudaLaunchHostFunc(
            stream, [](void*) {}, nullptr);
      },
      "host function");
}

TEST_F(CudaCaptureTest, AnErrorInTheMiddleLeavesTheStreamUsable) {
  EXPECT_THAT(RecordWith([](ComputeContext&) { return absl::AbortedError("enough"); }),
              StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("forward c1"), HasSubstr("enough"))));
  EXPECT_THAT(RecordWith(nullptr), IsOk());
}

// ---- the caller's own captures ----

TEST(CudaCallerTest, NothingRunsOnALaunchStreamThatTheCallerCaptures) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld({.stream = stream}));
    const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, world->size(), {}));
    for (const Execution execution : {Execution::kGraph, Execution::kEager}) {
      REPRISE_ASSERT_OK_AND_ASSIGN(
          const std::unique_ptr<PlanRunner> runner,
          PlanRunner::Create(world, plan, classifier.compute, ClassifierParameter, {.execution = execution}));
      ASSERT_THAT(runner->RunStep(1, ClassifierInput), IsOk());
      ASSERT_THAT(world->Synchronize(), IsOk());
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
      EXPECT_THAT(runner->Replay(plan.first),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("captured by the caller")));
      EXPECT_THAT(world->Synchronize(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("captured")));
      cudaGraph_t graph = nullptr;
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "the caller's capture is unharmed";
      size_t nodes = 0;
      ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
      EXPECT_EQ(nodes, 0u);
      cudaGraphDestroy(graph);
      EXPECT_THAT(runner->RunStep(1, ClassifierInput), IsOk());
      ASSERT_THAT(world->Synchronize(), IsOk());
    }
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(CudaCallerTest, AnotherStreamsCaptureIsLeftAsItWas) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewCudaWorld());
  const Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, world->size(), {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                               PlanRunner::Create(world, plan, classifier.compute, ClassifierParameter));
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_THAT(runner->RunStep(1, ClassifierInput), IsOk());
  EXPECT_THAT(world->Synchronize(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::MemoryBlock> block,
                               world->Allocate(internal::MemoryKind::kLocal, 1000));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace reprise::testing
