// Causal self-attention, forward: the softmax of each row is kept up to date while the keys go by.
#include "kernels/cuda/attention.cuh"

namespace reprise::kernels {
namespace {

template <int kChunk>
struct Shared {
  Tile<kChunk> query, key, value;
  Tile<kTile> p;
};
static_assert(sizeof(Shared<32>) == AttentionSharedBytes(32) && sizeof(Shared<64>) == AttentionSharedBytes(64) &&
              sizeof(Shared<128>) == AttentionSharedBytes(128));

template <int kChunk, class T>
__global__ void __launch_bounds__(kAttentionThreads, kChunk <= 64 ? 2 : 1)
    AttentionKernel(AttentionShape e, float scale, const T* qkv, T* y, float* log_sum_exp) {
  extern __shared__ __align__(16) char memory[];
  Shared<kChunk>& shared = *reinterpret_cast<Shared<kChunk>*>(memory);
  const int64_t head_width = e.width / e.heads, stride = 3 * e.width;
  const BlockPlace block = PlaceOfBlock((e.time + kTile - 1) / kTile, e.sequences * e.heads);
  const HeadPlace place = PlaceOf(e, block.head);
  const T *queries = qkv + place.qkv_offset, *keys = queries + e.width, *values = keys + e.width;
  const int64_t first_query = block.tile * kTile, first_out = block.chunk * kChunk;
  const bool one_chunk = head_width <= kChunk;
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const auto sum = [](float a, float b) { return a + b; };

  float max[kMicro], total[kMicro];
  OutMicro<kChunk> out = {};
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    max[i] = -__builtin_huge_valf();
    total[i] = 0;
  }
  for (int64_t first_key = 0; first_key <= first_query; first_key += kTile) {
    Micro p = {};
    for (int64_t c = 0; c < head_width; c += kChunk) {
      __syncthreads();  // the tiles have been read
      if (!one_chunk || first_key == 0) {
        LoadTile(queries, stride, first_query, e.time, c, head_width, shared.query);
      }
      LoadTile(keys, stride, first_key, e.time, c, head_width, shared.key);
      if (c == 0) LoadTile(values, stride, first_key, e.time, first_out, head_width, shared.value);
      __syncthreads();
      AddRowProducts(shared.query, shared.key, p);
    }
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      const int64_t query = first_query + MicroRow(i);
      float row_max = max[i];
#pragma unroll
      for (int j = 0; j < kMicro; ++j) {
        const bool visible = first_key + MicroColumn(j) <= query;
        p[i][j] = visible ? p[i][j] * scale : -__builtin_huge_valf();
        row_max = fmaxf(row_max, p[i][j]);
      }
      row_max = RowReduce(row_max, larger);
      const float decay = expf(max[i] - row_max);
      float row_total = 0;
#pragma unroll
      for (int j = 0; j < kMicro; ++j) {
        p[i][j] = expf(p[i][j] - row_max);
        row_total += p[i][j];
      }
      total[i] = total[i] * decay + RowReduce(row_total, sum);
      max[i] = row_max;
#pragma unroll
      for (int j = 0; j < kChunk / kSide; ++j) out[i][j] *= decay;
    }
    StoreMicro(p, shared.p);
    __syncthreads();
    AddProducts(shared.p, shared.value, out);
  }
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const float factor = 1.0f / total[i];
#pragma unroll
    for (int j = 0; j < kChunk / kSide; ++j) out[i][j] *= factor;
    const int64_t query = first_query + MicroRow(i);
    if (block.chunk == 0 && ThreadX() == 0 && query < e.time) {
      log_sum_exp[place.head * e.time + query] = max[i] + logf(total[i]);
    }
  }
  StoreOut<kChunk>(out, e.width, first_query, e.time, first_out, head_width, /*add=*/false, y + place.y_offset);
}

}  // namespace

cudaError_t LaunchCausalAttention(const LaunchPlace& place, const CausalAttentionArguments& a) {
  const AttentionShape& e = a.shape;
  const float scale = 1.0f / sqrtf(static_cast<float>(e.width / e.heads));
  return WithElement(a.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    return WithChunk(e.width / e.heads, [&](auto chunk) {
      constexpr int kChunk = decltype(chunk)::value;
      return LaunchTiles(place.stream, e, e.sequences * e.heads, kChunk, sizeof(Shared<kChunk>),
                         AttentionKernel<kChunk, T>, e, scale, a.qkv.as<T>(), a.y.as<T>(), a.log_sum_exp);
    });
  });
}

}  // namespace reprise::kernels
