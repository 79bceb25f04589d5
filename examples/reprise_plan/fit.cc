#include "examples/reprise_plan/fit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/reprise_plan/summary.h"

namespace reprise {
namespace {

constexpr size_t kLargestBuffers = 8;

bool IsOnDevice(Storage storage) { return storage != Storage::kHostVisible && storage != Storage::kExternal; }

}  // namespace

absl::StatusOr<int64_t> BytesFromText(absl::string_view text) {
  const auto is_number = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.'; };
  const size_t digits = std::find_if_not(text.begin(), text.end(), is_number) - text.begin();
  const absl::string_view unit = absl::StripLeadingAsciiWhitespace(text.substr(digits));
  double number = 0, scale = 0;
  if (absl::EqualsIgnoreCase(unit, "B")) scale = 1;
  constexpr absl::string_view kPrefixes = "KMGT";
  for (size_t p = 0; p < kPrefixes.size(); ++p) {
    const absl::string_view prefix = kPrefixes.substr(p, 1);
    if (absl::EqualsIgnoreCase(unit, absl::StrCat(prefix, "B"))) scale = std::pow(1000.0, p + 1);
    if (absl::EqualsIgnoreCase(unit, absl::StrCat(prefix, "iB"))) scale = std::pow(1024.0, p + 1);
  }
  if (scale > 0 && absl::SimpleAtod(text.substr(0, digits), &number) && number * scale < 0x1p62) {
    return static_cast<int64_t>(number * scale);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no amount of memory below 2^62 bytes", unit.empty() ? ": it has no unit" : "",
                   "; give a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 141GB"));
}

int64_t DeviceBytes(const Plan& plan) {
  int64_t bytes = 0;
  for (int s = 0; s < kNumStorages; ++s) {
    if (IsOnDevice(static_cast<Storage>(s))) bytes += plan.memory.num_bytes[s];
  }
  return bytes;
}

std::string FitTable(const Plan& plan, int64_t device_memory, absl::string_view note) {
  const int64_t needed = DeviceBytes(plan);
  std::string out = "\nmemory of a device, besides what CUDA, NCCL and external tensors take\n";
  AddBytes("given", device_memory, out);
  AddBytes("needed", needed, out);
  AddBytes(needed <= device_memory ? "fits: left" : "DOES NOT FIT: lacking", std::abs(device_memory - needed), out);
  absl::StrAppend(&out, note);

  std::vector<const Buffer*> largest;
  for (const Buffer& buffer : plan.buffers) {
    if (IsOnDevice(buffer.storage) && buffer.num_bytes > 0) largest.push_back(&buffer);
  }
  const auto larger = [](const Buffer* a, const Buffer* b) { return a->num_bytes > b->num_bytes; };
  std::stable_sort(largest.begin(), largest.end(), larger);
  largest.resize(std::min(largest.size(), kLargestBuffers));
  out += "\nlargest buffers\n";
  for (const Buffer* buffer : largest) {
    absl::StrAppendFormat(&out, "%-28s%20d  %s\n", buffer->name, buffer->num_bytes, Name(buffer->storage));
  }
  return out;
}

}  // namespace reprise
