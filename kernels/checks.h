// The checks that every kernel makes before it enqueues anything.
#ifndef REPRISE_KERNELS_CHECKS_H_
#define REPRISE_KERNELS_CHECKS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "reprise/core/compute.h"

namespace reprise::kernels {

// A view as a matrix: the last dimension is the columns. A scalar is 1 x 1.
inline int64_t Columns(absl::Span<const int64_t> shape) { return shape.empty() ? 1 : shape.back(); }
inline int64_t Rows(absl::Span<const int64_t> shape) {
  return shape.empty() ? 1 : NumElements(shape.first(shape.size() - 1));
}
template <class T>
int64_t Columns(const TensorView<T>& view) {
  return Columns(view.shape);
}
template <class T>
int64_t Rows(const TensorView<T>& view) {
  return Rows(view.shape);
}

// Keeps the first mistake: Checks("Add").Present("a", a).Same("b", b, "a", a).Done().
class Checks {
 public:
  explicit Checks(absl::string_view kernel) : kernel_(kernel) {}

  // Not null, unless there is nothing to point to.
  Checks& Address(absl::string_view argument, const void* address, int64_t num_elements = 1);
  template <class T>
  Checks& Present(absl::string_view argument, const TensorView<T>& view) {
    return Address(argument, view.data, NumElements(view.shape));
  }
  Checks& Equal(absl::string_view left, int64_t left_value, absl::string_view right, int64_t right_value);
  // A number, from 0 on.
  Checks& NotNegative(absl::string_view what, float value);
  Checks& AtLeast(absl::string_view what, int64_t value, int64_t minimum);
  // `whole` is a multiple of `part`, which is positive.
  Checks& Divides(absl::string_view part, int64_t part_value, absl::string_view whole, int64_t whole_value);
  // float or bfloat16.
  Checks& FloatingPoint(absl::string_view argument, DType dtype);
  // Equal rows and columns.
  template <class A, class B>
  Checks& Same(absl::string_view a_name, const TensorView<A>& a, absl::string_view b_name, const TensorView<B>& b) {
    return SameShape(a_name, a.shape, b_name, b.shape);
  }
  // The same, where the gradient is wanted.
  template <class G, class B>
  Checks& Wanted(absl::string_view name, const Gradient<G>& gradient, absl::string_view b_name,
                 const TensorView<B>& b) {
    return gradient ? SameShape(name, gradient.shape, b_name, b.shape) : *this;
  }

  // The first mistake.
  absl::Status Done() const { return status_; }

 private:
  Checks& SameShape(absl::string_view a_name, absl::Span<const int64_t> a, absl::string_view b_name,
                    absl::Span<const int64_t> b);
  template <class... Parts>
  Checks& Fail(const Parts&... parts);

  std::string kernel_;
  absl::Status status_;
};

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CHECKS_H_
