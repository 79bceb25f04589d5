// Causal self-attention, backward. With p the probabilities, again from the scores, and dp = dy v^T:
// ds = scale p (dp - delta) where delta = dot(p, dp) of the row, then dq = ds k, dk = ds^T q, dv = p^T dy. One kernel
// makes delta and dq, a tile of queries at a time; the next one dk and dv, a tile of keys at a time.
#include "kernels/cuda/attention.cuh"

namespace reprise::kernels {
namespace {

template <int kChunk>
struct Shared {
  Tile<kChunk> query, dy, key, value;
  Tile<kTile> ds;
};
template <int kChunk>
struct SharedWithP : Shared<kChunk> {
  Tile<kTile> p;
};
static_assert(sizeof(SharedWithP<32>) == AttentionBackwardSharedBytes(32) &&
              sizeof(SharedWithP<64>) == AttentionBackwardSharedBytes(64) &&
              sizeof(SharedWithP<128>) == AttentionBackwardSharedBytes(128));

template <class T>
struct Inputs {
  AttentionShape extents;
  float scale;
  const T* dy;
  const T* qkv;
  const float* log_sum_exp;
  int64_t first_head;  // of this launch
  int64_t heads;       // of this launch
};

// One head's part of them.
template <class T>
struct Head {
  const T *query, *key, *value, *dy;
  const float* log_sum_exp;
  int64_t time, width, stride, dy_stride;
};
template <class T>
__device__ Head<T> HeadOf(const Inputs<T>& in, const HeadPlace& place) {
  const T* query = in.qkv + place.qkv_offset;
  const int64_t width = in.extents.width;
  return {query,
          query + width,
          query + 2 * width,
          in.dy + place.y_offset,
          in.log_sum_exp + place.head * in.extents.time,
          in.extents.time,
          width / in.extents.heads,
          3 * width,
          width};
}

// What of the tiles is there already.
enum class Held { kNothing, kQueries, kKeys };

// p = exp(scale q k^T - log_sum_exp), 0 where the key comes after the query, and dp = dy v^T. `held` counts only where
// the head is one chunk.
template <int kChunk, class T>
__device__ void Probabilities(const Head<T>& head, float scale, int64_t first_query, int64_t first_key, Held held,
                              Shared<kChunk>& shared, Micro& p, Micro& dp) {
  const bool one_chunk = head.width <= kChunk;
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
#pragma unroll
    for (int j = 0; j < kMicro; ++j) p[i][j] = dp[i][j] = 0;
  }
  for (int64_t c = 0; c < head.width; c += kChunk) {
    __syncthreads();  // the tiles have been read
    if (!one_chunk || held != Held::kQueries) {
      LoadTile(head.query, head.stride, first_query, head.time, c, head.width, shared.query);
      LoadTile(head.dy, head.dy_stride, first_query, head.time, c, head.width, shared.dy);
    }
    if (!one_chunk || held != Held::kKeys) {
      LoadTile(head.key, head.stride, first_key, head.time, c, head.width, shared.key);
      LoadTile(head.value, head.stride, first_key, head.time, c, head.width, shared.value);
    }
    __syncthreads();
    AddRowProducts(shared.query, shared.key, p);
    AddRowProducts(shared.dy, shared.value, dp);
  }
#pragma unroll
  for (int i = 0; i < kMicro; ++i) {
    const int64_t query = first_query + MicroRow(i);
    const float log_sum_exp = query < head.time ? head.log_sum_exp[query] : 0.0f;
#pragma unroll
    for (int j = 0; j < kMicro; ++j) {
      const bool visible = query < head.time && first_key + MicroColumn(j) <= query;
      p[i][j] = visible ? expf(p[i][j] * scale - log_sum_exp) : 0.0f;
      dp[i][j] = visible ? dp[i][j] : 0.0f;
    }
  }
}

// delta [heads of this launch, time].
template <int kChunk, class T>
__global__ void __launch_bounds__(kAttentionThreads, kChunk <= 64 ? 2 : 1)
    QueryGradientKernel(Inputs<T> in, bool add, T* dqkv, float* delta) {
  extern __shared__ __align__(16) char memory[];
  Shared<kChunk>& shared = *reinterpret_cast<Shared<kChunk>*>(memory);
  const BlockPlace block = PlaceOfBlock((in.extents.time + kTile - 1) / kTile, in.heads);
  const HeadPlace place = PlaceOf(in.extents, in.first_head + block.head);
  const Head<T> head = HeadOf(in, place);
  const int64_t first_query = block.tile * kTile, first_out = block.chunk * kChunk;
  const auto sum = [](float a, float b) { return a + b; };

  float row_delta[kMicro] = {};
  OutMicro<kChunk> dq = {};
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t first_key = 0; first_key <= first_query; first_key += kTile) {
      Micro p, dp;
      const Held held = pass == 0 && first_key == 0 ? Held::kNothing : Held::kQueries;
      Probabilities(head, in.scale, first_query, first_key, held, shared, p, dp);
      if (pass == 0) {
#pragma unroll
        for (int i = 0; i < kMicro; ++i) {
#pragma unroll
          for (int j = 0; j < kMicro; ++j) row_delta[i] += p[i][j] * dp[i][j];
        }
        continue;
      }
#pragma unroll
      for (int i = 0; i < kMicro; ++i) {
#pragma unroll
        for (int j = 0; j < kMicro; ++j) p[i][j] = in.scale * p[i][j] * (dp[i][j] - row_delta[i]);
      }
      StoreMicro(p, shared.ds);
      if (head.width > kChunk) {
        __syncthreads();
        LoadTile(head.key, head.stride, first_key, head.time, first_out, head.width, shared.key);
      }
      __syncthreads();
      AddProducts(shared.ds, shared.key, dq);
    }
    if (pass == 0) {
#pragma unroll
      for (int i = 0; i < kMicro; ++i) {
        row_delta[i] = RowReduce(row_delta[i], sum);
        const int64_t query = first_query + MicroRow(i);
        if (block.chunk == 0 && ThreadX() == 0 && query < head.time)
          delta[block.head * head.time + query] = row_delta[i];
      }
    }
  }
  StoreOut<kChunk>(dq, head.stride, first_query, head.time, first_out, head.width, add, dqkv + place.qkv_offset);
}

template <int kChunk, class T>
__global__ void __launch_bounds__(kAttentionThreads, kChunk <= 64 ? 2 : 1)
    KeyGradientKernel(Inputs<T> in, bool add, T* dqkv, const float* delta) {
  extern __shared__ __align__(16) char memory[];
  SharedWithP<kChunk>& shared = *reinterpret_cast<SharedWithP<kChunk>*>(memory);
  const int64_t tiles = (in.extents.time + kTile - 1) / kTile;
  const BlockPlace block = PlaceOfBlock(tiles, in.heads);
  const HeadPlace place = PlaceOf(in.extents, in.first_head + block.head);
  const Head<T> head = HeadOf(in, place);
  // The first keys have the most queries, and so come first.
  const int64_t first_key = (tiles - 1 - block.tile) * kTile, first_out = block.chunk * kChunk;

  OutMicro<kChunk> dk = {}, dv = {};
  for (int64_t first_query = first_key; first_query < head.time; first_query += kTile) {
    Micro p, ds;
    const Held held = first_query == first_key ? Held::kNothing : Held::kKeys;
    Probabilities(head, in.scale, first_query, first_key, held, shared, p, ds);
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      const int64_t query = first_query + MicroRow(i);
      const float row_delta = query < head.time ? delta[block.head * head.time + query] : 0.0f;
#pragma unroll
      for (int j = 0; j < kMicro; ++j) ds[i][j] = in.scale * p[i][j] * (ds[i][j] - row_delta);
    }
    StoreMicro(p, shared.p);
    StoreMicro(ds, shared.ds);
    if (head.width > kChunk) {
      __syncthreads();
      LoadTile(head.query, head.stride, first_query, head.time, first_out, head.width, shared.query);
      LoadTile(head.dy, head.dy_stride, first_query, head.time, first_out, head.width, shared.dy);
    }
    __syncthreads();
    AddTransposedProducts(shared.p, shared.dy, dv);
    AddTransposedProducts(shared.ds, shared.query, dk);
  }
  T* gradients = dqkv + place.qkv_offset;
  const int64_t width = in.extents.width;
  StoreOut<kChunk>(dk, head.stride, first_key, head.time, first_out, head.width, add, gradients + width);
  StoreOut<kChunk>(dv, head.stride, first_key, head.time, first_out, head.width, add, gradients + 2 * width);
}

}  // namespace

cudaError_t LaunchCausalAttentionBackward(const LaunchPlace& place, const CausalAttentionBackwardArguments& a) {
  const AttentionShape& e = a.shape;
  const int64_t heads = e.sequences * e.heads;
  if (heads == 0 || e.time == 0) return cudaSuccess;
  const float scale = 1.0f / sqrtf(static_cast<float>(e.width / e.heads));
  const int64_t at_once = place.workspace_bytes / AttentionBackwardBytes(e.time);
  return WithElement(a.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    return WithChunk(e.width / e.heads, [&](auto chunk) {
      constexpr int kChunk = decltype(chunk)::value;
      T* out = a.dqkv.as<T>();
      for (int64_t first = 0; first < heads; first += at_once) {
        const Inputs<T> in = {
            e, scale, a.dy.as<T>(), a.qkv.as<T>(), a.log_sum_exp, first, Smaller(heads - first, at_once)};
        cudaError_t error =
            LaunchTiles(place.stream, e, in.heads, kChunk, sizeof(Shared<kChunk>), QueryGradientKernel<kChunk, T>, in,
                        a.dqkv.add(), out, place.Workspace<float>());
        if (error != cudaSuccess) return error;
        error = LaunchTiles(place.stream, e, in.heads, kChunk, sizeof(SharedWithP<kChunk>),
                            KeyGradientKernel<kChunk, T>, in, a.dqkv.add(), out, place.Workspace<float>());
        if (error != cudaSuccess) return error;
      }
      return cudaSuccess;
    });
  });
}

}  // namespace reprise::kernels
