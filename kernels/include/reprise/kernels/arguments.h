// What all kernels share: how arguments are passed and what is promised about them.
//
// Every kernel checks its arguments, enqueues its work on the stream and returns. An empty view, or shapes that do not
// fit together, are InvalidArgument with the names and numbers; nothing is then enqueued. A view of several dimensions
// acts as a matrix: its last dimension is the columns, the others together are the rows. An empty Gradient is skipped.
// Gradients that are assigned are written in full and never read. Outputs may not overlap inputs.
//
// What is read may be a view of T or of const T: either as Input, or by an overload where T follows from nothing else.
// Elements are float or BFloat16; arithmetic is in float, or in double where sums would lose digits. For the same
// shapes and values the results have the same bits, however many threads take part.
#ifndef REPRISE_KERNELS_ARGUMENTS_H_
#define REPRISE_KERNELS_ARGUMENTS_H_

#include <concepts>
#include <type_traits>

#include "reprise/core/compute.h"
#include "reprise/core/dtype.h"

namespace reprise::kernels {

// The elements that kernels have been compiled for.
template <class T>
concept KernelElement = std::same_as<T, float> || std::same_as<T, BFloat16>;
// Of a sum over what has elements T, such as a parameter's gradient: T itself or float.
template <class G, class T>
concept GradientElement = std::same_as<G, T> || std::same_as<G, float>;

// A view that is read. Its element type follows from the other arguments, so that views of T and const T both fit.
template <class T>
using Input = TensorView<const std::type_identity_t<T>>;

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ARGUMENTS_H_
