#include "tests/kernels/cuda/host_comparison.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/kernels/cuda/device.h"

namespace reprise::kernels {
namespace {

using Bytes = std::vector<std::byte>;

// Around each operand.
constexpr size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xa5};

double ValueAt(const Bytes& bytes, DType dtype, size_t element) {
  const std::byte* at = bytes.data() + element * SizeOf(dtype);
  switch (dtype) {
    case DType::kFloat32: {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    case DType::kBFloat16: {
      BFloat16 value;
      std::memcpy(&value, at, sizeof(value));
      return static_cast<float>(value);
    }
    case DType::kInt32: {
      int32_t value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    case DType::kUInt8:
      return static_cast<double>(*at);
  }
  return 0;
}

// Both sides rounded once to the dtype, after arithmetic of this error.
bool Near(double want, double got, DType dtype, double error) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return want == got;
  const double rounding = dtype == DType::kFloat32 ? Epsilon<float>() : Epsilon<BFloat16>();
  return std::abs(want - got) <= 2 * error + 2 * rounding * (std::abs(want) + error);
}

// An error that the device does not recover from would fail every later case as well, and hide the one that made it.
void ExpectRan(const absl::Status& status, const std::string& what) {
  EXPECT_EQ(status, absl::OkStatus()) << what;
  if (status.ok() || cudaDeviceSynchronize() == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s; the device is lost\n", what.c_str(), status.ToString().c_str());
  std::abort();
}

}  // namespace

Operand HostComparison::AddBytes(Bytes bytes, Shape shape, DType dtype, int64_t element_bytes, bool output,
                                 double error) {
  operands_.push_back({std::move(bytes), dtype, element_bytes, output, error});
  return {operands_.size() - 1, std::move(shape)};
}

HostComparison::Placement HostComparison::Place(std::string name, const std::function<bool(size_t)>& moved) const {
  Placement placement = {std::move(name), {}};
  size_t end = 0;
  for (size_t i = 0; i < operands_.size(); ++i) {
    const size_t start = (end + kGuardBytes + 255) / 256 * 256;
    placement.offsets.push_back(start + (moved(i) ? operands_[i].element_bytes : 0));
    end = placement.offsets.back() + operands_[i].bytes.size();
  }
  placement.offsets.push_back(end + kGuardBytes);
  return placement;
}

std::vector<std::byte> HostComparison::Image(const Placement& placement) const {
  Bytes image(placement.offsets.back(), kGuard);
  for (size_t i = 0; i < operands_.size(); ++i) {
    std::copy(operands_[i].bytes.begin(), operands_[i].bytes.end(), image.begin() + placement.offsets[i]);
  }
  return image;
}

std::vector<Bytes> HostComparison::OnHost(const Call& call) const {
  std::vector<Bytes> results;
  for (const OperandBytes& operand : operands_) {
    results.push_back(operand.bytes);
    results.back().resize(std::max<size_t>(1, operand.bytes.size()));
  }
  Memory memory;
  for (Bytes& result : results) memory.addresses.push_back(result.data());
  EXPECT_EQ(call(HostStream(), memory), absl::OkStatus()) << name_ << " on the host";
  for (size_t i = 0; i < operands_.size(); ++i) results[i].resize(operands_[i].bytes.size());
  return results;
}

std::vector<Bytes> HostComparison::OnDevice(const Call& call, const Placement& placement) const {
  Device& device = Device::Get();
  const Bytes initial = Image(placement);
  std::byte* base = device.memory(initial.size());
  Memory memory;
  for (size_t i = 0; i < operands_.size(); ++i) memory.addresses.push_back(base + placement.offsets[i]);
  const auto enqueue = [&] { return call(device.stream(), memory); };
  const std::string what = absl::StrCat(name_, " on the device, operands ", placement.name);
  const auto upload = [&] { EXPECT_EQ(device.Upload(base, initial.data(), initial.size()), absl::OkStatus()) << what; };
  const auto download = [&] {
    Bytes image(initial.size());
    EXPECT_EQ(cudaMemcpy(image.data(), base, image.size(), cudaMemcpyDeviceToHost), cudaSuccess) << what;
    return image;
  };

  upload();
  ExpectRan(device.Run(enqueue), what);
  const Bytes first = download();
  const auto expect_again = [&](const std::string& how) {
    const Bytes again = download();
    if (again == first) return;
    const auto [a, b] = std::mismatch(first.begin(), first.end(), again.begin());
    ADD_FAILURE() << what << ": " << how << " differs from the first run, first at byte " << a - first.begin()
                  << " of the operands' memory";
  };
  upload();
  ExpectRan(device.Run(enqueue), what + ", second run");
  expect_again("the second run");
  ExpectRan(device.Replay(enqueue, upload, [&] { expect_again("a replay"); }), what + ", captured");

  // What may change is cut out of the image; the rest must be what it was.
  std::vector<Bytes> results;
  Bytes rest = first;
  for (size_t i = 0; i < operands_.size(); ++i) {
    const auto begin = first.begin() + placement.offsets[i], end = begin + operands_[i].bytes.size();
    results.emplace_back(begin, end);
    if (operands_[i].output)
      std::copy_n(initial.begin() + placement.offsets[i], end - begin, rest.begin() + placement.offsets[i]);
  }
  const auto [was, is] = std::mismatch(initial.begin(), initial.end(), rest.begin());
  EXPECT_TRUE(was == initial.end()) << what << ": wrote outside its outputs, first at byte " << was - initial.begin()
                                    << "; operands start at " << absl::StrCat(placement.offsets[0])
                                    << " and have guards of " << kGuardBytes << " bytes";
  return results;
}

void HostComparison::ExpectSame(const Bytes& want, const Bytes& got, size_t operand, double error,
                                const std::string& what) const {
  if (want == got) return;
  const DType dtype = operands_[operand].dtype;
  const size_t size = static_cast<size_t>(SizeOf(dtype)), count = want.size() / size;
  size_t first = count, wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool same = error == kExact
                          ? std::equal(want.begin() + i * size, want.begin() + (i + 1) * size, got.begin() + i * size)
                          : Near(ValueAt(want, dtype, i), ValueAt(got, dtype, i), dtype, error);
    if (same) continue;
    first = std::min(first, i);
    ++wrong;
  }
  EXPECT_EQ(wrong, 0u) << what << ": operand " << operand << " (" << std::string(Name(dtype)) << "): " << wrong
                       << " of " << count << " elements differ, first element " << first << ": "
                       << ValueAt(got, dtype, first) << ", should be " << ValueAt(want, dtype, first)
                       << (error == kExact ? std::string(" exactly")
                                           : absl::StrCat(" within ", error, " and rounding"));
}

bool IsTooLarge(int64_t num_bytes) {
  const char* const limit = std::getenv("REPRISE_TEST_MAX_BYTES");
  return limit != nullptr && num_bytes > std::atoll(limit);
}

void HostComparison::Run(const Call& call) {
  int64_t total = 0;
  for (const OperandBytes& operand : operands_) total += static_cast<int64_t>(operand.bytes.size());
  if (IsTooLarge(total)) return;
  const std::vector<Bytes> want = OnHost(call);
  const std::vector<Placement> placements = {
      Place("at whole vectors", [](size_t) { return false; }), Place("one element past", [](size_t) { return true; }),
      Place("of which the last is one element past", [&](size_t i) { return i + 1 == operands_.size(); })};
  std::vector<Bytes> first;
  for (const Placement& placement : placements) {
    const std::vector<Bytes> got = OnDevice(call, placement);
    if (::testing::Test::HasFatalFailure()) return;
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (!operands_[i].output) continue;
      const std::string what = absl::StrCat(name_, ", operands ", placement.name);
      ExpectSame(want[i], got[i], i, operands_[i].error, what);
      if (!first.empty() && !placement_matters_)
        ExpectSame(first[i], got[i], i, kExact, what + ", against whole vectors");
    }
    if (first.empty()) first = got;
  }
}

}  // namespace reprise::kernels
