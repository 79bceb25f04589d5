// Pack and Cast.
#include "reprise/kernels/pack.h"

#include "reprise/kernels/cast.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {
namespace {

template <class F, class W>
struct Pair {
  using From = F;
  using To = W;
};
template <class P>
class PackTest : public testing::Test {};
using Pairs =
    testing::Types<Pair<float, float>, Pair<float, BFloat16>, Pair<BFloat16, float>, Pair<BFloat16, BFloat16>>;
TYPED_TEST_SUITE(PackTest, Pairs);

// Every value of `to` is that of `from`, rounded once.
template <class From, class To>
void ExpectRounded(From from, To to) {
  ASSERT_EQ(static_cast<float>(static_cast<To>(static_cast<float>(from))), static_cast<float>(to));
}

TYPED_TEST(PackTest, CopiesStridedRowsToTheOffsetAndNothingElse) {
  using From = typename TypeParam::From;
  using To = typename TypeParam::To;
  struct Case {
    int64_t rows, columns, stride;
  };
  for (const auto& [rows, columns, stride] :
       {Case{1, 1, 1}, Case{7, 63, 65}, Case{5, 13, 13}, Case{2, 0, 3}, Case{1100, 65, 67}}) {
    constexpr int64_t kOffset = 5, kAfter = 3;
    Tensor<From> gradient = Random<From>({rows, stride}, 1);
    Tensor<To> reduce_buffer({kOffset + rows * columns + kAfter});
    ASSERT_EQ(Pack(HostStream(), {.gradient_dtype = DTypeOf<From>::value,
                                  .gradient = gradient.data.data(),
                                  .rows = rows,
                                  .columns = columns,
                                  .row_stride = stride,
                                  .reduce_dtype = DTypeOf<To>::value,
                                  .reduce_buffer = reduce_buffer.data.data(),
                                  .reduce_element = kOffset}),
              absl::OkStatus());
    for (int64_t i = 0; i < reduce_buffer.size(); ++i) {
      const int64_t element = i - kOffset;
      if (element < 0 || element >= rows * columns) {
        ASSERT_TRUE(std::isnan(static_cast<float>(reduce_buffer.data[i]))) << i;
      } else {
        ExpectRounded(gradient.data[element / columns * stride + element % columns], reduce_buffer.data[i]);
      }
    }
  }
}

TYPED_TEST(PackTest, Cast) {
  using From = typename TypeParam::From;
  using To = typename TypeParam::To;
  for (const int64_t count : {0, 1, 7, 1025, 70001}) {
    const Tensor<From> from = Random<From>({count}, 1);
    Tensor<To> to({count});
    ASSERT_EQ(Cast(HostStream(), DTypeOf<From>::value, from.data.data(), DTypeOf<To>::value, to.data.data(), count),
              absl::OkStatus());
    for (int64_t i = 0; i < count; ++i) ExpectRounded(from.data[i], to.data[i]);
  }
}

TEST(PackShapeTest, RefusesArgumentsThatDoNotFit) {
  float value = 0;
  PackArguments arguments = {.gradient = &value, .rows = 2, .columns = 7, .row_stride = 6, .reduce_buffer = &value};
  ExpectInvalid(Pack(HostStream(), arguments), {"Pack", "row_stride: 6", "at least 7"});
  arguments.row_stride = 7;
  arguments.reduce_buffer = nullptr;
  ExpectInvalid(Pack(HostStream(), arguments), {"reduce_buffer is empty"});
  arguments.reduce_buffer = &value;
  arguments.reduce_element = -1;
  ExpectInvalid(Pack(HostStream(), arguments), {"reduce_element: -1"});
  ExpectInvalid(Cast(HostStream(), DType::kUInt8, &value, DType::kFloat32, &value, 1), {"Cast", "from_dtype"});
  ExpectInvalid(Cast(HostStream(), DType::kFloat32, nullptr, DType::kFloat32, &value, 1), {"from is empty"});
}

}  // namespace
}  // namespace reprise::kernels
