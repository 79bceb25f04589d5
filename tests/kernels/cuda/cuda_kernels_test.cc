// Statuses: what is refused, by which code and in which words. Those that need no device run without one.
#include "kernels/cuda/cuda_kernels.h"

#include "kernels/cuda/cuda_status.h"
#include "reprise/kernels/embedding.h"
#include "reprise/kernels/rms_norm.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

TEST(CudaStatusTest, NamesTheErrorAndWhatFailed) {
  EXPECT_EQ(CudaStatus(cudaSuccess, "x"), absl::OkStatus());
  for (const auto& [error, code, name] :
       {std::tuple(cudaErrorMemoryAllocation, absl::StatusCode::kResourceExhausted, "cudaErrorMemoryAllocation"),
        std::tuple(cudaErrorNoDevice, absl::StatusCode::kUnavailable, "cudaErrorNoDevice"),
        std::tuple(cudaErrorStreamCaptureUnsupported, absl::StatusCode::kFailedPrecondition,
                   "cudaErrorStreamCaptureUnsupported"),
        std::tuple(cudaErrorStreamCaptureInvalidated, absl::StatusCode::kFailedPrecondition,
                   "cudaErrorStreamCaptureInvalidated"),
        std::tuple(cudaErrorIllegalAddress, absl::StatusCode::kInternal, "cudaErrorIllegalAddress")}) {
    const absl::Status status = CudaStatus(error, "packing");
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(testing::StartsWith("packing: "), testing::HasSubstr(name)));
  }
}

TEST(NewCudaKernelsTest, RefusesAWorkspaceThatDoesNotDo) {
  alignas(256) static std::byte bytes[512];
  ExpectInvalid(NewCudaKernels({}).status(), {"workspace is null"});
  ExpectInvalid(NewCudaKernels({.workspace = bytes + 128}).status(), {"256-byte aligned"});
  ExpectInvalid(NewCudaKernels({.workspace = bytes, .workspace_bytes = 512}).status(),
                {"workspace_bytes: 512", "at least 8388608"});
}

class CudaKernelsTest : public ::testing::Test {};

TEST_F(CudaKernelsTest, AKernelThatNeedsMoreWorkspaceIsRefusedWithBothNumbers) {
  Device& device = Device::Get();
  float value = 0;
  const int32_t id = 0;
  // Addresses are not read: nothing is enqueued.
  const Shape ids = {5'000'000}, rows = {5'000'000, 2}, table = {3, 2}, wide = {10'000'000, 1}, one = {1};
  Gradient<float> dtable;
  dtable.data = &value;
  dtable.shape = table;
  const absl::Status embedding = EmbeddingBackward(device.stream(), TensorView<const float>{&value, rows},
                                                   TensorView<const int32_t>{&id, ids}, dtable);
  EXPECT_EQ(embedding.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(embedding.message()),
      testing::HasSubstr(
          "EmbeddingBackward of 5000000 ids needs 40000000 bytes of workspace, of which the stream has 33554432"));
  Gradient<float> dgain;
  dgain.data = &value;
  dgain.shape = one;
  const TensorView<const float> x = {&value, wide};
  const absl::Status norm =
      RmsNormBackward(device.stream(), x, x, TensorView<const float>{&value, one}, 1e-3f, Gradient<float>(), dgain);
  EXPECT_EQ(norm.code(), absl::StatusCode::kResourceExhausted) << norm;
}

}  // namespace
}  // namespace reprise::kernels
