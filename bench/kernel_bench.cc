// Bandwidth of the kernels that stream through memory, and its ratio to that of a copy on the device: bytes read and
// written, of buffers of 64 MiB to 1 GiB.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/run_benchmarks.h"
#include "benchmark/benchmark.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/norm_ranges.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/accumulate.h"
#include "reprise/kernels/activations.h"
#include "reprise/kernels/adamw.h"
#include "reprise/kernels/cast.h"
#include "reprise/kernels/gemm.h"
#include "reprise/kernels/linear_gelu.h"
#include "reprise/kernels/pack.h"

namespace reprise::kernels {
namespace {

struct FreeMemory {
  void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<void, FreeMemory>;

// Made once, as far as there is a device.
class Device {
 public:
  static absl::StatusOr<Device*> Get() {
    static absl::StatusOr<Device*> device = New();
    return device;
  }

  Stream stream() { return Stream(static_cast<void*>(stream_), kernels_.get()); }
  cudaStream_t cuda_stream() const { return stream_; }

  // Memory of zeros.
  static absl::StatusOr<DeviceMemory> Allocate(int64_t num_bytes) {
    void* memory = nullptr;
    const size_t size = static_cast<size_t>(num_bytes);
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, size), absl::StrCat("cudaMalloc of ", num_bytes)));
    DeviceMemory owner(memory);
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaMemset(memory, 0, size), "cudaMemset"));
    return owner;
  }

  // Seconds that the device takes for what `enqueue` enqueues.
  absl::StatusOr<double> Time(const std::function<absl::Status()>& enqueue) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(begin_, stream_), "cudaEventRecord"));
    REPRISE_RETURN_IF_ERROR(enqueue());
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(end_, stream_), "cudaEventRecord"));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(end_), "cudaEventSynchronize"));
    float milliseconds = 0;
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime"));
    return milliseconds * 1e-3;
  }

 private:
  static absl::StatusOr<Device*> New() {
    auto device = std::make_unique<Device>();
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking), "stream"));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&device->begin_), "cudaEventCreate"));
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&device->end_), "cudaEventCreate"));
    REPRISE_ASSIGN_OR_RETURN(device->workspace_, Allocate(kCudaWorkspaceBytes));
    REPRISE_ASSIGN_OR_RETURN(device->kernels_,
                             NewCudaKernels({.stream = device->stream_, .workspace = device->workspace_.get()}));
    return device.release();
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  DeviceMemory workspace_;
  std::unique_ptr<DeviceKernels> kernels_;
};

// Bytes of the largest array, from the benchmark's argument in MiB.
int64_t BufferBytes(const benchmark::State& state) { return state.range(0) << 20; }

// Bytes per second of copies between two buffers of this size, the best of some.
absl::StatusOr<double> CopyBandwidth(Device& device, int64_t num_bytes) {
  static std::map<int64_t, double> known;
  if (const auto it = known.find(num_bytes); it != known.end()) return it->second;
  REPRISE_ASSIGN_OR_RETURN(const DeviceMemory from, Device::Allocate(num_bytes));
  REPRISE_ASSIGN_OR_RETURN(const DeviceMemory to, Device::Allocate(num_bytes));
  double best = 0;
  for (int repetition = 0; repetition < 20; ++repetition) {
    REPRISE_ASSIGN_OR_RETURN(const double seconds, device.Time([&] {
      return CudaStatus(cudaMemcpyAsync(to.get(), from.get(), static_cast<size_t>(num_bytes), cudaMemcpyDeviceToDevice,
                                        device.cuda_stream()),
                        "cudaMemcpyAsync");
    }));
    best = std::max(best, 2.0 * static_cast<double>(num_bytes) / seconds);
  }
  return known[num_bytes] = best;
}

// Times `enqueue`, which reads and writes `bytes_moved`.
absl::Status Measure(benchmark::State& state, Device& device, int64_t bytes_moved,
                     const std::function<absl::Status()>& enqueue) {
  REPRISE_ASSIGN_OR_RETURN(const double copy, CopyBandwidth(device, BufferBytes(state)));
  // Memory is there, and the kernel loaded.
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  REPRISE_RETURN_IF_ERROR(device.Time(enqueue).status());
  double seconds = 0;
  for (auto _ : state) {
    REPRISE_ASSIGN_OR_RETURN(const double once, device.Time(enqueue));
    state.SetIterationTime(once);
    seconds += once;
  }
  const double bandwidth = static_cast<double>(bytes_moved) * static_cast<double>(state.iterations()) / seconds;
  state.counters["GB/s"] = bandwidth * 1e-9;
  state.counters["of_copy"] = bandwidth / copy;
  return absl::OkStatus();
}

// Runs `body` with the device.
template <class Body>
void WithDevice(benchmark::State& state, const Body& body) {
  const absl::StatusOr<Device*> device = Device::Get();
  const absl::Status status = device.ok() ? body(**device) : device.status();
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

void BM_Copy(benchmark::State& state) {
  WithDevice(state, [&](Device& device) -> absl::Status {
    const int64_t bytes = BufferBytes(state);
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory from, Device::Allocate(bytes));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory to, Device::Allocate(bytes));
    return Measure(state, device, 2 * bytes, [&] {
      return CudaStatus(cudaMemcpyAsync(to.get(), from.get(), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                                        device.cuda_stream()),
                        "cudaMemcpyAsync");
    });
  });
}

// Float gradients to a reduce buffer of bfloat16.
void BM_Pack(benchmark::State& state) {
  WithDevice(state, [&](Device& device) -> absl::Status {
    const int64_t count = BufferBytes(state) / 4;
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory gradient, Device::Allocate(4 * count));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory reduce_buffer, Device::Allocate(2 * count));
    return Measure(state, device, 6 * count, [&] {
      return Pack(
          device.stream(),
          {.gradient = gradient.get(), .columns = count, .row_stride = count, .reduce_buffer = reduce_buffer.get()});
    });
  });
}

void BM_CopyBFloat16(benchmark::State& state) {
  WithDevice(state, [&](Device& device) -> absl::Status {
    const int64_t count = BufferBytes(state) / 2;
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory from, Device::Allocate(2 * count));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory to, Device::Allocate(2 * count));
    return Measure(state, device, 4 * count, [&] {
      return Cast(device.stream(), DType::kBFloat16, from.get(), DType::kBFloat16, to.get(), count);
    });
  });
}

// Parts in bfloat16, added to the accumulator, in the step's last microbatch: arguments are the accumulator's MiB, the
// number of parts and whether compute is said to run beside it, for which the larger ones take few multiprocessors.
void BM_ReduceAccumulate(benchmark::State& state) {
  WithDevice(state, [&](Device& device) -> absl::Status {
    const int64_t count = BufferBytes(state) / 4, num_parts = state.range(1);
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory control, Device::Allocate(sizeof(ControlBlock)));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory parts, Device::Allocate(2 * num_parts * count));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory accumulator, Device::Allocate(4 * count));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory norm, Device::Allocate(8 * NormRanges(count)));
    const ControlBlock control_values = {.microbatches = 2};
    REPRISE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(control.get(), &control_values, sizeof(control_values), cudaMemcpyHostToDevice), "cudaMemcpy"));
    return Measure(state, device, (2 * num_parts + 8) * count, [&] {
      return ReduceAccumulate(device.stream(), {.control = static_cast<ControlBlock*>(control.get()),
                                                .position = 1,
                                                .parts = parts.get(),
                                                .num_parts = static_cast<int>(num_parts),
                                                .elements = count,
                                                .accumulator = static_cast<float*>(accumulator.get()),
                                                .segments = {{0, count}},
                                                .norm_partials = static_cast<double*>(norm.get()),
                                                .beside_compute = state.range(2) != 0});
    });
  });
}

void BM_AdamW(benchmark::State& state) {
  WithDevice(state, [&](Device& device) -> absl::Status {
    const int64_t count = BufferBytes(state) / 4;
    const ControlBlock control_values = {.learning_rate = 1e-3f, .gradient_divisor = 3};
    const StepState step_values = {.norm_squared = 1, .optimizer_steps = 10};
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory control, Device::Allocate(sizeof(ControlBlock)));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory step, Device::Allocate(sizeof(StepState)));
    REPRISE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(control.get(), &control_values, sizeof(control_values), cudaMemcpyHostToDevice), "cudaMemcpy"));
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(step.get(), &step_values, sizeof(step_values), cudaMemcpyHostToDevice), "cudaMemcpy"));
    DeviceMemory arrays[4];
    for (DeviceMemory& array : arrays) {
      REPRISE_ASSIGN_OR_RETURN(array, Device::Allocate(4 * count));
    }
    return Measure(state, device, 28 * count, [&] {
      return AdamW(device.stream(), {.update = {.control = static_cast<ControlBlock*>(control.get()),
                                                .step_state = static_cast<StepState*>(step.get()),
                                                .clip_norm = 1,
                                                .gradient_sum = static_cast<float*>(arrays[0].get()),
                                                .master = arrays[1].get(),
                                                .count = count},
                                     .weight_decay = 0.1f,
                                     .first_moment = static_cast<float*>(arrays[2].get()),
                                     .second_moment = static_cast<float*>(arrays[3].get())});
    });
  });
}

// ---- GELU in the GEMM's kernel, and in one of its own ----

// Matrices of zeros draw less power than real ones, and so run faster.
absl::StatusOr<DeviceMemory> RandomMatrix(int64_t num_bytes, DType dtype) {
  REPRISE_ASSIGN_OR_RETURN(DeviceMemory memory, Device::Allocate(num_bytes));
  constexpr int64_t kElements = int64_t{1} << 20;
  std::minstd_rand random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (float& value : values) value = normal(random);
  const std::vector<BFloat16> rounded(values.begin(), values.end());
  const void* const from = dtype == DType::kFloat32 ? static_cast<const void*>(values.data()) : rounded.data();
  const int64_t chunk = kElements * SizeOf(dtype);
  for (int64_t done = 0; done < num_bytes; done += chunk) {
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(static_cast<std::byte*>(memory.get()) + done, from,
                              static_cast<size_t>(std::min(chunk, num_bytes - done)), cudaMemcpyHostToDevice),
                   "cudaMemcpy"));
  }
  return memory;
}

// Arguments: rows, columns of x, columns of h, and whether GELU has a kernel of its own.
template <class T, bool kBackward>
void BM_Gelu(benchmark::State& state) {
  WithDevice(state, [&](Device& device) -> absl::Status {
    const int64_t rows = state.range(0), width = state.range(1), hidden = state.range(2);
    const bool apart = state.range(3) != 0;
    const Shape narrow = {rows, width}, wide = {rows, hidden};
    const Shape weight = kBackward ? Shape{width, hidden} : Shape{hidden, width};
    const auto bytes = [](const Shape& shape) { return NumElements(shape) * static_cast<int64_t>(sizeof(T)); };
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory x, RandomMatrix(bytes(narrow), DTypeOf<T>::value));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory w, RandomMatrix(bytes(weight), DTypeOf<T>::value));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory h, RandomMatrix(bytes(wide), DTypeOf<T>::value));
    REPRISE_ASSIGN_OR_RETURN(const DeviceMemory y, RandomMatrix(bytes(wide), DTypeOf<T>::value));
    const auto view = [](const DeviceMemory& memory, const Shape& shape) {
      return TensorView<T>{static_cast<T*>(memory.get()), shape};
    };
    const Stream stream = device.stream();
    const auto run = [&]() -> absl::Status {
      if constexpr (kBackward) {
        if (!apart)
          return GeluLinearBackward<T>(stream, view(x, narrow), view(h, wide), view(w, weight), view(y, wide));
        REPRISE_RETURN_IF_ERROR((Gemm<T, T>(stream, view(x, narrow), Transpose::kNo, view(w, weight), Transpose::kNo,
                                            WriteMode::kAssign, view(y, wide))));
        return GeluTanhBackward<T>(stream, view(y, wide), view(h, wide),
                                   Gradient<T>{view(y, wide), WriteMode::kAssign});
      } else {
        if (!apart) return LinearGelu<T>(stream, view(x, narrow), view(w, weight), view(h, wide), view(y, wide));
        REPRISE_RETURN_IF_ERROR((Gemm<T, T>(stream, view(x, narrow), Transpose::kNo, view(w, weight), Transpose::kYes,
                                            WriteMode::kAssign, view(h, wide))));
        return GeluTanh<T>(stream, view(h, wide), view(y, wide));
      }
    };
    for (int warm = 0; warm < 3; ++warm) REPRISE_RETURN_IF_ERROR(device.Time(run).status());
    double seconds = 0;
    for (auto _ : state) {
      REPRISE_ASSIGN_OR_RETURN(const double once, device.Time(run));
      state.SetIterationTime(once);
      seconds += once;
    }
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(width) * static_cast<double>(hidden);
    state.counters["TFLOP/s"] = flops * static_cast<double>(state.iterations()) / seconds * 1e-12;
    return absl::OkStatus();
  });
}
void GeluShapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "width", "hidden", "apart"})->UseManualTime();
  for (const int64_t apart : {0, 1}) {
    bench->Args({64, 64, 256, apart});  // the short form
    bench->Args({1024, 1024, 4096, apart})->Args({4096, 768, 3072, apart})->Args({4096, 4096, 16384, apart});
  }
}
BENCHMARK(BM_Gelu<BFloat16, false>)->Apply(GeluShapes);
BENCHMARK(BM_Gelu<BFloat16, true>)->Apply(GeluShapes);
BENCHMARK(BM_Gelu<float, false>)->Apply(GeluShapes);
BENCHMARK(BM_Gelu<float, true>)->Apply(GeluShapes);

BENCHMARK(BM_Copy)->RangeMultiplier(4)->Range(64, 1024)->UseManualTime();
BENCHMARK(BM_Pack)->RangeMultiplier(4)->Range(64, 1024)->UseManualTime();
BENCHMARK(BM_CopyBFloat16)->RangeMultiplier(4)->Range(64, 1024)->UseManualTime();
BENCHMARK(BM_ReduceAccumulate)->ArgsProduct({{64, 256, 1024}, {1, 2}, {0, 1}})->UseManualTime();
BENCHMARK(BM_AdamW)->RangeMultiplier(4)->Range(64, 1024)->UseManualTime();

}  // namespace
}  // namespace reprise::kernels

// Without a GPU nothing is measured, and that is said.
int main(int argc, char** argv) {
  int count = 0;
  const absl::Status found = reprise::kernels::CudaStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (!found.ok()) {
    const char* required = std::getenv("REPRISE_REQUIRE_GPU");
    std::printf("kernel_bench is skipped: %s\n", std::string(found.message()).c_str());
    return required != nullptr && std::string(required) == "1" ? 1 : 0;
  }
  return reprise::bench::RunBenchmarks(argc, argv);
}
