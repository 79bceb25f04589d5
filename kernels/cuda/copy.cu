// Values in another element type or place.
#include "kernels/cuda/map.cuh"

namespace reprise::kernels {
namespace {

struct Identity {
  __device__ float operator()(float x) const { return x; }
};

// Packs of N elements, `row_packs` to a row of `from`.
template <int N, class A, class Out>
__global__ void __launch_bounds__(kMapThreads)
    CopyRowsKernel(int64_t packs, int64_t row_packs, int64_t row_stride, const A* from, Out* to) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kMapThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x; i < packs; i += threads) {
    const int64_t column = Modulo(i, row_packs);
    const int64_t row = (i - column) / row_packs;
    float values[N];
    LoadFloats<N, true>(from + row * row_stride, column * N, 0, values);
    StoreFloats<N, true>(values, i * N, 0, /*add=*/false, to);
  }
}

template <int N, class A, class Out>
cudaError_t CopyRows(cudaStream_t stream, int64_t rows, int64_t columns, int64_t row_stride, const A* from, Out* to) {
  const int64_t packs = rows * columns / N;
  return Launch(stream, Blocks(CeilDivide(packs, kMapThreads)), kMapThreads, 0, CopyRowsKernel<N, A, Out>, packs,
                columns / N, row_stride, from, to);
}

// Calls body(From(), To()).
template <class Body>
cudaError_t WithFromAndTo(DType from, DType to, const Body& body) {
  return WithElement(
      from, [&](auto from_type) { return WithElement(to, [&](auto to_type) { return body(from_type, to_type); }); });
}

}  // namespace

cudaError_t LaunchCopy(const LaunchPlace& place, const CopyArguments& a) {
  return WithFromAndTo(a.from.dtype, a.to.dtype, [&](auto from_type, auto to_type) {
    using A = decltype(from_type);
    using Out = decltype(to_type);
    return Map<Second::kNone, A, Out>(place.stream, a.count, a.from.as<A>(), nullptr, 0, a.to.as<Out>(), a.to.add(),
                                      Identity());
  });
}

cudaError_t LaunchPack(const LaunchPlace& place, const PackArguments& a) {
  return WithFromAndTo(a.gradient_dtype, a.reduce_dtype, [&](auto from_type, auto to_type) {
    using A = decltype(from_type);
    using Out = decltype(to_type);
    constexpr int N = kPerVector<A> < kPerVector<Out> ? kPerVector<A> : kPerVector<Out>;
    const A* from = static_cast<const A*>(a.gradient);
    Out* to = static_cast<Out*>(a.reduce_buffer) + a.reduce_element;
    if (a.rows == 1) {
      return Map<Second::kNone, A, Out>(place.stream, a.columns, from, nullptr, 0, to, /*add=*/false, Identity());
    }
    if (a.columns % N == 0 && a.row_stride % N == 0 && IsAligned<N>(from) && IsAligned<N>(to)) {
      return CopyRows<N>(place.stream, a.rows, a.columns, a.row_stride, from, to);
    }
    return CopyRows<1>(place.stream, a.rows, a.columns, a.row_stride, from, to);
  });
}

}  // namespace reprise::kernels
