// Root-mean-square normalisation of rows, one block to a row.
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/column_sum.cuh"

namespace reprise::kernels {
namespace {

// 1 / sqrt(mean(x^2) + epsilon), given the thread's part of the sum of squares.
__device__ float RowFactor(float squares, int64_t columns, float epsilon) {
  return 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(columns) + epsilon);
}

constexpr int64_t kMaxThreads = 512;

template <int N, bool kAligned, class T>
__global__ void __launch_bounds__(kMaxThreads)
    RmsNormKernel(int64_t rows, int64_t columns, float epsilon, const T* x, const T* gain, T* y) {
  const int64_t packs = (columns + N - 1) / N;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* in = x + row * columns;
    float squares = 0;
    for (int64_t pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      float values[N];
      LoadFloats<N, kAligned>(in, pack * N, columns, values);
#pragma unroll
      for (int i = 0; i < N; ++i) squares += values[i] * values[i];
    }
    const float factor = RowFactor(squares, columns, epsilon);
    for (int64_t pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      float values[N], gains[N];
      LoadFloats<N, kAligned>(in, pack * N, columns, values);
      LoadFloats<N, kAligned>(gain, pack * N, columns, gains);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = values[i] * factor * gains[i];
      StoreFloats<N, kAligned>(values, pack * N, columns, /*add=*/false, y + row * columns);
    }
  }
}

// With the factor f of a row and h = gain dy: dx = f h - x f^3 dot(h, x) / columns.
template <int N, bool kAligned, class T>
__global__ void __launch_bounds__(kMaxThreads)
    RmsNormBackwardKernel(int64_t rows, int64_t columns, float epsilon, const T* dy, const T* x, const T* gain, T* dx,
                          bool add, float* factors) {
  const int64_t packs = (columns + N - 1) / N;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T *in = x + row * columns, *d = dy + row * columns;
    float squares = 0, products = 0;
    for (int64_t pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      float values[N];
      LoadFloats<N, kAligned>(in, pack * N, columns, values);
#pragma unroll
      for (int i = 0; i < N; ++i) squares += values[i] * values[i];
      if (dx == nullptr) continue;
      float gradients[N], gains[N];
      LoadFloats<N, kAligned>(d, pack * N, columns, gradients);
      LoadFloats<N, kAligned>(gain, pack * N, columns, gains);
#pragma unroll
      for (int i = 0; i < N; ++i) products += gains[i] * gradients[i] * values[i];
    }
    const float factor = RowFactor(squares, columns, epsilon);
    if (factors != nullptr && threadIdx.x == 0) factors[row] = factor;
    if (dx == nullptr) continue;
    const float projection = factor * factor * factor * (BlockSum(products) / static_cast<float>(columns));
    for (int64_t pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      float values[N], gradients[N], gains[N];
      LoadFloats<N, kAligned>(in, pack * N, columns, values);
      LoadFloats<N, kAligned>(d, pack * N, columns, gradients);
      LoadFloats<N, kAligned>(gain, pack * N, columns, gains);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = factor * (gains[i] * gradients[i]) - projection * values[i];
      StoreFloats<N, kAligned>(values, pack * N, columns, add, dx + row * columns);
    }
  }
}

template <int N, bool kAligned, class T>
struct LoadGainTerms {
  const T* dy;
  const T* x;
  const float* factors;
  int64_t columns;

  __device__ void operator()(int64_t row, int64_t column, float (&values)[N]) const {
    float gradients[N];
    LoadFloats<N, kAligned>(dy + row * columns, column, columns, gradients);
    LoadFloats<N, kAligned>(x + row * columns, column, columns, values);
    const float factor = factors[row];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = gradients[i] * values[i] * factor;
  }
};

// Some two packs to a thread.
dim3 RowThreads(int64_t columns, int per_pack) {
  const int64_t warps = CeilDivide(columns, int64_t{2} * kWarp * per_pack);
  return dim3(static_cast<unsigned>(Smaller(warps > 0 ? warps * kWarp : kWarp, kMaxThreads)));
}

// factors [rows] gets 1 / sqrt(mean(x^2) + epsilon) if it is not null. dx may be empty.
cudaError_t LaunchRows(const LaunchPlace& place, const RmsNormBackwardArguments& a, float* factors) {
  return WithElement(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = kPerVector<T>;
    const T *d = a.dy.as<T>(), *in = a.x.as<T>(), *gains = a.gain.as<T>();
    T* out = a.dx.as<T>();
    const bool all_aligned =
        a.columns % N == 0 && IsAligned<N>(d) && IsAligned<N>(in) && IsAligned<N>(gains) && IsAligned<N>(out);
    return WithConstant(all_aligned, [&](auto aligned) {
      return Launch(place.stream, Blocks(a.rows), RowThreads(a.columns, N), 0,
                    RmsNormBackwardKernel<N, decltype(aligned)::value, T>, a.rows, a.columns, a.epsilon, d, in, gains,
                    out, a.dx.add(), factors);
    });
  });
}

// The sum over rows of dy x factor.
cudaError_t LaunchGain(const LaunchPlace& place, const RmsNormBackwardArguments& a, const float* factors) {
  return WithElements(a.x.dtype, a.dgain.dtype, [&](auto type, auto gain_type) {
    using T = decltype(type);
    using G = decltype(gain_type);
    constexpr int N = kPerVector<T>;
    const T *d = a.dy.as<T>(), *in = a.x.as<T>();
    return WithConstant(a.columns % N == 0 && IsAligned<N>(d) && IsAligned<N>(in), [&](auto aligned) {
      const LoadGainTerms<N, decltype(aligned)::value, T> load = {d, in, factors, a.columns};
      return SumRows<N>(place, a.rows, a.columns, load, a.columns, a.dgain.as<G>(), a.dgain.add());
    });
  });
}

}  // namespace

cudaError_t LaunchRmsNorm(const LaunchPlace& place, const RmsNormArguments& a) {
  return WithElement(a.x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = kPerVector<T>;
    const T *in = a.x.as<T>(), *gains = a.gain.as<T>();
    T* out = a.y.as<T>();
    const bool all_aligned = a.columns % N == 0 && IsAligned<N>(in) && IsAligned<N>(gains) && IsAligned<N>(out);
    return WithConstant(all_aligned, [&](auto aligned) {
      return Launch(place.stream, Blocks(a.rows), RowThreads(a.columns, N), 0,
                    RmsNormKernel<N, decltype(aligned)::value, T>, a.rows, a.columns, a.epsilon, in, gains, out);
    });
  });
}

cudaError_t LaunchRmsNormBackward(const LaunchPlace& place, const RmsNormBackwardArguments& a) {
  if (!a.dx && !a.dgain) return cudaSuccess;
  float* const factors = a.dgain ? place.Workspace<float>(kColumnSumBytes) : nullptr;
  const cudaError_t error = LaunchRows(place, a, factors);
  if (error != cudaSuccess || !a.dgain) return error;
  return LaunchGain(place, a, factors);
}

}  // namespace reprise::kernels
