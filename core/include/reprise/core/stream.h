// Where kernels are enqueued: a value that stands for a queue of host work or for a device stream, so that model code
// is written once for both.
#ifndef REPRISE_CORE_STREAM_H_
#define REPRISE_CORE_STREAM_H_

#include <functional>

namespace reprise {
namespace kernels {
class DeviceKernels;  // kernels/device_kernels.h
}

// Receives host work in order. An implementation either runs the work at once or keeps it, to run it once per replay;
// so `work` must hold its arguments by value and may run any number of times.
class HostQueue {
 public:
  virtual ~HostQueue() = default;
  virtual void Enqueue(std::function<void()> work) = 0;
};

// A HostQueue that runs the work in Enqueue.
class ImmediateHostQueue : public HostQueue {
 public:
  void Enqueue(std::function<void()> work) override { work(); }
};

// Borrows what it was made from, which must outlive it. Cheap to copy.
class Stream {
 public:
  explicit Stream(HostQueue* queue) : host_queue_(queue) {}
  // `device_stream` is a cudaStream_t, and `kernels` launch on it; CudaStream() in reprise/graph/cuda_world.h gives it
  // back.
  Stream(void* device_stream, kernels::DeviceKernels* kernels) : device_stream_(device_stream), kernels_(kernels) {}

  bool is_host() const { return host_queue_ != nullptr; }
  // Only if is_host().
  HostQueue& host_queue() const { return *host_queue_; }
  // Only if not is_host().
  void* device_stream() const { return device_stream_; }
  kernels::DeviceKernels& device_kernels() const { return *kernels_; }

 private:
  HostQueue* host_queue_ = nullptr;
  void* device_stream_ = nullptr;
  kernels::DeviceKernels* kernels_ = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_CORE_STREAM_H_
