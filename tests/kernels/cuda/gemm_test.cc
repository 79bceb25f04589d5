#include "reprise/kernels/gemm.h"

#include "absl/strings/str_cat.h"
#include "reprise/kernels/linear.h"
#include "tests/kernels/cuda/twin.h"

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
          Twin twin(absl::StrCat("Gemm of m ", m, ", n ", n, ", k ", k, at ? ", a transposed" : "",
                                 bt ? ", b transposed" : "", ", ", std::string(Name(DTypeOf<T>::value)), " to ",
                                 std::string(Name(DTypeOf<C>::value)), ", ", NameOf(mode)));
          const Operand a = twin.Input(Random<T>(at ? Shape{k, m} : Shape{m, k}, ++seed));
          const Operand b = twin.Input(Random<T>(bt ? Shape{n, k} : Shape{k, n}, ++seed));
          const Operand c = twin.Output<C>({m, n}, mode, ProductError<C>(k, mode));
          twin.AllowPlacementToMatter().Run([&](Stream s, const Memory& memory) {
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
    Twin twin(absl::StrCat("Linear and LinearBackward of ", m, " x ", k, " to ", n));
    const Operand x = twin.Input(Random<T>({m, k}, 1)), w = twin.Input(Random<T>({n, k}, 2)),
                  dy = twin.Input(Random<T>({m, n}, 3));
    const Operand y = twin.Output<T>({m, n}, WriteMode::kAssign, SumError(k));
    const Operand dx = twin.Output<T>({m, k}, WriteMode::kAdd, ProductError<T>(n, WriteMode::kAdd));
    const Operand dw = twin.Output<G>({n, k}, WriteMode::kAssign, SumError(m));
    twin.AllowPlacementToMatter().Run([&](Stream s, const Memory& memory) {
      absl::Status status = Linear(s, memory.view<T>(x), memory.view<T>(w), memory.view<T>(y));
      status.Update(LinearBackward(s, memory.view<T>(dy), memory.view<T>(x), memory.view<T>(w),
                                   memory.gradient<T>(dx, WriteMode::kAdd),
                                   memory.gradient<G>(dw, WriteMode::kAssign)));
      return status;
    });
  }
}

}  // namespace
}  // namespace reprise::kernels
