#include "reprise/kernels/embedding.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

bool InRange(int32_t id, int64_t entries) { return id >= 0 && id < entries; }

// The rows that use each entry, in order: those of entry e are rows[starts[e]] to rows[starts[e + 1] - 1].
struct RowsByEntry {
  std::vector<int64_t> starts, rows;
};

RowsByEntry SortByEntry(const int32_t* ids, int64_t count, int64_t entries) {
  RowsByEntry sorted;
  sorted.starts.assign(entries + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (InRange(ids[i], entries)) ++sorted.starts[ids[i] + 1];
  }
  for (int64_t e = 0; e < entries; ++e) sorted.starts[e + 1] += sorted.starts[e];
  sorted.rows.resize(sorted.starts[entries]);
  std::vector<int64_t> next(sorted.starts.begin(), sorted.starts.end() - 1);
  for (int64_t i = 0; i < count; ++i) {
    if (InRange(ids[i], entries)) sorted.rows[next[ids[i]]++] = i;
  }
  return sorted;
}

template <class T, class G>
void TableGradient(const EmbeddingBackwardArguments& a) {
  const int64_t width = a.width;
  const RowsByEntry sorted = SortByEntry(a.ids, a.count, a.entries);
  ParallelForRanges(a.entries, RowGrain(width), [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> sum = Floats(width);
    for (int64_t e = begin; e < end; ++e) {
      const bool unused = sorted.starts[e] == sorted.starts[e + 1];
      if (unused && a.dtable.add()) continue;
      std::fill_n(sum.get(), width, 0.0f);
      for (int64_t i = sorted.starts[e]; i < sorted.starts[e + 1]; ++i) {
        const T* row = a.dy.as<T>() + sorted.rows[i] * width;
        for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<float>(row[c]);
      }
      Store(sum.get(), width, a.dtable.mode, a.dtable.as<G>() + e * width);
    }
  });
}

template <class T>
void TableRows(const EmbeddingArguments& a) {
  ParallelForRanges(a.count, RowGrain(a.width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* const row = a.y.as<T>() + i * a.width;
      if (InRange(a.ids[i], a.entries)) {
        std::copy_n(a.table.as<T>() + a.ids[i] * a.width, a.width, row);
      } else {
        std::fill_n(row, a.width, static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
      }
    }
  });
}

}  // namespace

template <KernelElement T>
absl::Status Embedding(Stream stream, TensorView<const int32_t> ids, Input<T> table, TensorView<T> y) {
  const int64_t count = NumElements(ids.shape), entries = Rows(table), width = Columns(table);
  REPRISE_RETURN_IF_ERROR(Checks("Embedding")
                              .Present("ids", ids)
                              .Present("table", table)
                              .Present("y", y)
                              .Equal("columns of y", Columns(y), "columns of table", width)
                              .Equal("rows of y", Rows(y), "number of ids", count)
                              .Done());
  return Enqueue(stream, &DeviceKernels::Embedding, {count, entries, width, ids.data, InputOf(table), OutputOf(y)},
                 TableRows<T>);
}

template <KernelElement T, GradientElement<T> G>
absl::Status EmbeddingBackward(Stream stream, TensorView<const T> dy, TensorView<const int32_t> ids,
                               Gradient<G> dtable) {
  const int64_t count = NumElements(ids.shape), width = Columns(dy);
  REPRISE_RETURN_IF_ERROR(Checks("EmbeddingBackward")
                              .Present("dy", dy)
                              .Present("ids", ids)
                              .Equal("rows of dy", Rows(dy), "number of ids", count)
                              .Equal("columns of dtable", dtable ? Columns(dtable) : width, "columns of dy", width)
                              .Done());
  if (!dtable) return absl::OkStatus();
  return Enqueue(stream, &DeviceKernels::EmbeddingBackward,
                 {count, Rows(dtable), width, InputOf(dy), ids.data, OutputOf(dtable)}, TableGradient<T, G>);
}

template absl::Status Embedding(Stream, TensorView<const int32_t>, Input<float>, TensorView<float>);
template absl::Status Embedding(Stream, TensorView<const int32_t>, Input<BFloat16>, TensorView<BFloat16>);
#define REPRISE_INSTANTIATE(T, G) \
  template absl::Status EmbeddingBackward(Stream, TensorView<const T>, TensorView<const int32_t>, Gradient<G>);
REPRISE_FOR_ACTIVATION_AND_GRADIENT(REPRISE_INSTANTIATE)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
