// The mean cross-entropy of rows of logits, one block to a row.
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/elements.cuh"

namespace reprise::kernels {
namespace {

constexpr float kInfinity = __builtin_huge_valf();
__device__ float NotANumber() { return __int_as_float(0x7fc00000); }

// The largest value, and the sum of exp(value - largest). Of nothing: -infinity and 0.
struct Softmax {
  float max, sum;
};

// A row of -infinity gives the sum 0, whose logarithm plus infinity is NaN.
__device__ Softmax Combine(Softmax a, Softmax b) {
  const float max = fmaxf(a.max, b.max);
  const float shift = max == -kInfinity ? 0.0f : max;
  return {max, a.sum * expf(a.max - shift) + b.sum * expf(b.max - shift)};
}

// Of the whole row, in every thread. A NaN makes the sum NaN.
template <int N, bool kAligned, class T>
__device__ Softmax RowSoftmax(const T* row, int64_t classes) {
  Softmax softmax = {-kInfinity, 0.0f};
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * N; first < classes; first += blockDim.x * N) {
    float values[N];
    LoadFloats<N, kAligned>(row, first, classes, values);
    if constexpr (!kAligned) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = first + i < classes ? values[i] : -kInfinity;
    }
    float max = softmax.max;
#pragma unroll
    for (int i = 0; i < N; ++i) max = fmaxf(max, values[i]);
    const float shift = max == -kInfinity ? 0.0f : max;
    float sum = softmax.sum * expf(softmax.max - shift);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += expf(values[i] - shift);
    softmax = {max, sum};
  }
  __shared__ Softmax warps[kMaxWarps];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Softmax other = {__shfl_xor_sync(0xffffffffu, softmax.max, offset),
                           __shfl_xor_sync(0xffffffffu, softmax.sum, offset)};
    softmax = Combine(softmax, other);
  }
  __syncthreads();  // an earlier row's values have been read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = softmax;
  __syncthreads();
  softmax = warps[0];
  for (int warp = 1; warp < blockDim.x / kWarp; ++warp) softmax = Combine(softmax, warps[warp]);
  return softmax;
}

constexpr int64_t kMaxThreads = 1024;

template <int N, bool kAligned, class T>
__global__ void __launch_bounds__(kMaxThreads)
    RowLossKernel(int64_t rows, int64_t classes, const T* logits, const int32_t* labels, float* losses) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T* row = logits + r * classes;
    const Softmax softmax = RowSoftmax<N, kAligned>(row, classes);
    if (threadIdx.x != 0) continue;
    const int64_t label = labels[r];
    losses[r] = label >= 0 && label < classes ? logf(softmax.sum) + (softmax.max - ToFloat(row[label])) : NotANumber();
  }
}

constexpr int kSumThreads = 1024;

// *total gathers the sums of several launches; the last one makes the mean of all rows.
__global__ void __launch_bounds__(kSumThreads) SumLossesKernel(const float* losses, int64_t count, bool first,
                                                               bool last, int64_t rows, double* total, float* loss) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum += losses[i];
  sum = BlockSum(sum);
  if (threadIdx.x != 0) return;
  if (!first) sum += *total;
  *total = sum;
  if (last) *loss = static_cast<float>(sum / static_cast<double>(rows));
}

// dlogits = dloss (softmax - onehot(label)) / rows.
template <int N, bool kAligned, class T>
__global__ void __launch_bounds__(kMaxThreads)
    LogitsGradientKernel(int64_t rows, int64_t classes, const float* dloss, const T* logits, const int32_t* labels,
                         T* dlogits, bool add) {
  const float scale = *dloss / static_cast<float>(rows);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T* row = logits + r * classes;
    const Softmax softmax = RowSoftmax<N, kAligned>(row, classes);
    const int64_t label = labels[r];
    const bool valid = label >= 0 && label < classes;
    const float factor = valid ? scale / softmax.sum : NotANumber();
    for (int64_t first = static_cast<int64_t>(threadIdx.x) * N; first < classes; first += blockDim.x * N) {
      float values[N];
      LoadFloats<N, kAligned>(row, first, classes, values);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = factor * expf(values[i] - softmax.max);
        if (first + i == label) values[i] -= scale;
      }
      StoreFloats<N, kAligned>(values, first, classes, add, dlogits + r * classes);
    }
  }
}

// Some four packs to a thread, as far as a block goes.
dim3 RowThreads(int64_t classes, int per_pack) {
  const int64_t warps = CeilDivide(classes, int64_t{4} * kWarp * per_pack);
  return dim3(static_cast<unsigned>(Smaller(warps * kWarp, kMaxThreads)));
}

}  // namespace

cudaError_t LaunchCrossEntropy(const LaunchPlace& place, const CrossEntropyArguments& a) {
  return WithElement(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = kPerVector<T>;
    const T* data = a.logits.as<T>();
    return WithConstant(a.classes % N == 0 && IsAligned<N>(data), [&](auto aligned) {
      double* total = place.Workspace<double>();
      float* losses = reinterpret_cast<float*>(total + 1);
      constexpr int64_t kRowsAtOnce = kCrossEntropyBytes / 4 - 2;
      for (int64_t begin = 0; begin < a.rows; begin += kRowsAtOnce) {
        const int64_t count = Smaller(a.rows - begin, kRowsAtOnce);
        cudaError_t error = Launch(place.stream, Blocks(count), RowThreads(a.classes, N), 0,
                                   RowLossKernel<N, decltype(aligned)::value, T>, count, a.classes,
                                   data + begin * a.classes, a.labels + begin, losses);
        if (error != cudaSuccess) return error;
        error = Launch(place.stream, 1, kSumThreads, 0, SumLossesKernel, losses, count, begin == 0,
                       begin + count == a.rows, a.rows, total, a.loss);
        if (error != cudaSuccess) return error;
      }
      return cudaSuccess;
    });
  });
}

cudaError_t LaunchCrossEntropyBackward(const LaunchPlace& place, const CrossEntropyBackwardArguments& a) {
  return WithElement(a.logits.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = kPerVector<T>;
    const T* data = a.logits.as<T>();
    T* out = a.dlogits.as<T>();
    return WithConstant(a.classes % N == 0 && IsAligned<N>(data) && IsAligned<N>(out), [&](auto aligned) {
      return Launch(place.stream, Blocks(a.rows), RowThreads(a.classes, N), 0,
                    LogitsGradientKernel<N, decltype(aligned)::value, T>, a.rows, a.classes, a.dloss, data, a.labels,
                    out, a.dlogits.add());
    });
  });
}

}  // namespace reprise::kernels
