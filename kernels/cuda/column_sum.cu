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

cudaError_t LaunchColumnSum(const LaunchPlace& place, const ColumnSumArguments& a) {
  return WithElements(a.x.dtype, a.sums.dtype, [&](auto type, auto sum_type) {
    using T = decltype(type);
    using Out = decltype(sum_type);
    constexpr int N = kPerVector<T>;
    const T* data = a.x.as<T>();
    return WithConstant(a.columns % N == 0 && IsAligned<N>(data), [&](auto aligned) {
      const LoadRow<N, decltype(aligned)::value, T> load = {data, a.columns};
      return SumRows<N>(place, a.rows, a.columns, load, a.sums_count, a.sums.as<Out>(), a.sums.add());
    });
  });
}

}  // namespace reprise::kernels
