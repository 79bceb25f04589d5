// CUDA runtime errors as statuses: the one place where they are translated.
#ifndef REPRISE_KERNELS_CUDA_CUDA_STATUS_H_
#define REPRISE_KERNELS_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace reprise::kernels {

// OK for cudaSuccess. Else "<what>: <the runtime's words> (<error name>)", with the code
//   ResourceExhausted   out of memory,
//   Unavailable         no device, no driver, or a device that other work holds,
//   FailedPrecondition  a call that capture forbids, or a capture that is no longer valid,
//   Internal            anything else;
// and the runtime's last error is cleared, so that later calls do not report it again.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_CUDA_CUDA_STATUS_H_
