#include "graph/check_sums.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "graph/compute_binding.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// Spread evenly.
constexpr int64_t kParts = 8, kPartBytes = int64_t{1} << 20;

// Of a sum of n terms that are added one by one, to the largest partial sum: n roundings of 2^-24 each in fp32, of 2^-8
// in bf16. 4096 of the former, 16 of the latter.
double RelativeError(DType dtype) { return dtype == DType::kBFloat16 ? 0x1p-4 : 0x1p-12; }

double StartValue(DType dtype, uint8_t byte) { return FloatAt(Repeated(byte).data(), dtype, 0); }

}  // namespace

uint8_t StartFor(DType dtype, const Bytes& sums) {
  double largest = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(sums.size()) / SizeOf(dtype); ++i) {
    const double sum = std::abs(FloatAt(sums.data(), dtype, i));
    if (std::isfinite(sum)) largest = std::max(largest, sum);
  }
  uint8_t byte = kLeastStart;
  while (byte < kLargestStart && StartValue(dtype, byte) < largest) ++byte;
  return byte;
}

absl::Status ReadParts(MemoryProbe& probe, const CheckedUse& use, Bytes& bytes) {
  if (use.num_bytes <= kParts * kPartBytes) {
    bytes.resize(static_cast<size_t>(use.num_bytes));
    return probe.Read(bytes.data(), use.address, use.num_bytes);
  }
  bytes.resize(kParts * kPartBytes);
  for (int64_t part = 0; part < kParts; ++part) {
    const int64_t first = (use.num_bytes - kPartBytes) * part / (kParts - 1) / 4 * 4;
    REPRISE_RETURN_IF_ERROR(probe.Read(bytes.data() + part * kPartBytes, use.address + first, kPartBytes));
  }
  return absl::OkStatus();
}

NoSum CompareSums(const CheckedUse& use, const Bytes& from_zero, const Bytes& from_start) {
  const int64_t count = static_cast<int64_t>(from_zero.size()) / SizeOf(use.dtype);
  const double start = StartValue(use.dtype, use.start);
  int64_t wrong = 0, equal = 0, kept = 0, at = -1;
  for (int64_t i = 0; i < count; ++i) {
    const double a = FloatAt(from_zero.data(), use.dtype, i), b = FloatAt(from_start.data(), use.dtype, i);
    const double bound = RelativeError(use.dtype) * (std::abs(a) + std::abs(b) + start);
    // Also where either is not finite.
    if (!(std::abs(b - a - start) > bound) || !std::isfinite(a)) continue;
    at = wrong++ == 0 ? i : at;
    equal += a == b ? 1 : 0;
    kept += b == start ? 1 : 0;
  }
  if (wrong == 0) return {};
  const std::string of = absl::StrCat(wrong, " of ", count, " elements", count < use.elements() ? " looked at" : "",
                                      " of ", use.name, ", whose mode is kAdd");
  constexpr absl::string_view kRemedy =
      "; add to what is there where Gradient::mode is kAdd, and where it is lost among many or large terms, sum "
      "these apart and add them once";
  if (equal == wrong) return {absl::StrCat("assigned ", of, kRemedy), kept > 0};
  return {absl::StrCat("did not add to ", of, ": element ", at, " went from 0 to ",
                       FloatAt(from_zero.data(), use.dtype, at), ", but from ", start, " to ",
                       FloatAt(from_start.data(), use.dtype, at), kRemedy),
          kept > 0};
}

}  // namespace reprise::internal
