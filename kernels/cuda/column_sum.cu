// The gradient of a vector that was added to every row.
#include "kernels/cuda/column_sum.cuh"

namespace reprise::kernels {
namespace {

template <int N, bool kAligned, class T>
struct LoadRow {
  const T* x;
  int64_t columns;

  __device__ void operator()(int64_t row, int64_t column, float (&values)[N]) const {
    LoadFloats<N, kAligned>(x + row * columns, column, columns, values);
  }
};

}  // namespace

cudaError_t LaunchColumnSum(cudaStream_t stream, int64_t rows, int64_t columns, Source x, int64_t sums_count,
                            Target sums, float* workspace) {
  return WithElements(x.element, sums.element, [&](auto type, auto sum_type) {
    using T = decltype(type);
    using Out = decltype(sum_type);
    constexpr int N = kPerVector<T>;
    const T* data = static_cast<const T*>(x.data);
    return WithConstant(columns % N == 0 && IsAligned<N>(data), [&](auto aligned) {
      const LoadRow<N, decltype(aligned)::value, T> load = {data, columns};
      return SumRows<N>(stream, rows, columns, load, sums_count, static_cast<Out*>(sums.data), sums.add, workspace);
    });
  });
}

}  // namespace reprise::kernels
