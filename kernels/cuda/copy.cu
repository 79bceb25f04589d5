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
    CopyRowsKernel(int64_t packs, int64_t row_packs, int64_t row_stride, const A* from, Out* to, bool add) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kMapThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kMapThreads + threadIdx.x; i < packs; i += threads) {
    const int64_t column = Modulo(i, row_packs);
    const int64_t row = (i - column) / row_packs;
    float values[N];
    LoadFloats<N, true>(from + row * row_stride, column * N, 0, values);
    StoreFloats<N, true>(values, i * N, 0, add, to);
  }
}

template <int N, class A, class Out>
cudaError_t CopyRows(cudaStream_t stream, int64_t rows, int64_t columns, int64_t row_stride, const A* from, Out* to,
                     bool add) {
  const int64_t packs = rows * columns / N;
  return Launch(stream, Blocks(CeilDivide(packs, kMapThreads)), kMapThreads, 0, CopyRowsKernel<N, A, Out>, packs,
                columns / N, row_stride, from, to, add);
}

// Calls body(From(), To()).
template <class Body>
cudaError_t WithFromAndTo(Source from, Target to, const Body& body) {
  return WithElement(from.element, [&](auto from_type) {
    return WithElement(to.element, [&](auto to_type) { return body(from_type, to_type); });
  });
}

}  // namespace

cudaError_t LaunchCopy(cudaStream_t stream, int64_t count, Source from, Target to) {
  return WithFromAndTo(from, to, [&](auto from_type, auto to_type) {
    using A = decltype(from_type);
    using Out = decltype(to_type);
    return Map<Second::kNone, A, Out>(stream, count, static_cast<const A*>(from.data), nullptr, 0,
                                      static_cast<Out*>(to.data), to.add, Identity());
  });
}

cudaError_t LaunchCopyRows(cudaStream_t stream, int64_t rows, int64_t columns, int64_t row_stride, Source from,
                           Target to) {
  return WithFromAndTo(from, to, [&](auto from_type, auto to_type) {
    using A = decltype(from_type);
    using Out = decltype(to_type);
    constexpr int N = kPerVector<A> < kPerVector<Out> ? kPerVector<A> : kPerVector<Out>;
    const A* a = static_cast<const A*>(from.data);
    Out* out = static_cast<Out*>(to.data);
    if (columns % N == 0 && row_stride % N == 0 && IsAligned<N>(a) && IsAligned<N>(out)) {
      return CopyRows<N>(stream, rows, columns, row_stride, a, out, to.add);
    }
    return CopyRows<1>(stream, rows, columns, row_stride, a, out, to.add);
  });
}

}  // namespace reprise::kernels
