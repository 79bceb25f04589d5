// Causal self-attention with several heads.
#ifndef REPRISE_KERNELS_ATTENTION_H_
#define REPRISE_KERNELS_ATTENTION_H_

#include "absl/status/status.h"
#include "reprise/core/compute.h"
#include "reprise/kernels/arguments.h"

namespace reprise::kernels {

// qkv [..., time, 3 width], y [..., time, width], log_sum_exp [..., heads, time]. `heads` is positive and divides
// width, which is positive.
//
// Each row of qkv holds query, key and value, each `width` long and made of `heads` equal parts. Of each sequence and
// head, with the rows q, k and v of its parts:
//   s[t,u] = dot(q[t], k[u]) / sqrt(width / heads) for u <= t,
//   log_sum_exp[t] = log(sum over u <= t of exp(s[t,u])), kept for backward,
//   p[t,u] = exp(s[t,u] - log_sum_exp[t]), y[t] = sum over u <= t of p[t,u] v[u].
template <KernelElement T>
absl::Status CausalAttention(Stream stream, Input<T> qkv, int heads, TensorView<T> y, TensorView<float> log_sum_exp);

// The gradient of qkv, in the shapes of CausalAttention, whose log_sum_exp it takes; dy is shaped as y, dqkv as qkv. Of
// each sequence and head, with p computed again from qkv:
//   dp[t,u] = dot(dy[t], v[u]), ds[t,u] = p[t,u] (dp[t,u] - sum over w <= t of p[t,w] dp[t,w]) / sqrt(width / heads),
//   dq[t] = sum over u <= t of ds[t,u] k[u], dk[u] = sum over t >= u of ds[t,u] q[t], dv[u] = sum over t >= u of
//   p[t,u] dy[t].
template <KernelElement T>
absl::Status CausalAttentionBackward(Stream stream, Input<T> dy, Input<T> qkv, int heads,
                                     TensorView<const float> log_sum_exp, Gradient<T> dqkv);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ATTENTION_H_
