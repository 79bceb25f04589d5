// Compute functions that break their contract on a device are refused at Create, and a gradient that is not finite is
// traced to its call.
#include <cuda_runtime_api.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "graph/cuda/digest.h"
#include "graph/digest.h"
#include "reprise/graph/train_session.h"
#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr CallId kCall(1);  // "c1"
constexpr absl::StatusCode kPrecondition = absl::StatusCode::kFailedPrecondition;

// ---- digests ----

uint64_t HostDigest(const std::vector<std::byte>& bytes) {
  uint64_t digest = 0;
  const int64_t size = static_cast<int64_t>(bytes.size());
  for (int64_t at = 0; at < size; at += internal::kDigestWord) {
    const int64_t count = std::min(internal::kDigestWord, size - at);
    digest += internal::MixWord(internal::WordAt(bytes.data() + at, count), at / internal::kDigestWord);
  }
  return digest;
}

TEST(DeviceDigestTest, EqualsTheHostsAtAnySizeAndAddress) {
  constexpr int64_t kLargest = (int64_t{1} << 21) + 13;
  std::byte* memory = nullptr;
  uint64_t* parts = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), kLargest + 8), cudaSuccess);
  ASSERT_EQ(
      cudaHostAlloc(reinterpret_cast<void**>(&parts), internal::kDigestParts * sizeof(uint64_t), cudaHostAllocMapped),
      cudaSuccess);
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4}, int64_t{8}, int64_t{4099}, kLargest}) {
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
    for (const int64_t offset : {0, 4, 1}) {
      ASSERT_EQ(cudaMemcpy(memory + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
      ASSERT_EQ(internal::LaunchDigest(nullptr, memory + offset, size, parts), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      uint64_t digest = 0;
      for (int part = 0; part < internal::kDigestParts; ++part) digest += parts[part];
      EXPECT_EQ(digest, HostDigest(bytes)) << size << " bytes at " << offset;
    }
  }
  EXPECT_EQ(cudaFreeHost(parts), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

// ---- sessions ----

class CudaCheckWritesTest : public ::testing::Test {
 protected:
  void SetUp() override { REPRISE_ASSERT_OK_AND_ASSIGN(world_, NewCudaWorld()); }

  absl::Status Create(TrainOptions options = {}) {
    REPRISE_ASSIGN_OR_RETURN(parameters_, ShardedParameters::Create(world_, classifier_.model));
    REPRISE_RETURN_IF_ERROR(parameters_->Initialize(Normal(1, 0.5f)));
    REPRISE_ASSIGN_OR_RETURN(
        session_, TrainSession::Create(parameters_, classifier_.model, classifier_.compute, std::move(options)));
    return absl::OkStatus();
  }
  // Wraps a function of "c1".
  void Wrap(Phase phase, const std::function<absl::Status(ComputeContext&, const ComputeFunction&)>& wrapped) {
    Compute& compute = classifier_.compute[kCall];
    ComputeFunction& function = phase == Phase::kForward ? compute.forward : compute.backward;
    function = [wrapped, inner = function](ComputeContext& c) { return wrapped(c, inner); };
  }

  std::shared_ptr<World> world_;
  Classifier classifier_ = MakeClassifier(3, DType::kFloat32);
  std::shared_ptr<ShardedParameters> parameters_;
  std::unique_ptr<TrainSession> session_;
};

TEST_F(CudaCheckWritesTest, AcceptsWhatKeepsTheContract) {
  for (const Execution execution : {Execution::kGraph, Execution::kEager}) {
    for (const Reduce reduce : {Reduce::kEveryMicrobatch, Reduce::kOncePerStep}) {
      EXPECT_THAT(Create({.run = {.plan = {.reduce = reduce}, .execution = execution}}), IsOk());
    }
  }
}

TEST_F(CudaCheckWritesTest, AFunctionThatEnqueuesNothingWhileItIsCaptured) {
  Wrap(Phase::kForward, [](ComputeContext& c, const ComputeFunction& inner) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(CudaStream(c.stream()), &capture);
    return capture == cudaStreamCaptureStatusActive ? absl::OkStatus() : inner(c);
  });
  EXPECT_THAT(Create(), StatusIs(kPrecondition, AllOf(HasSubstr("forward of call \"c1\" on rank 0 left 128 of 128 "
                                                                "elements of "),
                                                      HasSubstr(" unwritten"))));
  EXPECT_THAT(Create({.run = {.check_writes = false}}), IsOk());
}

TEST_F(CudaCheckWritesTest, AGradientThatIsAssignedWhereItShouldBeAddedTo) {
  Wrap(Phase::kBackward, [this](ComputeContext& c, const ComputeFunction& inner) {
    const Gradient<float> dw = c.parameter_gradient<float>(classifier_.weights[1]);
    if (cudaMemsetAsync(dw.data, 0, 16 * 16 * sizeof(float), CudaStream(c.stream())) != cudaSuccess) {
      return absl::InternalError("no fill");
    }
    return inner(c);
  });
  EXPECT_THAT(Create(), IsOk()) << "every gradient of the plan is assigned";
  EXPECT_THAT(Create({.run = {.plan = {.reduce = Reduce::kOncePerStep}}}),
              StatusIs(kPrecondition, HasSubstr("backward of call \"c1\" on rank 0 assigned 256 of 256 elements of "
                                                "gradient of parameter \"u1.w\" of unit \"u1\", whose mode is kAdd")));
}

TEST_F(CudaCheckWritesTest, AGradientThatIsLeftUnwrittenAndAnInputThatIsChanged) {
  const Classifier good = classifier_;
  Wrap(Phase::kBackward, [](ComputeContext&, const ComputeFunction&) { return absl::OkStatus(); });
  EXPECT_THAT(Create(), StatusIs(kPrecondition, HasSubstr("backward of call \"c1\" on rank 0 left ")));
  classifier_ = good;
  Wrap(Phase::kForward, [this](ComputeContext& c, const ComputeFunction& inner) {
    REPRISE_RETURN_IF_ERROR(inner(c));
    float* const w = const_cast<float*>(c.parameter<float>(classifier_.weights[1]).data);
    cudaMemsetAsync(w + 3, 0x11, sizeof(float), CudaStream(c.stream()));
    return absl::OkStatus();
  });
  EXPECT_THAT(Create(), StatusIs(kPrecondition, HasSubstr("forward of call \"c1\" on rank 0 changed some of the 256 "
                                                          "elements of parameter \"u1.w\" of unit \"u1\"")));
}

TEST_F(CudaCheckWritesTest, FindNonFiniteNamesTheCall) {
  Wrap(Phase::kBackward, [this](ComputeContext& c, const ComputeFunction& inner) {
    REPRISE_RETURN_IF_ERROR(inner(c));
    const Gradient<float> dw = c.parameter_gradient<float>(classifier_.weights[1]);
    cudaMemsetAsync(dw.data + 7, 0xff, sizeof(float), CudaStream(c.stream()));
    return absl::OkStatus();
  });
  ASSERT_THAT(Create(), IsOk());
  for (int step = 0; step < 2; ++step) {
    ASSERT_THAT(session_->BeginStep({.learning_rate = 0.1f}), IsOk());
    for (const int rank : world_->local_ranks()) {
      ASSERT_THAT(session_->CopyInput(rank, classifier_.x, std::vector<float>(128, 1.0f)), IsOk());
      ASSERT_THAT(session_->CopyInput(rank, classifier_.labels, std::vector<int32_t>(8, 2)), IsOk());
    }
    ASSERT_THAT(session_->RunMicrobatch(), IsOk());
    ASSERT_THAT(session_->EndStep(), IsOk());
    ASSERT_THAT(session_->Synchronize(), IsOk());
    EXPECT_TRUE(session_->PollMetrics().at(0).skipped);
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::string found, session_->FindNonFinite());
    EXPECT_THAT(found, HasSubstr("on rank 0 backward of call \"c1\" made element 7 of 256 of gradient of parameter "
                                 "\"u1.w\" of unit \"u1\" "));
  }
}

}  // namespace
}  // namespace reprise::testing
