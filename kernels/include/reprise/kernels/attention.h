// Causal self-attention with several heads.
#ifndef REPRISE_KERNELS_ATTENTION_H_
#define REPRISE_KERNELS_ATTENTION_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// Each row of qkv [..., time, 3 width] holds query, key and value, each `width` long and made of `heads` equal parts.
// Row t of y [..., time, width] attends to rows 0 to t, scaled by 1 / sqrt(width / heads). log_sum_exp
// [..., heads, time] keeps the logarithm of each softmax's denominator for backward.
template <KernelElement T>
absl::Status CausalAttention(Stream stream, Input<T> qkv, int heads, TensorView<T> y, TensorView<float> log_sum_exp);

template <KernelElement T>
absl::Status CausalAttentionBackward(Stream stream, Input<T> dy, Input<T> qkv, int heads,
                                     TensorView<const float> log_sum_exp, Gradient<T> dqkv);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ATTENTION_H_
