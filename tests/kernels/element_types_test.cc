// Which views each kernel takes: of elements that could be written, where it only reads, and of no other element types
// than those that it was compiled for.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/attention.h"
#include "reprise/kernels/bias.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/embedding.h"
#include "reprise/kernels/gemm.h"
#include "reprise/kernels/linear.h"
#include "reprise/kernels/linear_gelu.h"
#include "reprise/kernels/residual.h"
#include "reprise/kernels/rms_norm.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::kernels {
namespace {

using reprise::testing::StatusIs;

template <class T>
using Mutable = T;
template <class T>
using Const = const T;

// Arguments without memory, which every kernel refuses. x, sum and ids are read, and are views of Read elements.
template <class T, class G, template <class> class Read = Mutable>
struct Arguments {
  Stream s = HostStream();
  int64_t extent = 1;
  TensorView<Read<T>> x = {nullptr, {&extent, 1}};
  TensorView<Read<float>> sum = {nullptr, {&extent, 1}};
  TensorView<Read<int32_t>> ids = {nullptr, {&extent, 1}};
  TensorView<T> y = {nullptr, {&extent, 1}};
  TensorView<float> f = {nullptr, {&extent, 1}};
  Gradient<T> dx;
  Gradient<G> dw;
};

template <class Call>
struct Kernel {
  const char* name;
  Call call;
};
template <class Call>
Kernel(const char*, Call) -> Kernel<Call>;

#define CALL(...) [](const auto& a) -> decltype(__VA_ARGS__) { return __VA_ARGS__; }

auto Kernels() {
  return std::tuple{
      Kernel{"Add", CALL(Add(a.s, a.x, a.x, a.y))},
      Kernel{"AddBackward", CALL(AddBackward(a.s, a.x, a.dx, a.dx))},
      Kernel{"AddBias", CALL(AddBias(a.s, a.x, a.x, a.y))},
      Kernel{"AddBiasBackward", CALL(AddBiasBackward(a.s, a.x, a.dx, a.dw))},
      Kernel{"AddPositions", CALL(AddPositions(a.s, a.x, a.x, a.y))},
      Kernel{"AddPositionsBackward", CALL(AddPositionsBackward(a.s, a.x, a.dx, a.dw))},
      Kernel{"CausalAttention", CALL(CausalAttention(a.s, a.x, 1, a.y, a.f))},
      Kernel{"CausalAttentionBackward", CALL(CausalAttentionBackward(a.s, a.x, a.x, 1, a.sum, a.dx))},
      Kernel{"CrossEntropy", CALL(CrossEntropy(a.s, a.x, a.ids, a.f))},
      Kernel{"CrossEntropyBackward", CALL(CrossEntropyBackward(a.s, a.sum, a.x, a.ids, a.dx))},
      Kernel{"Embedding", CALL(Embedding(a.s, a.ids, a.x, a.y))},
      Kernel{"EmbeddingBackward", CALL(EmbeddingBackward(a.s, a.x, a.ids, a.dw))},
      Kernel{"GeluLinearBackward", CALL(GeluLinearBackward(a.s, a.x, a.x, a.x, a.y))},
      Kernel{"GeluTanh", CALL(GeluTanh(a.s, a.x, a.y))},
      Kernel{"GeluTanhBackward", CALL(GeluTanhBackward(a.s, a.x, a.x, a.dx))},
      Kernel{"Gemm", CALL(Gemm(a.s, a.x, Transpose::kNo, a.x, Transpose::kNo, WriteMode::kAssign, a.dw))},
      Kernel{"Linear", CALL(Linear(a.s, a.x, a.x, a.y))},
      Kernel{"LinearBackward", CALL(LinearBackward(a.s, a.x, a.x, a.x, a.dx, a.dw))},
      Kernel{"LinearGelu", CALL(LinearGelu(a.s, a.x, a.x, a.y, a.y))},
      Kernel{"Relu", CALL(Relu(a.s, a.x, a.y))},
      Kernel{"ReluBackward", CALL(ReluBackward(a.s, a.x, a.x, a.dx))},
      Kernel{"RmsNorm", CALL(RmsNorm(a.s, a.x, a.x, a.y, 0.0f))},
      Kernel{"RmsNormBackward", CALL(RmsNormBackward(a.s, a.x, a.x, a.x, 0.0f, a.dx, a.dw))},
  };
}

template <class Body>
void ForEachKernel(const Body& body) {
  std::apply([&](const auto&... kernels) { (body(kernels), ...); }, Kernels());
}

template <class T, class G, template <class> class Read>
void ExpectCallable() {
  ForEachKernel([](const auto& kernel) {
    if constexpr (std::is_invocable_v<decltype(kernel.call), Arguments<T, G, Read>>) {
      EXPECT_THAT(kernel.call(Arguments<T, G, Read>()),
                  StatusIs(absl::StatusCode::kInvalidArgument, ::testing::StartsWith(kernel.name)));
    } else {
      ADD_FAILURE() << kernel.name << " takes no views of elements that "
                    << (std::is_same_v<Read<T>, T> ? "could" : "could not") << " be written";
    }
  });
}

TEST(ElementTypesTest, WhatIsReadMayBeAViewThatCouldBeWritten) {
  ExpectCallable<float, float, Mutable>();
  ExpectCallable<BFloat16, BFloat16, Mutable>();
  ExpectCallable<BFloat16, float, Mutable>();
}

TEST(ElementTypesTest, WhatIsReadMayBeAViewToConst) {
  ExpectCallable<float, float, Const>();
  ExpectCallable<BFloat16, BFloat16, Const>();
  ExpectCallable<BFloat16, float, Const>();
}

TEST(ElementTypesTest, OtherElementsAreRefusedByTheCompiler) {
  ForEachKernel([](const auto& kernel) {
    const bool takes_double = std::is_invocable_v<decltype(kernel.call), Arguments<double, double>>;
    const bool takes_integers = std::is_invocable_v<decltype(kernel.call), Arguments<int32_t, int32_t>>;
    EXPECT_FALSE(takes_double || takes_integers) << kernel.name;
  });
  // What sums up over float is float.
  ForEachKernel([](const auto& kernel) {
    if (kernel.name != std::string("LinearBackward")) return;
    EXPECT_FALSE((std::is_invocable_v<decltype(kernel.call), Arguments<float, BFloat16>>));
  });
}

TEST(ElementTypesTest, OneOfTwoOperandsMayBeConst) {
  const Tensor<float> a({1, 2}, 3), b({2, 1}, 5);
  Tensor<float> mutable_a = a, mutable_b = b, c({1, 1});
  const auto expect_product = [&](const auto& x, const auto& y) {
    c.data[0] = 0;
    EXPECT_EQ(Gemm(HostStream(), x, Transpose::kNo, y, Transpose::kNo, WriteMode::kAssign, c.view()), absl::OkStatus());
    EXPECT_EQ(c.data[0], 30);
  };
  expect_product(a.input(), b.input());
  expect_product(mutable_a.view(), b.input());
  expect_product(a.input(), mutable_b.view());
  expect_product(mutable_a.view(), mutable_b.view());
}

// The list above is of all kernels with elements of a type of their own. Tests run in the project's root.
TEST(ElementTypesTest, NoKernelIsLeftOut) {
  std::set<std::string> declared, listed;
  const std::regex declaration(R"(template <[^;{]*>\s+(?:requires [^;{]*\s)?absl::Status (\w+)\()");
  for (const auto& entry : std::filesystem::directory_iterator("kernels/include/reprise/kernels")) {
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
      declared.insert((*it)[1].str());
    }
  }
  ForEachKernel([&](const auto& kernel) { listed.insert(kernel.name); });
  EXPECT_EQ(declared, listed);
}

}  // namespace
}  // namespace reprise::kernels
