// Owners of CUDA objects.
#ifndef REPRISE_GRAPH_CUDA_HANDLES_H_
#define REPRISE_GRAPH_CUDA_HANDLES_H_

#include <cuda_runtime_api.h>

#include <utility>

namespace reprise::internal {

// Move-only. The object's device is current when it is destroyed: see CallerState.
template <class T, cudaError_t (*Destroy)(T)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T value) : value_(value) {}
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Handle() {
    if (value_ != nullptr) Destroy(value_);
  }

  T get() const { return value_; }
  explicit operator bool() const { return value_ != nullptr; }
  // For functions that make the object. Only if it is empty.
  T* receive() { return &value_; }

 private:
  T value_ = nullptr;
};

using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;
using GraphHandle = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphExecHandle = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

// Makes a device current and lets this thread make calls that are refused while it captures; at the end both are as the
// caller had them. Recorders use kDeviceOnly: what a compute function may not do must be refused.
class CallerState {
 public:
  enum class Keep { kDeviceOnly, kDeviceAndCaptureMode };

  explicit CallerState(int device, Keep keep = Keep::kDeviceAndCaptureMode) : keep_(keep) {
    if (cudaGetDevice(&device_) != cudaSuccess) device_ = -1;
    if (device_ != device) cudaSetDevice(device);
    if (keep_ == Keep::kDeviceAndCaptureMode) cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~CallerState() {
    if (keep_ == Keep::kDeviceAndCaptureMode) cudaThreadExchangeStreamCaptureMode(&mode_);
    if (device_ >= 0) cudaSetDevice(device_);
  }
  CallerState(const CallerState&) = delete;
  CallerState& operator=(const CallerState&) = delete;

 private:
  const Keep keep_;
  int device_ = -1;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_HANDLES_H_
