// Owners of CUDA objects.
#ifndef REPRISE_GRAPH_CUDA_HANDLES_H_
#define REPRISE_GRAPH_CUDA_HANDLES_H_

#include <cuda_runtime_api.h>

#include <utility>

namespace reprise::internal {

// Move-only. The object's device is current when it is destroyed: see caller_state.h.
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
  // Leaves the object to the device, which may never be done with it.
  void Abandon() { value_ = nullptr; }
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

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_HANDLES_H_
