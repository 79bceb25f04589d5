#include "reprise/kernels/gemm.h"

#include "absl/strings/str_cat.h"
#include "reprise/kernels/linear.h"
#include "reprise/kernels/linear_gelu.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

template <class D>
class CudaGemmTest : public ::testing::Test {};
TYPED_TEST_SUITE(CudaGemmTest, AllDtypes);

struct Extents {
  int64_t m, n, k;
};
const Extents kExtents[] = {{1, 1, 1},      {7, 1, 3},      {1, 7, 63},     {8, 8, 8},        {63, 65, 7},
                            {65, 63, 127},  {0, 5, 3},      {5, 0, 3},      {4, 3, 0},        {13, 211, 101},
                            {64, 128, 256}, {300, 96, 601}, {96, 300, 608}, {512, 384, 1024}, {33, 1000, 2048}};

// Of a product of k terms that is written, or added to a value of up to 4. cuBLASLt may round the product to bfloat16
// before it adds it to one: by at most 2^-9 of a product no larger than the result and that value together.
template <class C>
double ProductError(int64_t k, WriteMode mode) {
  return SumError(k) + (std::is_same_v<C, BFloat16> && mode == WriteMode::kAdd ? 4 * 0x1p-9 : 0);
}

TYPED_TEST(CudaGemmTest, MultipliesAllTransposesAndModes) {
  using T = typename TypeParam::Activation;
  using C = typename TypeParam::ParameterGradient;
  uint64_t seed = 0;
  for (const auto& [m, n, k] : kExtents) {
    for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
      for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
        ForEachMode([&, m = m, n = n, k = k](WriteMode mode) {
          const bool at = ta == Transpose::kYes, bt = tb == Transpose::kYes;
          HostComparison both(absl::StrCat("Gemm of m ", m, ", n ", n, ", k ", k, at ? ", a transposed" : "",
                                           bt ? ", b transposed" : "", ", ", std::string(Name(DTypeOf<T>::value)),
                                           " to ", std::string(Name(DTypeOf<C>::value)), ", ", NameOf(mode)));
          const Operand a = both.Input(Random<T>(at ? Shape{k, m} : Shape{m, k}, ++seed));
          const Operand b = both.Input(Random<T>(bt ? Shape{n, k} : Shape{k, n}, ++seed));
          const Operand c = both.Output<C>({m, n}, mode, ProductError<C>(k, mode));
          both.AllowPlacementToMatter().Run([&](Stream s, const Memory& memory) {
            return Gemm<T, C>(s, memory.view<const T>(a), ta, memory.view<const T>(b), tb, mode, memory.view<C>(c));
          });
        });
      }
    }
  }
}

TYPED_TEST(CudaGemmTest, LinearAndItsGradients) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const auto& [m, n, k] : {Extents{15, 11, 7}, Extents{128, 256, 64}, Extents{512, 96, 384}}) {
    HostComparison both(absl::StrCat("Linear and LinearBackward of ", m, " x ", k, " to ", n));
    const Operand x = both.Input(Random<T>({m, k}, 1)), w = both.Input(Random<T>({n, k}, 2)),
                  dy = both.Input(Random<T>({m, n}, 3));
    const Operand y = both.Output<T>({m, n}, WriteMode::kAssign, SumError(k));
    const Operand dx = both.Output<T>({m, k}, WriteMode::kAdd, ProductError<T>(n, WriteMode::kAdd));
    const Operand dw = both.Output<G>({n, k}, WriteMode::kAssign, SumError(m));
    both.AllowPlacementToMatter().Run([&](Stream s, const Memory& memory) {
      absl::Status status = Linear(s, memory.view<T>(x), memory.view<T>(w), memory.view<T>(y));
      status.Update(LinearBackward(s, memory.view<T>(dy), memory.view<T>(x), memory.view<T>(w),
                                   memory.gradient<T>(dx, WriteMode::kAdd),
                                   memory.gradient<G>(dw, WriteMode::kAssign)));
      return status;
    });
  }
}

template <class T>
class CudaLinearGeluTest : public ::testing::Test {};
using ActivationDtypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaLinearGeluTest, ActivationDtypes);

// Of both ways, GELU in the product's kernel and after it: the sums are short, so that an error of GELU shows, or long.
const Extents kGeluExtents[] = {{1, 1, 1},    {0, 5, 3},       {5, 0, 3},      {4, 3, 0},        {8, 8, 8},
                                {15, 11, 7},  {128, 256, 16},  {63, 65, 33},   {300, 96, 601},   {7, 1000, 64},
                                {96, 300, 8}, {256, 1024, 24}, {64, 128, 256}, {512, 384, 1024}, {33, 1000, 2048}};

// What GELU or its slope of a product makes of the product's error, and of its rounding to T before.
template <class T>
double AfterProduct(double sum_error, double largest) {
  return kGeluSlope * (sum_error + Epsilon<T>() * (largest + sum_error));
}

template <class T>
Values HostProduct(Tensor<T> a, Tensor<T> b, Transpose transpose_b, Shape shape) {
  Tensor<T> c(std::move(shape));
  EXPECT_EQ((Gemm<T, T>(HostStream(), a.view(), Transpose::kNo, b.view(), transpose_b, WriteMode::kAssign, c.view())),
            absl::OkStatus());
  return c.values();
}

TYPED_TEST(CudaLinearGeluTest, Forward) {
  using T = TypeParam;
  for (const auto& [m, n, k] : kGeluExtents) {
    // h is as large for every k.
    const auto bound = static_cast<float>(8 / std::sqrt(std::max<int64_t>(1, k)));
    const Tensor<T> x_values = Random<T>({m, k}, 1), w_values = Random<T>({n, k}, 2, bound);
    const double largest = Largest(HostProduct<T>(x_values, w_values, Transpose::kYes, {m, n}));
    const double error = SumError(k, bound);
    HostComparison both(
        absl::StrCat("LinearGelu of ", m, " x ", k, " to ", n, ", ", std::string(Name(DTypeOf<T>::value))));
    const Operand x = both.Input(x_values), w = both.Input(w_values);
    const Operand y =
        both.Output<T>({m, n}, WriteMode::kAssign, GeluError(largest + error) + AfterProduct<T>(error, largest));
    const Operand h = both.Output<T>({m, n}, WriteMode::kAssign, error);
    both.AllowPlacementToMatter().Run([&](Stream s, const Memory& memory) {
      return LinearGelu(s, memory.view<T>(x), memory.view<T>(w), memory.view<T>(h), memory.view<T>(y));
    });
  }
}

TYPED_TEST(CudaLinearGeluTest, Backward) {
  using T = TypeParam;
  for (const auto& [m, k, n] : kGeluExtents) {  // the columns of h are the aligned ones
    const Tensor<T> dy_values = Random<T>({m, n}, 1), w_values = Random<T>({n, k}, 2);
    const double largest = Largest(HostProduct<T>(dy_values, w_values, Transpose::kNo, {m, k}));
    const double error = SumError(n);
    HostComparison both(
        absl::StrCat("GeluLinearBackward of ", m, " x ", n, " to ", k, ", ", std::string(Name(DTypeOf<T>::value))));
    const Operand dy = both.Input(dy_values), w = both.Input(w_values);
    const Operand dh =
        both.Output<T>({m, k}, WriteMode::kAssign, GeluError(4) * (largest + error) + AfterProduct<T>(error, largest));
    const Operand h = both.Input(Random<T>({m, k}, 3, 4));
    both.AllowPlacementToMatter().Run([&](Stream s, const Memory& memory) {
      return GeluLinearBackward(s, memory.view<T>(dy), memory.view<T>(h), memory.view<T>(w), memory.view<T>(dh));
    });
  }
}

// Otherwise the tests above could pass without one product that has GELU in its kernel.
TEST(CudaGemmGeluTest, CublasLtTakesGeluWhereRowsAndAddressesAreAligned) {
  Device& device = Device::Get();
  constexpr DType kDtype = DType::kBFloat16;
  constexpr int64_t kExtent = 512, kBytes = kExtent * kExtent * int64_t{sizeof(BFloat16)};
  std::byte* const memory = device.memory(4 * kBytes + sizeof(BFloat16));
  DeviceGemm gemm = {.m = kExtent,
                     .n = kExtent,
                     .k = kExtent,
                     .a = {kDtype, memory},
                     .b = {kDtype, memory + kBytes},
                     .c = {kDtype, memory + 2 * kBytes}};
  std::byte* h = memory + 3 * kBytes;
  const auto expect = [&](bool want) {
    DeviceKernels& kernels = device.stream().device_kernels();
    for (const bool backward : {false, true}) {
      gemm.transpose_b = backward ? Transpose::kNo : Transpose::kYes;
      bool fused = !want;
      const absl::Status status = device.Run([&] {
        const absl::StatusOr<bool> done =
            backward ? kernels.GemmGeluBackward(gemm, {kDtype, h}) : kernels.GemmGelu(gemm, {kDtype, h});
        if (done.ok()) fused = *done;
        return done.status();
      });
      EXPECT_EQ(status, absl::OkStatus());
      EXPECT_EQ(fused, want) << (backward ? "backward" : "forward");
    }
  };
  expect(true);
  h += sizeof(BFloat16);
  expect(false);
  h -= sizeof(BFloat16);
  gemm.n = kExtent - 1;
  expect(false);
  gemm.n = kExtent;
  gemm.k = 0;
  expect(false);
}

}  // namespace
}  // namespace reprise::kernels
