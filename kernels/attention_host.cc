#include "reprise/kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/host_math.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

// Queries that are handled together: long enough for the GEMMs, short enough that little is computed above
// the diagonal.
constexpr int64_t kQueries = 64;

struct Dimensions : AttentionShape {
  int64_t head_width() const { return width / heads; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_width())); }
};

// The part of qkv, or of its gradient, that one head of one sequence uses, as floats.
struct Head {
  const float *query, *key, *value;
  int64_t stride;  // elements from row to row
};

// Rows of `columns` elements, `stride` apart, into dense floats.
template <class T>
void LoadRows(const T* from, int64_t rows, int64_t columns, int64_t stride, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[r * columns + c] = static_cast<float>(from[r * stride + c]);
  }
}

template <class T>
void StoreRows(const float* from, int64_t rows, int64_t columns, int64_t stride, WriteMode mode, T* to) {
  for (int64_t r = 0; r < rows; ++r) Store(from + r * columns, columns, mode, to + r * stride);
}

// Points into qkv if it holds floats, else at dense copies in `buffer` of 3 time head_width floats.
template <class T>
Head LoadHead(const Dimensions& d, const T* qkv, float* buffer) {
  if constexpr (std::is_same_v<T, float>) {
    return {qkv, qkv + d.width, qkv + 2 * d.width, 3 * d.width};
  } else {
    const int64_t size = d.time * d.head_width();
    for (int64_t i = 0; i < 3; ++i) {
      LoadRows(qkv + i * d.width, d.time, d.head_width(), 3 * d.width, buffer + i * size);
    }
    return {buffer, buffer + size, buffer + 2 * size, d.head_width()};
  }
}

// scores [queries, keys] of the queries from `begin` on, with all keys up to the last of them.
void Scores(const Dimensions& d, const Head& head, int64_t begin, int64_t queries, float* scores) {
  const int64_t keys = begin + queries;
  Math().gemm(queries, keys, d.head_width(), d.scale(), {head.query + begin * head.stride, head.stride, false},
              {head.key, head.stride, true}, scores, keys, /*add=*/false);
}

template <class T>
void ForwardHead(const Dimensions& d, const T* qkv, T* y, float* log_sum_exp) {
  const int64_t head_width = d.head_width();
  const std::unique_ptr<float[]> buffer = Floats(3 * d.time * head_width), scores = Floats(kQueries * d.time),
                                 out = Floats(kQueries * head_width);
  const Head head = LoadHead(d, qkv, buffer.get());
  for (int64_t begin = 0; begin < d.time; begin += kQueries) {
    const int64_t queries = std::min(kQueries, d.time - begin), keys = begin + queries;
    Scores(d, head, begin, queries, scores.get());
    for (int64_t q = 0; q < queries; ++q) {
      float* row = scores.get() + q * keys;
      const int64_t visible = begin + q + 1;
      const float max = Math().max(row, visible);
      const float sum = Math().exp_and_sum(row, max, row, visible);
      const float factor = 1.0f / sum;
      for (int64_t k = 0; k < visible; ++k) row[k] *= factor;
      std::fill(row + visible, row + keys, 0.0f);
      log_sum_exp[begin + q] = max + std::log(sum);
    }
    Math().gemm(queries, head_width, keys, 1.0f, {scores.get(), keys, false}, {head.value, head.stride, false},
                out.get(), head_width, /*add=*/false);
    StoreRows(out.get(), queries, head_width, d.width, WriteMode::kAssign, y + begin * d.width);
  }
}

// With p the probabilities, again from the scores, and dp = dy v^T: ds = scale p (dp - dot(p, dp)) row by row, then
// dq = ds k, dk = ds^T q, dv = p^T dy. The last two are summed over blocks of queries in order.
template <class T>
void BackwardHead(const Dimensions& d, const T* dy, const T* qkv, const float* log_sum_exp, WriteMode mode, T* dqkv) {
  const int64_t head_width = d.head_width(), size = d.time * head_width;
  const std::unique_ptr<float[]> buffer = Floats(3 * size), p = Floats(kQueries * d.time),
                                 ds = Floats(kQueries * d.time), dout = Floats(kQueries * head_width),
                                 gradient = Floats(3 * size);
  const Head head = LoadHead(d, qkv, buffer.get());
  float *dq = gradient.get(), *dk = dq + size, *dv = dk + size;
  std::fill_n(dk, 2 * size, 0.0f);
  for (int64_t begin = 0; begin < d.time; begin += kQueries) {
    const int64_t queries = std::min(kQueries, d.time - begin), keys = begin + queries;
    LoadRows(dy + begin * d.width, queries, head_width, d.width, dout.get());
    Scores(d, head, begin, queries, p.get());
    Math().gemm(queries, keys, head_width, 1.0f, {dout.get(), head_width, false}, {head.value, head.stride, true},
                ds.get(), keys, /*add=*/false);
    for (int64_t q = 0; q < queries; ++q) {
      float *p_row = p.get() + q * keys, *ds_row = ds.get() + q * keys;
      const int64_t visible = begin + q + 1;
      Math().exp_and_sum(p_row, log_sum_exp[begin + q], p_row, visible);
      Math().softmax_backward(p_row, ds_row, d.scale(), ds_row, visible);
      std::fill(p_row + visible, p_row + keys, 0.0f);
      std::fill(ds_row + visible, ds_row + keys, 0.0f);
    }
    Math().gemm(queries, head_width, keys, 1.0f, {ds.get(), keys, false}, {head.key, head.stride, false},
                dq + begin * head_width, head_width, /*add=*/false);
    Math().gemm(keys, head_width, queries, 1.0f, {ds.get(), keys, true},
                {head.query + begin * head.stride, head.stride, false}, dk, head_width, /*add=*/true);
    Math().gemm(keys, head_width, queries, 1.0f, {p.get(), keys, true}, {dout.get(), head_width, false}, dv, head_width,
                /*add=*/true);
  }
  for (int64_t i = 0; i < 3; ++i) {
    StoreRows(gradient.get() + i * size, d.time, head_width, 3 * d.width, mode, dqkv + i * d.width);
  }
}

// Calls body(row, first_column, i) for head i of all heads of all sequences: its first row and column in y.
template <class Body>
void ForEachHead(const Dimensions& d, const Body& body) {
  ParallelFor(d.sequences * d.heads, [&](int64_t i) { body(i / d.heads * d.time, i % d.heads * d.head_width(), i); });
}

Dimensions DimensionsOf(absl::Span<const int64_t> qkv, int heads) {
  const int64_t time = qkv.size() < 2 ? 1 : qkv[qkv.size() - 2];
  return {{time == 0 ? 0 : Rows(qkv) / time, time, Columns(qkv) / 3, heads}};
}

// `y_name`: of the tensor with one row of `width` for each row of qkv.
Checks& Check(Checks& checks, const Dimensions& d, absl::Span<const int64_t> qkv, absl::Span<const int64_t> log_sum_exp,
              const char* y_name, absl::Span<const int64_t> y) {
  return checks.AtLeast("columns of qkv", Columns(qkv), 3)
      .Divides("3, for query, key and value", 3, "columns of qkv", Columns(qkv))
      .Divides("heads", d.heads, "width", d.width)
      .Equal(std::string("columns of ") + y_name, Columns(y), "a third of the columns of qkv", d.width)
      .Equal(std::string("rows of ") + y_name, Rows(y), "rows of qkv", Rows(qkv))
      .Equal("columns of log_sum_exp", Columns(log_sum_exp), "time", d.time)
      .Equal("elements of log_sum_exp", NumElements(log_sum_exp), "heads times rows of qkv", d.heads * Rows(qkv));
}

}  // namespace

template <KernelElement T>
absl::Status CausalAttention(Stream stream, Input<T> qkv, int heads, TensorView<T> y, TensorView<float> log_sum_exp) {
  const Dimensions d = DimensionsOf(qkv.shape, heads);
  Checks checks("CausalAttention");
  checks.Present("qkv", qkv).Present("y", y).Present("log_sum_exp", log_sum_exp);
  REPRISE_RETURN_IF_ERROR(Check(checks, d, qkv.shape, log_sum_exp.shape, "y", y.shape).Done());
  return Enqueue(stream, &DeviceKernels::CausalAttention, {d, InputOf(qkv), OutputOf(y), log_sum_exp.data},
                 [](const CausalAttentionArguments& a) {
                   const Dimensions d = {a.shape};
                   ForEachHead(d, [&](int64_t row, int64_t column, int64_t i) {
                     ForwardHead(d, a.qkv.as<T>() + row * 3 * d.width + column, a.y.as<T>() + row * d.width + column,
                                 a.log_sum_exp + i * d.time);
                   });
                 });
}

template <KernelElement T>
absl::Status CausalAttentionBackward(Stream stream, Input<T> dy, Input<T> qkv, int heads,
                                     TensorView<const float> log_sum_exp, Gradient<T> dqkv) {
  const Dimensions d = DimensionsOf(qkv.shape, heads);
  Checks checks("CausalAttentionBackward");
  checks.Present("dy", dy).Present("qkv", qkv).Present("log_sum_exp", log_sum_exp);
  REPRISE_RETURN_IF_ERROR(
      Check(checks, d, qkv.shape, log_sum_exp.shape, "dy", dy.shape).Wanted("dqkv", dqkv, "qkv", qkv).Done());
  if (!dqkv) return absl::OkStatus();
  return Enqueue(stream, &DeviceKernels::CausalAttentionBackward,
                 {d, InputOf(dy), InputOf(qkv), log_sum_exp.data, OutputOf(dqkv)},
                 [](const CausalAttentionBackwardArguments& a) {
                   const Dimensions d = {a.shape};
                   ForEachHead(d, [&](int64_t row, int64_t column, int64_t i) {
                     const int64_t offset = row * 3 * d.width + column;
                     BackwardHead(d, a.dy.as<T>() + row * d.width + column, a.qkv.as<T>() + offset,
                                  a.log_sum_exp + i * d.time, a.dqkv.mode, a.dqkv.as<T>() + offset);
                   });
                 });
}

#define REPRISE_INSTANTIATE(T)                                                                    \
  template absl::Status CausalAttention(Stream, Input<T>, int, TensorView<T>, TensorView<float>); \
  template absl::Status CausalAttentionBackward(Stream, Input<T>, Input<T>, int, TensorView<const float>, Gradient<T>);
REPRISE_INSTANTIATE(float)
REPRISE_INSTANTIATE(BFloat16)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
