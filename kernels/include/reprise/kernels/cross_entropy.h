// The loss of a classifier, a language model for one.
#ifndef REPRISE_KERNELS_CROSS_ENTROPY_H_
#define REPRISE_KERNELS_CROSS_ENTROPY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// loss = the mean over rows of log(sum over c of exp(logits[c])) - logits[label]. logits [..., classes], at least one
// row and one class; labels: one per row, 0 to classes - 1; loss: one element. A label out of range makes the loss NaN.
template <KernelElement T>
absl::Status CrossEntropy(Stream stream, TensorView<const T> logits, TensorView<const int32_t> labels,
                          TensorView<float> loss);
// The same for logits that could be written.
template <KernelElement T>
absl::Status CrossEntropy(Stream stream, TensorView<T> logits, TensorView<const int32_t> labels,
                          TensorView<float> loss) {
  return CrossEntropy<T>(stream, TensorView<const T>(logits), labels, loss);
}

// dlogits = or += dloss (softmax(logits) - onehot(label)) / rows, row by row. dloss: one element; logits, labels as for
// CrossEntropy; dlogits as logits. A label out of range gives a row of NaN.
template <KernelElement T>
absl::Status CrossEntropyBackward(Stream stream, TensorView<const float> dloss, Input<T> logits,
                                  TensorView<const int32_t> labels, Gradient<T> dlogits);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CROSS_ENTROPY_H_
