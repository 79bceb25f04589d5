#include "kernels/checks.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace reprise::kernels {

template <class... Parts>
Checks& Checks::Fail(const Parts&... parts) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(kernel_, ": ", parts...));
  return *this;
}

Checks& Checks::Address(absl::string_view argument, const void* address, int64_t num_elements) {
  if (address != nullptr || num_elements == 0) return *this;
  return Fail(argument, " is empty; pass a view that the call declared, of the dtype that it declared");
}

Checks& Checks::Equal(absl::string_view left, int64_t left_value, absl::string_view right, int64_t right_value) {
  if (left_value == right_value) return *this;
  return Fail(left, ": ", left_value, ", but ", right, ": ", right_value, "; make them equal");
}

Checks& Checks::NotNegative(absl::string_view what, float value) {
  if (value >= 0 && std::isfinite(value)) return *this;
  return Fail(what, ": ", value, "; pass a number that is not negative");
}

Checks& Checks::AtLeast(absl::string_view what, int64_t value, int64_t minimum) {
  if (value >= minimum) return *this;
  return Fail(what, ": ", value, "; pass at least ", minimum);
}

Checks& Checks::Divides(absl::string_view part, int64_t part_value, absl::string_view whole, int64_t whole_value) {
  if (part_value > 0 && whole_value % part_value == 0) return *this;
  return Fail(part, ": ", part_value, ", which does not divide ", whole, ": ", whole_value, "; choose a divisor");
}

Checks& Checks::FloatingPoint(absl::string_view argument, DType dtype) {
  if (IsFloatingPoint(dtype)) return *this;
  return Fail(argument, ": dtype number ", static_cast<int>(dtype), " is not floating-point; pass f32 or bf16");
}

Checks& Checks::SameShape(absl::string_view a_name, absl::Span<const int64_t> a, absl::string_view b_name,
                          absl::Span<const int64_t> b) {
  if (Rows(a) == Rows(b) && Columns(a) == Columns(b)) return *this;
  return Fail(a_name, ": [", absl::StrJoin(a, ","), "], but ", b_name, ": [", absl::StrJoin(b, ","),
              "]; make their rows and columns equal");
}

}  // namespace reprise::kernels
