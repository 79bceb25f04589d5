// Copy, Add, GeluTanh, Relu and what is made of them: Cast, AddBackward, AddBias, AddPositions.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/bias.h"
#include "reprise/kernels/cast.h"
#include "reprise/kernels/embedding.h"
#include "reprise/kernels/residual.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

template <class D>
class CudaElementwiseTest : public ::testing::Test {};
TYPED_TEST_SUITE(CudaElementwiseTest, AllDtypes);

template <class T>
class CudaActivationTest : public ::testing::Test {};
using ActivationDtypes = testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaActivationTest, ActivationDtypes);

std::vector<int64_t> Counts() {
  std::vector<int64_t> counts(std::begin(kCounts), std::end(kCounts));
  counts.push_back(kLargeCount);
  return counts;
}

template <class T>
std::string Label(const char* kernel, int64_t count, WriteMode mode) {
  return absl::StrCat(kernel, " of ", count, " ", std::string(Name(DTypeOf<T>::value)), ", ", NameOf(mode));
}

// Around every value of bfloat16: itself, its neighbours in float, the tie above it and that one's neighbours; so
// denormals, the largest values, infinities and NaN of many kinds too.
Tensor<float> EdgesOfRounding() {
  Tensor<float> values({int64_t{6} << 16});
  auto value = values.data.begin();
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      *value++ = std::bit_cast<float>(high << 16 | low);
    }
  }
  return values;
}

class CudaCastTest : public ::testing::Test {};

template <class From, class To>
void ExpectCastEqual(const Tensor<From>& values) {
  const int64_t count = values.size();
  HostComparison both(absl::StrCat("Cast of ", count));
  const Operand from = both.Input(values), to = both.ExactOutput<To>({count}, WriteMode::kAssign);
  both.Run([&](Stream stream, const Memory& m) {
    return Cast(stream, DTypeOf<From>::value, m.data<From>(from), DTypeOf<To>::value, m.data<To>(to), count);
  });
}

TEST_F(CudaCastTest, EqualsTheHostBitForBit) {
  for (const int64_t count : Counts()) {
    ExpectCastEqual<float, float>(Random<float>({count}, 1));
    ExpectCastEqual<float, BFloat16>(Random<float>({count}, 2));
    ExpectCastEqual<BFloat16, float>(Random<BFloat16>({count}, 3));
    ExpectCastEqual<BFloat16, BFloat16>(Random<BFloat16>({count}, 4));
  }
  ExpectCastEqual<float, BFloat16>(EdgesOfRounding());
}

TYPED_TEST(CudaActivationTest, AddAndItsBackwardEqualTheHostBitForBit) {
  using T = TypeParam;
  for (const int64_t count : Counts()) {
    HostComparison add(absl::StrCat("Add of ", count));
    const Operand a = add.Input(Random<T>({count}, 1)), b = add.Input(Random<T>({count}, 2));
    const Operand y = add.ExactOutput<T>({count}, WriteMode::kAssign);
    add.Run([&](Stream s, const Memory& m) { return Add(s, m.view<T>(a), m.view<T>(b), m.view<T>(y)); });
    ForEachMode([&](WriteMode mode) {
      HostComparison backward(Label<T>("AddBackward", count, mode));
      const Operand dy = backward.Input(Random<T>({count}, 3));
      const Operand da = backward.ExactOutput<T>({count}, mode), db = backward.ExactOutput<T>({count}, mode);
      backward.Run([&](Stream s, const Memory& m) {
        return AddBackward(s, m.view<T>(dy), m.gradient<T>(da, mode), m.gradient<T>(db, mode));
      });
    });
  }
}

TYPED_TEST(CudaActivationTest, GeluTanh) {
  using T = TypeParam;
  for (const int64_t count : Counts()) {
    const Tensor<T> values = Random<T>({count}, 1, 8);
    HostComparison forward(absl::StrCat("GeluTanh of ", count));
    const Operand x = forward.Input(values), y = forward.Output<T>({count}, WriteMode::kAssign, GeluError(8));
    forward.Run([&](Stream s, const Memory& m) { return GeluTanh(s, m.view<T>(x), m.view<T>(y)); });
    ForEachMode([&](WriteMode mode) {
      HostComparison backward(Label<T>("GeluTanhBackward", count, mode));
      const Operand dy = backward.Input(Random<T>({count}, 2)), x = backward.Input(values);
      const Operand dx = backward.Output<T>({count}, mode, GeluError(8));
      backward.Run([&](Stream s, const Memory& m) {
        return GeluTanhBackward(s, m.view<T>(dy), m.view<T>(x), m.gradient<T>(dx, mode));
      });
    });
  }
}

TYPED_TEST(CudaActivationTest, ReluEqualsTheHostBitForBit) {
  using T = TypeParam;
  for (const int64_t count : Counts()) {
    Tensor<T> values = Random<T>({count}, 1);
    if (count > 2) values.data[1] = static_cast<T>(0.0f);
    HostComparison forward(absl::StrCat("Relu of ", count));
    const Operand x = forward.Input(values), y = forward.ExactOutput<T>({count}, WriteMode::kAssign);
    forward.Run([&](Stream s, const Memory& m) { return Relu(s, m.view<T>(x), m.view<T>(y)); });
    ForEachMode([&](WriteMode mode) {
      HostComparison backward(Label<T>("ReluBackward", count, mode));
      const Operand dy = backward.Input(Random<T>({count}, 2)), x = backward.Input(values);
      const Operand dx = backward.ExactOutput<T>({count}, mode);
      backward.Run([&](Stream s, const Memory& m) {
        return ReluBackward(s, m.view<T>(dy), m.view<T>(x), m.gradient<T>(dx, mode));
      });
    });
  }
}

// NaN stays, and so do the ends of the range.
TYPED_TEST(CudaActivationTest, ActivationsOfSpecialValues) {
  using T = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity();
  Tensor<T> values({8});
  const float special[] = {0.0f, -0.0f, infinity, -infinity, infinity - infinity, 1e30f, -1e30f, 30.0f};
  std::transform(std::begin(special), std::end(special), values.data.begin(),
                 [](float v) { return static_cast<T>(v); });
  HostComparison both("activations of special values");
  const Operand x = both.Input(values), dy = both.Input(Random<T>({8}, 1));
  const Operand relu = both.Output<T>({8}, WriteMode::kAssign, 0), gelu = both.Output<T>({8}, WriteMode::kAssign, 1e-5);
  const Operand drelu = both.Output<T>({8}, WriteMode::kAssign, 0),
                dgelu = both.Output<T>({8}, WriteMode::kAssign, 1e-5);
  both.Run([&](Stream s, const Memory& m) {
    absl::Status status = Relu(s, m.view<T>(x), m.view<T>(relu));
    status.Update(GeluTanh(s, m.view<T>(x), m.view<T>(gelu)));
    status.Update(ReluBackward(s, m.view<T>(dy), m.view<T>(x), m.gradient<T>(drelu, WriteMode::kAssign)));
    status.Update(GeluTanhBackward(s, m.view<T>(dy), m.view<T>(x), m.gradient<T>(dgelu, WriteMode::kAssign)));
    return status;
  });
}

struct Extents {
  int64_t rows, columns;
};

TYPED_TEST(CudaElementwiseTest, AddBias) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const auto& [rows, columns] :
       {Extents{0, 5}, Extents{1, 1}, Extents{5, 0}, Extents{31, 7}, Extents{33, 8}, Extents{64, 768},
        Extents{1000, 257}, Extents{4100, 264}, Extents{70001, 3}, Extents{513, 2048}}) {
    HostComparison forward(absl::StrCat("AddBias of ", rows, " x ", columns));
    const Operand x = forward.Input(Random<T>({rows, columns}, 1)), bias = forward.Input(Random<T>({columns}, 2));
    const Operand y = forward.ExactOutput<T>({rows, columns}, WriteMode::kAssign);
    forward.Run([&](Stream s, const Memory& m) { return AddBias(s, m.view<T>(x), m.view<T>(bias), m.view<T>(y)); });
    ForEachMode([&, rows = rows, columns = columns](WriteMode mode) {
      HostComparison backward(absl::StrCat("AddBiasBackward of ", rows, " x ", columns, ", ", NameOf(mode)));
      const Operand dy = backward.Input(Random<T>({rows, columns}, 3));
      const Operand dx = backward.ExactOutput<T>({rows, columns}, mode);
      const Operand dbias = backward.Output<G>({columns}, mode, SumError(rows));
      backward.Run([&](Stream s, const Memory& m) {
        return AddBiasBackward(s, m.view<const T>(dy), m.gradient<T>(dx, mode), m.gradient<G>(dbias, mode));
      });
    });
  }
}

TYPED_TEST(CudaElementwiseTest, AddPositions) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{5, 8}, Shape{0, 5, 7}, Shape{3, 64, 33},
                             Shape{2, 128, 768}, Shape{2, 1024, 1040}, Shape{70, 2, 3}}) {
    const int64_t time = shape[shape.size() - 2], width = shape.back(), context = time + 3;
    HostComparison forward(absl::StrCat("AddPositions of ", NumElements(shape), " in rows of ", width));
    const Operand x = forward.Input(Random<T>(shape, 1)), table = forward.Input(Random<T>({context, width}, 2));
    const Operand y = forward.ExactOutput<T>(shape, WriteMode::kAssign);
    forward.Run(
        [&](Stream s, const Memory& m) { return AddPositions(s, m.view<T>(x), m.view<T>(table), m.view<T>(y)); });
    ForEachMode([&](WriteMode mode) {
      HostComparison backward(
          absl::StrCat("AddPositionsBackward of ", NumElements(shape), " in rows of ", width, ", ", NameOf(mode)));
      const Operand dy = backward.Input(Random<T>(shape, 3)), dx = backward.ExactOutput<T>(shape, mode);
      const Operand dtable = backward.Output<G>({context, width}, mode, SumError(NumElements(shape) / (time * width)));
      backward.Run([&](Stream s, const Memory& m) {
        return AddPositionsBackward(s, m.view<const T>(dy), m.gradient<T>(dx, mode), m.gradient<G>(dtable, mode));
      });
    });
  }
}

}  // namespace
}  // namespace reprise::kernels
