// A device kernel and its host reference on the same operands: what the tests of device kernels share.
//
//   HostComparison both("Relu of 7");
//   const Operand x = both.Input(Random<float>({7}, 1)), y = both.Output<float>(7, WriteMode::kAssign, /*error=*/0);
//   both.Run([&](Stream stream, const Memory& m) { return Relu<float>(stream, m.view<float>(x), m.view<float>(y)); });
//
// Run calls the kernel on the host and on the device, and expects of the device: the host's results, within the error
// of the arithmetic; the same bytes a second time, and from each of two replays of a captured graph; the same bytes
// wherever the operands lie, at whole vectors or one element past; and no byte written elsewhere.
// REPRISE_TEST_MAX_BYTES leaves out cases whose operands are larger, for tools that run a thousand times slower:
// compute-sanitizer.
#ifndef REPRISE_TESTS_KERNELS_CUDA_HOST_COMPARISON_H_
#define REPRISE_TESTS_KERNELS_CUDA_HOST_COMPARISON_H_

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/kernels/kernel_testing.h"

namespace reprise::kernels {

// Does REPRISE_TEST_MAX_BYTES leave out a case of so many?
bool IsTooLarge(int64_t num_bytes);

// An operand of a comparison.
struct Operand {
  size_t index = 0;
  Shape shape = {};
};

// The operands' addresses on one side.
struct Memory {
  std::vector<void*> addresses;

  template <class T>
  T* data(const Operand& operand) const {
    return static_cast<T*>(addresses[operand.index]);
  }
  template <class T>
  TensorView<T> view(const Operand& operand) const {
    return {data<T>(operand), operand.shape};
  }
  template <class T>
  Gradient<T> gradient(const Operand& operand, WriteMode mode) const {
    Gradient<T> gradient;
    gradient.data = data<T>(operand);
    gradient.shape = operand.shape;
    gradient.mode = mode;
    return gradient;
  }
};

using Call = std::function<absl::Status(Stream, const Memory&)>;

class HostComparison {
 public:
  // `name` says in failures what ran.
  explicit HostComparison(std::string name) : name_(std::move(name)) {}

  template <class T>
  Operand Input(const Tensor<T>& values) {
    return Add(values, /*output=*/false, 0);
  }
  // Starts as NaN to assign to, or as values to add to. `error`: of each side's arithmetic, beside one rounding to T.
  template <class T>
  Operand Output(Shape shape, WriteMode mode, double error) {
    Tensor<T> initial = mode == WriteMode::kAdd ? Random<T>(std::move(shape), 77, 4) : Tensor<T>(std::move(shape));
    return Add(initial, /*output=*/true, error);
  }
  // Must equal the host's bit for bit.
  template <class T>
  Operand ExactOutput(Shape shape, WriteMode mode) {
    return Output<T>(std::move(shape), mode, kExact);
  }
  // Read and written; `error` as for Output, kExact without it.
  template <class T>
  Operand Update(const Tensor<T>& initial, double error = kExact) {
    return Add(initial, /*output=*/true, error);
  }
  // A structure, such as a ControlBlock, that keeps its place; the results must be equal bit for bit.
  template <class T>
  Operand Struct(const T& initial) {
    return Structs(std::vector<T>{initial});
  }
  template <class T>
  Operand Structs(const std::vector<T>& initial) {
    const auto* bytes = reinterpret_cast<const std::byte*>(initial.data());
    return AddBytes({bytes, bytes + initial.size() * sizeof(T)}, {}, DType::kUInt8, /*element_bytes=*/0,
                    /*output=*/true, kExact);
  }

  // For kernels whose results may depend on where their operands lie.
  HostComparison& AllowPlacementToMatter() {
    placement_matters_ = true;
    return *this;
  }

  void Run(const Call& call);

  static constexpr double kExact = -1;

 private:
  struct OperandBytes {
    std::vector<std::byte> bytes;
    DType dtype;
    int64_t element_bytes;  // how far it moves when it is not to lie at a whole vector
    bool output;
    double error;
  };
  // Where the operands start in one block of memory.
  struct Placement {
    std::string name;
    std::vector<size_t> offsets;
  };

  template <class T>
  Operand Add(const Tensor<T>& values, bool output, double error) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data.data());
    return AddBytes({bytes, bytes + values.size() * sizeof(T)}, values.shape, DTypeOf<T>::value, sizeof(T), output,
                    error);
  }
  Operand AddBytes(std::vector<std::byte> bytes, Shape shape, DType dtype, int64_t element_bytes, bool output,
                   double error);
  Placement Place(std::string name, const std::function<bool(size_t)>& moved) const;
  std::vector<std::byte> Image(const Placement& placement) const;
  std::vector<std::vector<std::byte>> OnHost(const Call& call) const;
  std::vector<std::vector<std::byte>> OnDevice(const Call& call, const Placement& placement) const;
  void ExpectSame(const std::vector<std::byte>& want, const std::vector<std::byte>& got, size_t operand, double error,
                  const std::string& what) const;

  std::string name_;
  std::vector<OperandBytes> operands_;
  bool placement_matters_ = false;
};

// Float, bfloat16 and write mode in every combination that a kernel may meet.
template <class Body>
void ForEachMode(const Body& body) {
  for (const WriteMode mode : {WriteMode::kAssign, WriteMode::kAdd}) body(mode);
}
inline const char* NameOf(WriteMode mode) { return mode == WriteMode::kAssign ? "assign" : "add"; }

// Around the sizes of vectors, warps, blocks and tiles.
inline const int64_t kCounts[] = {0, 1, 3, 7, 8, 9, 31, 33, 255, 257, 1023, 1025, 4095, 4096, 4100, 70001};
inline constexpr int64_t kLargeCount = (int64_t{1} << 20) + 3;

}  // namespace reprise::kernels

#endif  // REPRISE_TESTS_KERNELS_CUDA_HOST_COMPARISON_H_
