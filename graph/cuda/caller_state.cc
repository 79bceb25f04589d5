#include "graph/cuda/caller_state.h"

#include "graph/cuda/driver_api.h"

namespace reprise::internal {
namespace {

struct ContextApi {
  decltype(&cuCtxGetCurrent) get_current = nullptr;
  decltype(&cuCtxSetCurrent) set_current = nullptr;
};

// Null functions without a driver: there is no context to keep then.
const ContextApi& Contexts() {
  static const ContextApi api = [] {
    ContextApi found;
    REPRISE_LOAD_DRIVER_FUNCTION(cuCtxGetCurrent, 4000, found.get_current).IgnoreError();
    REPRISE_LOAD_DRIVER_FUNCTION(cuCtxSetCurrent, 4000, found.set_current).IgnoreError();
    return found;
  }();
  return api;
}

}  // namespace

CallerState::CallerState(int device, Keep keep) : keep_(keep) {
  int current = -1;
  if (Contexts().get_current != nullptr) Contexts().get_current(&context_);
  if (context_ == nullptr || cudaGetDevice(&current) != cudaSuccess || current != device) {
    changed_ = true;
    cudaSetDevice(device);
  }
  if (keep_ == Keep::kDeviceAndCaptureMode) cudaThreadExchangeStreamCaptureMode(&mode_);
}

CallerState::~CallerState() {
  if (keep_ == Keep::kDeviceAndCaptureMode) cudaThreadExchangeStreamCaptureMode(&mode_);
  if (changed_ && Contexts().set_current != nullptr) Contexts().set_current(context_);
}

}  // namespace reprise::internal
