// The device of the tests: one stream with its kernels, and memory.
#ifndef REPRISE_TESTS_KERNELS_CUDA_DEVICE_H_
#define REPRISE_TESTS_KERNELS_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "kernels/device_kernels.h"
#include "reprise/core/stream.h"

namespace reprise::kernels {

class Device {
 public:
  // Made when it is first asked for, and kept while the process runs; aborts the test program if that fails.
  static Device& Get();

  Stream stream() { return Stream(static_cast<void*>(cuda_stream_), kernels_.get()); }
  cudaStream_t cuda_stream() const { return cuda_stream_; }
  // Memory for `num_bytes`, the same for each call that needs no more than an earlier one.
  std::byte* memory(size_t num_bytes);

  // Copies to the device, before whatever the stream runs next.
  absl::Status Upload(void* to, const void* from, size_t num_bytes);

  // Fills the workspace with NaN, so that a kernel that reads what it did not write is found out; then runs `enqueue`
  // on the stream, and waits.
  absl::Status Run(const std::function<absl::Status()>& enqueue);
  // The same, from a graph that captured `enqueue`, twice; `before` runs before and `after` after each launch.
  absl::Status Replay(const std::function<absl::Status()>& enqueue, const std::function<void()>& before,
                      const std::function<void()>& after);

 private:
  Device();
  absl::Status Poison();

  cudaStream_t cuda_stream_ = nullptr;
  void* workspace_ = nullptr;
  void* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::unique_ptr<DeviceKernels> kernels_;
};

}  // namespace reprise::kernels

#endif  // REPRISE_TESTS_KERNELS_CUDA_DEVICE_H_
