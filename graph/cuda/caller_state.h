// What of the calling thread must be as it was when a call of ours returns.
#ifndef REPRISE_GRAPH_CUDA_CALLER_STATE_H_
#define REPRISE_GRAPH_CUDA_CALLER_STATE_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace reprise::internal {

// Makes a device current and lets this thread make calls that are refused while it captures; at the end both are as the
// caller had them. Recorders use kDeviceOnly: what a compute function may not do must be refused.
class CallerState {
 public:
  enum class Keep { kDeviceOnly, kDeviceAndCaptureMode };

  explicit CallerState(int device, Keep keep = Keep::kDeviceAndCaptureMode);
  ~CallerState();
  CallerState(const CallerState&) = delete;
  CallerState& operator=(const CallerState&) = delete;

 private:
  const Keep keep_;
  bool changed_ = false;
  // The context rather than the device: to make a device current that the caller never used would open it.
  CUcontext context_ = nullptr;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_CALLER_STATE_H_
