// Choices among kernels for a GEMM: measured, and given back.
#include "kernels/cuda/gemm_tuner.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "reprise/kernels/linear.h"
#include "reprise/kernels/linear_gelu.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

class CudaGemmTunerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 256, kWidth = 192, kHidden = 512;

  void SetUp() override {
    Device& device = Device::Get();  // opens it, and skips the tests where there is none
    stream_ = device.cuda_stream();
    ASSERT_EQ(cudaMalloc(&workspace_, kCudaWorkspaceBytes), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&memory_, kNumBytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaFree(workspace_), cudaSuccess);
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
  }

  std::unique_ptr<CudaKernels> New() const {
    absl::StatusOr<std::unique_ptr<CudaKernels>> kernels = NewCudaKernels({.stream = stream_, .workspace = workspace_});
    EXPECT_EQ(kernels.status(), absl::OkStatus());
    return *std::move(kernels);
  }

  // What a product with GELU and its gradients, one of them added, leave in memory.
  std::string Run(CudaKernels& kernels) const {
    const Stream stream(static_cast<void*>(stream_), &kernels);
    BFloat16* const base = static_cast<BFloat16*>(memory_);
    const Tensor<BFloat16> random = Random<BFloat16>({kElements}, 3);
    EXPECT_EQ(cudaMemcpy(base, random.data.data(), kNumBytes, cudaMemcpyHostToDevice), cudaSuccess);
    const Shape x_shape = {kRows, kWidth}, w_shape = {kHidden, kWidth}, y_shape = {kRows, kHidden};
    const TensorView<BFloat16> x = {base, x_shape}, w = {base + kX, w_shape}, h = {base + kX + kW, y_shape},
                               y = {h.data + kY, y_shape}, dy = {y.data + kY, y_shape}, dh = {dy.data + kY, y_shape};
    Gradient<BFloat16> dx, dw;
    dx.data = dh.data + kY;
    dx.shape = x_shape;
    dw.data = dx.data + kX;
    dw.shape = w_shape;
    dw.mode = WriteMode::kAdd;
    absl::Status status = LinearGelu<BFloat16>(stream, x, w, h, y);
    status.Update(
        GeluLinearBackward<BFloat16>(stream, x, h, TensorView<const BFloat16>{w.data, {kWidth, kHidden}}, dh));
    status.Update(LinearBackward<BFloat16, BFloat16>(stream, dy, x, w, dx, dw));
    EXPECT_EQ(status, absl::OkStatus());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::string bytes(kNumBytes, '\0');
    EXPECT_EQ(cudaMemcpy(bytes.data(), base, kNumBytes, cudaMemcpyDeviceToHost), cudaSuccess);
    return bytes;
  }

 private:
  static constexpr int64_t kX = kRows * kWidth, kW = kHidden * kWidth, kY = kRows * kHidden;
  static constexpr int64_t kElements = 2 * kX + 2 * kW + 4 * kY, kNumBytes = kElements * 2;

  cudaStream_t stream_ = nullptr;
  void* workspace_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(CudaGemmTunerTest, EveryProductThatRanIsChosenForOnce) {
  const std::unique_ptr<CudaKernels> kernels = New();
  EXPECT_THAT(kernels->choices(), testing::IsEmpty());
  Run(*kernels);
  EXPECT_THAT(kernels->choices(), testing::IsEmpty());
  ASSERT_EQ(kernels->Tune(), absl::OkStatus());
  const std::map<std::string, std::string> choices = kernels->choices();
  // Two with GELU and the same without, and the gradients' two.
  EXPECT_EQ(choices.size(), 6u);
  Run(*kernels);
  ASSERT_EQ(kernels->Tune(), absl::OkStatus());
  EXPECT_EQ(kernels->choices(), choices);
}

TEST_F(CudaGemmTunerTest, ChoicesGiveTheSameBytesWhereTheyAreGiven) {
  const std::unique_ptr<CudaKernels> tuned = New(), given = New();
  Run(*tuned);
  ASSERT_EQ(tuned->Tune(), absl::OkStatus());
  ASSERT_EQ(given->Choose(tuned->choices()), absl::OkStatus());
  const std::string want = Run(*tuned);
  EXPECT_EQ(Run(*given), want);
  EXPECT_EQ(Run(*tuned), want);
  EXPECT_EQ(given->choices(), tuned->choices());
}

TEST_F(CudaGemmTunerTest, OtherChoicesAreRefusedByTheirText) {
  const std::unique_ptr<CudaKernels> kernels = New();
  const std::string product = "1024 1024 1024 0 0 0 1 1 256 256 256 33554432 1 256";
  for (const auto& [key, choice] : {std::pair<std::string, std::string>("1 2", "none"), {product, "none"}}) {
    ExpectInvalid(kernels->Choose({{key, choice}}),
                  {"\"" + key + "\": \"" + choice + "\"", "no choice of a GEMM's kernel"});
  }
  EXPECT_THAT(kernels->choices(), testing::IsEmpty());
}

// Each of a choice that runs, changed in one way. (An algorithm's words are the library's: the first says which
// kernel.)
TEST_F(CudaGemmTunerTest, ChoicesThatCannotRunAreRefusedAndChangeNothing) {
  const std::unique_ptr<CudaKernels> tuned = New();
  Run(*tuned);
  ASSERT_EQ(tuned->Tune(), absl::OkStatus());
  std::map<std::string, std::string> choices = tuned->choices();
  const auto with_kernel = [](const auto& entry) { return entry.second != "none"; };
  const auto last = std::find_if(choices.rbegin(), choices.rend(), with_kernel);
  ASSERT_NE(last, choices.rend());
  const auto [key, choice] = *last;
  const auto refuse = [&](const std::string& other_key, const std::string& other_choice, const std::string& why) {
    std::map<std::string, std::string> changed = choices;
    changed.erase(key);
    changed[other_key] = other_choice;
    const std::unique_ptr<CudaKernels> kernels = New();
    ExpectInvalid(kernels->Choose(changed), {"\"" + other_key + "\": \"" + other_choice + "\"", "can run here", why});
    EXPECT_THAT(kernels->choices(), testing::IsEmpty());
  };
  refuse(key, "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff", "cublasLtMatmulAlgoCheck");
  // A dtype that no product has.
  GemmKey product;
  ASSERT_TRUE(FromText(key, product));
  GemmKey other = product;
  other.in = 17;
  refuse(ToText(other), choice, "no GEMM");
  other = product;
  other.h_alignment = 3;
  refuse(ToText(other), choice, "no GEMM");
}

// What a file could hold that another program wrote: additions in the order in which blocks come.
TEST_F(CudaGemmTunerTest, ChoicesOfNoFixedOrderAreRefused) {
  const std::unique_ptr<CudaKernels> tuned = New();
  Run(*tuned);
  ASSERT_EQ(tuned->Tune(), absl::OkStatus());
  int refused = 0;
  for (const auto& [key, choice] : tuned->choices()) {
    std::optional<GemmAlgorithm> algorithm;
    ASSERT_TRUE(FromText(choice, algorithm));
    if (!algorithm.has_value()) continue;
    const uint32_t split = 2, in_place = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    ASSERT_EQ(cublasLtMatmulAlgoConfigSetAttribute(&*algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof(split)),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulAlgoConfigSetAttribute(&*algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &in_place,
                                                   sizeof(in_place)),
              CUBLAS_STATUS_SUCCESS);
    // Those that cannot be split are refused by the library.
    ExpectInvalid(New()->Choose({{key, ToText(algorithm)}}), {key, "can run here"});
    ++refused;
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace reprise::kernels
