#include "reprise/kernels/cross_entropy.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

template <class T>
class CudaCrossEntropyTest : public ::testing::Test {};
using ActivationDtypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaCrossEntropyTest, ActivationDtypes);

template <class T>
void ExpectSameAsHost(const Tensor<T>& logit_values, const Tensor<int32_t>& label_values) {
  const int64_t rows = label_values.size(), classes = logit_values.shape.back();
  // exp is good to 2^-22; the sum's relative error is that of adding positive terms.
  const double relative = 0x1p-22 + classes * 0x1p-24;
  HostComparison forward(absl::StrCat("CrossEntropy of ", rows, " x ", classes));
  const Operand logits = forward.Input(logit_values), labels = forward.Input(label_values);
  const Operand loss = forward.Output<float>({}, WriteMode::kAssign, relative + 16 * 0x1p-24);
  forward.Run([&](Stream s, const Memory& m) {
    return CrossEntropy(s, m.view<const T>(logits), m.view<const int32_t>(labels), m.view<float>(loss));
  });
  ForEachMode([&](WriteMode mode) {
    HostComparison both(absl::StrCat("CrossEntropyBackward of ", rows, " x ", classes, ", ", NameOf(mode)));
    const Operand dloss = both.Input(Tensor<float>({}, 4)), logits = both.Input(logit_values),
                  labels = both.Input(label_values);
    const Operand dlogits = both.Output<T>({rows, classes}, mode, 4 * relative);
    both.Run([&](Stream s, const Memory& m) {
      return CrossEntropyBackward(s, m.view<const float>(dloss), m.view<T>(logits), m.view<const int32_t>(labels),
                                  m.gradient<T>(dlogits, mode));
    });
  });
}

struct Extents {
  int64_t rows, classes;
};

TYPED_TEST(CudaCrossEntropyTest, LossAndGradient) {
  for (const auto& [rows, classes] : {Extents{1, 1}, Extents{7, 3}, Extents{33, 8}, Extents{15, 65}, Extents{63, 1021},
                                      Extents{5, 4096}, Extents{9, 50257}, Extents{6, 50304}, Extents{3000, 10}}) {
    ExpectSameAsHost(Random<TypeParam>({rows, classes}, 1, 6), RandomIds({rows}, static_cast<int32_t>(classes), 2));
  }
}

// More rows than the workspace holds losses of.
TYPED_TEST(CudaCrossEntropyTest, AnyNumberOfRows) {
  const int64_t rows = (int64_t{1} << 20) + 77;
  ExpectSameAsHost(Random<TypeParam>({rows, 2}, 1, 6), RandomIds({rows}, 2, 2));
}

TYPED_TEST(CudaCrossEntropyTest, SpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto filled = [](float value) { return Tensor<TypeParam>({2, 70}, value); };
  const Tensor<int32_t> labels({2}, 3);
  ExpectSameAsHost(filled(1e30f), labels);
  ExpectSameAsHost(filled(-infinity), labels);
  ExpectSameAsHost(filled(infinity), labels);
  Tensor<TypeParam> masked = Random<TypeParam>({2, 70}, 1);
  std::fill(masked.data.begin() + 8, masked.data.begin() + 66, static_cast<TypeParam>(-infinity));
  ExpectSameAsHost(masked, labels);
  Tensor<TypeParam> with_nan = Random<TypeParam>({2, 70}, 1);
  with_nan.data[69] = static_cast<TypeParam>(nan);
  ExpectSameAsHost(with_nan, labels);
  for (const int32_t bad : {-1, 70, std::numeric_limits<int32_t>::min()}) {
    Tensor<int32_t> out_of_range({2}, 1);
    out_of_range.data[1] = bad;
    ExpectSameAsHost(Random<TypeParam>({2, 70}, 1), out_of_range);
  }
}

}  // namespace
}  // namespace reprise::kernels
