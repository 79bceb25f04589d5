#include "graph/cuda/digest.h"

#include "graph/digest.h"

namespace reprise::internal {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

__global__ void __launch_bounds__(kThreads) Digest(const std::byte* from, int64_t num_bytes, uint64_t* parts) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(from) % kDigestWord == 0;
  const int64_t whole = is_aligned ? num_bytes / kDigestWord : 0;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  constexpr int64_t kAllThreads = int64_t{kDigestParts} * kThreads;
  const uint64_t* const words = reinterpret_cast<const uint64_t*>(from);
  uint64_t sum = 0;
#pragma unroll 4
  for (int64_t i = thread; i < whole; i += kAllThreads) sum += MixWord(words[i], i);
  for (int64_t i = whole + thread; i * kDigestWord < num_bytes; i += kAllThreads) {
    const int64_t left = num_bytes - i * kDigestWord;
    sum += MixWord(WordAt(from + i * kDigestWord, left < kDigestWord ? left : kDigestWord), i);
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_down_sync(~0u, sum, distance);
  __shared__ uint64_t warps[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) sum += warps[warp];
  parts[blockIdx.x] = sum;
}

}  // namespace

cudaError_t LaunchDigest(cudaStream_t stream, const std::byte* from, int64_t num_bytes, uint64_t* parts) {
  Digest<<<kDigestParts, kThreads, 0, stream>>>(from, num_bytes, parts);
  return cudaGetLastError();
}

}  // namespace reprise::internal
