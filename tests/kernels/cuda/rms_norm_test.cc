#include "reprise/kernels/rms_norm.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

constexpr float kRmsEpsilon = 1e-3f;

template <class D>
class CudaRmsNormTest : public ::testing::Test {};
TYPED_TEST_SUITE(CudaRmsNormTest, AllDtypes);

struct Extents {
  int64_t rows, columns;
};

TYPED_TEST(CudaRmsNormTest, ForwardAndGradients) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const auto& [rows, columns] :
       {Extents{0, 5}, Extents{1, 1}, Extents{3, 7}, Extents{33, 8}, Extents{65, 127}, Extents{70, 768},
        Extents{1000, 264}, Extents{9, 8192}, Extents{5, 20001}, Extents{3000, 33}}) {
    const Tensor<T> x_values = Random<T>({rows, columns}, 1), gains = Random<T>({columns}, 2);
    // The factor's relative error is that of the sum of squares; factors are at most 1 / sqrt(epsilon).
    const double error = SumError(columns) / columns / std::sqrt(kRmsEpsilon);
    HostComparison forward(absl::StrCat("RmsNorm of ", rows, " x ", columns));
    const Operand x = forward.Input(x_values), gain = forward.Input(gains);
    const Operand y = forward.Output<T>({rows, columns}, WriteMode::kAssign, error);
    forward.Run([&](Stream s, const Memory& m) {
      return RmsNorm(s, m.view<T>(x), m.view<T>(gain), m.view<T>(y), kRmsEpsilon);
    });
    ForEachMode([&, rows = rows, columns = columns](WriteMode mode) {
      HostComparison both(absl::StrCat("RmsNormBackward of ", rows, " x ", columns, ", ", NameOf(mode)));
      const Operand dy = both.Input(Random<T>({rows, columns}, 3)), x = both.Input(x_values), gain = both.Input(gains);
      const Operand dx = both.Output<T>({rows, columns}, mode, 4 * error / std::sqrt(kRmsEpsilon));
      const Operand dgain = both.Output<G>({columns}, mode, rows * error + SumError(rows, 2));
      both.Run([&](Stream s, const Memory& m) {
        return RmsNormBackward(s, m.view<T>(dy), m.view<T>(x), m.view<T>(gain), kRmsEpsilon, m.gradient<T>(dx, mode),
                               m.gradient<G>(dgain, mode));
      });
    });
  }
}

TYPED_TEST(CudaRmsNormTest, MakesOnlyTheGradientsThatAreWanted) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  const double error = SumError(40) / 40 / kRmsEpsilon;
  HostComparison both("RmsNormBackward of 50 x 40, dx and dgain apart");
  const Operand dy = both.Input(Random<T>({50, 40}, 3)), x = both.Input(Random<T>({50, 40}, 1)),
                gain = both.Input(Random<T>({40}, 2));
  const Operand dx = both.Output<T>({50, 40}, WriteMode::kAssign, 4 * error);
  const Operand dgain = both.Output<G>({40}, WriteMode::kAssign, 50 * error + SumError(50, 2));
  both.Run([&](Stream s, const Memory& m) {
    absl::Status status = RmsNormBackward(s, m.view<T>(dy), m.view<T>(x), m.view<T>(gain), kRmsEpsilon,
                                          m.gradient<T>(dx, WriteMode::kAssign), Gradient<G>());
    status.Update(RmsNormBackward(s, m.view<T>(dy), m.view<T>(x), m.view<T>(gain), kRmsEpsilon, Gradient<T>(),
                                  m.gradient<G>(dgain, WriteMode::kAssign)));
    status.Update(
        RmsNormBackward(s, m.view<T>(dy), m.view<T>(x), m.view<T>(gain), kRmsEpsilon, Gradient<T>(), Gradient<G>()));
    return status;
  });
}

}  // namespace
}  // namespace reprise::kernels
