#include "reprise/kernels/embedding.h"

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/host_comparison.h"

namespace reprise::kernels {
namespace {

template <class D>
class CudaEmbeddingTest : public ::testing::Test {};
TYPED_TEST_SUITE(CudaEmbeddingTest, AllDtypes);

struct Case {
  int64_t count, entries, width;
  int64_t used;  // ids are below this
};

// Both ways the arithmetic is the host's: copies, and sums in the order of the ids.
TYPED_TEST(CudaEmbeddingTest, EqualsTheHostBitForBit) {
  using T = typename TypeParam::Activation;
  using G = typename TypeParam::ParameterGradient;
  for (const auto& [count, entries, width, used] :
       {Case{0, 5, 3, 5}, Case{1, 1, 1, 1}, Case{5, 3, 0, 3}, Case{15, 7, 13, 7}, Case{33, 8, 8, 8},
        Case{520, 63, 130, 63}, Case{1025, 300, 768, 300}, Case{700, 5000, 40, 5000}, Case{8192, 50257, 24, 50257},
        Case{3000, 17, 64, 1}, Case{2000, 2000, 16, 3}, Case{40, 7, 2052, 7}}) {
    Tensor<int32_t> id_values = RandomIds({count}, static_cast<int32_t>(used), 1);
    // Some ids out of range.
    for (int64_t i = 5; i < count; i += 97) {
      id_values.data[i] = i % 2 == 0 ? -1 : static_cast<int32_t>(entries) + (i % 3 == 0 ? 0 : 1000000000);
    }
    HostComparison forward(absl::StrCat("Embedding of ", count, " ids in ", entries, " x ", width));
    const Operand ids = forward.Input(id_values), table = forward.Input(Random<T>({entries, width}, 2));
    const Operand y = forward.ExactOutput<T>({count, width}, WriteMode::kAssign);
    forward.Run([&](Stream s, const Memory& m) {
      return Embedding(s, m.view<const int32_t>(ids), m.view<T>(table), m.view<T>(y));
    });
    ForEachMode([&, count = count, entries = entries, width = width](WriteMode mode) {
      HostComparison both(
          absl::StrCat("EmbeddingBackward of ", count, " ids in ", entries, " x ", width, ", ", NameOf(mode)));
      const Operand dy = both.Input(Random<T>({count, width}, 3)), ids = both.Input(id_values);
      const Operand dtable = both.ExactOutput<G>({entries, width}, mode);
      both.Run([&](Stream s, const Memory& m) {
        return EmbeddingBackward(s, m.view<const T>(dy), m.view<const int32_t>(ids), m.gradient<G>(dtable, mode));
      });
    });
  }
}

}  // namespace
}  // namespace reprise::kernels
