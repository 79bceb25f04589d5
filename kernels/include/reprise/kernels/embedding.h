// Rows of a table: by id, and by position.
#ifndef REPRISE_KERNELS_EMBEDDING_H_
#define REPRISE_KERNELS_EMBEDDING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// y[i] = table[ids[i]], row by row. ids: as many as y [..., width] has rows, each 0 to entries - 1; table
// [entries, width]. An id out of range gives a row of NaN.
template <KernelElement T>
absl::Status Embedding(Stream stream, TensorView<const int32_t> ids, Input<T> table, TensorView<T> y);

// dtable[e] = or += the sum, in float and in order of i, of the rows i of dy with ids[i] = e. dy [..., width], one id
// for each of its rows, dtable [entries, width]. Ids out of range are left out. G: T or float.
template <KernelElement T, GradientElement<T> G>
absl::Status EmbeddingBackward(Stream stream, TensorView<const T> dy, TensorView<const int32_t> ids,
                               Gradient<G> dtable);
// The same for a gradient that could be written.
template <KernelElement T, GradientElement<T> G>
absl::Status EmbeddingBackward(Stream stream, TensorView<T> dy, TensorView<const int32_t> ids, Gradient<G> dtable) {
  return EmbeddingBackward<T, G>(stream, TensorView<const T>(dy), ids, dtable);
}

// y[..., t, :] = x[..., t, :] + table[t]. x and y [..., time, width]; table [context, width] with context >= time.
template <KernelElement T>
absl::Status AddPositions(Stream stream, Input<T> x, Input<T> table, TensorView<T> y);

// dx = or += dy; dtable[t] = or += the sum of dy[..., t, :] over sequences, in float and in their order, which is 0
// from `time` on. dy and dx [..., time, width], dtable [context, width] with context >= time. G: T or float.
template <KernelElement T, GradientElement<T> G>
absl::Status AddPositionsBackward(Stream stream, Input<T> dy, Gradient<T> dx, Gradient<G> dtable);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_EMBEDDING_H_
