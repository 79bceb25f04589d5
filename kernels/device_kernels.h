// What a device stream offers to the kernels, and how a kernel goes to its host reference or to a device.
#ifndef REPRISE_KERNELS_DEVICE_KERNELS_H_
#define REPRISE_KERNELS_DEVICE_KERNELS_H_

#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device_arguments.h"
#include "reprise/core/compute.h"
#include "reprise/core/dtype.h"
#include "reprise/core/stream.h"
#include "reprise/kernels/gemm.h"

namespace reprise::kernels {

template <class T>
DeviceInput InputOf(const TensorView<T>& view) {
  return {DTypeOf<std::remove_const_t<T>>::value, view.data};
}
template <class T>
DeviceOutput OutputOf(const TensorView<T>& view, WriteMode mode = WriteMode::kAssign) {
  return {DTypeOf<T>::value, view.data, mode};
}
template <class T>
DeviceOutput OutputOf(const Gradient<T>& gradient) {
  return {DTypeOf<T>::value, gradient.data, gradient.mode};
}

// c [m,n] = a [m,k] b [k,n]; an operand marked Transpose::kYes is stored transposed.
struct DeviceGemm {
  int64_t m = 0, n = 0, k = 0;
  DeviceInput a = {};
  Transpose transpose_a = Transpose::kNo;
  DeviceInput b = {};
  Transpose transpose_b = Transpose::kNo;
  DeviceOutput c = {};
};

// Bound to one stream, which must outlive it. Each function enqueues its work there and returns; it never allocates or
// synchronises, so that a capture records all of it, and a replay needs nothing of this object. Not thread-safe.
class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;

#define REPRISE_DECLARE(Name, Arguments) virtual absl::Status Name(const Arguments& arguments) = 0;
  REPRISE_FOR_DEVICE_KERNELS(REPRISE_DECLARE)
#undef REPRISE_DECLARE

  virtual absl::Status Gemm(const DeviceGemm& gemm) = 0;
  // A GEMM that is assigned, and GELU, in one kernel; false, with nothing enqueued, where there is none that does both.
  // GemmGelu: h = the product, gemm.c = GeluTanh(h). GemmGeluBackward: gemm.c = the product times gelu'(h).
  virtual absl::StatusOr<bool> GemmGelu(const DeviceGemm& gemm, DeviceOutput h) = 0;
  virtual absl::StatusOr<bool> GemmGeluBackward(const DeviceGemm& gemm, DeviceInput h) = 0;
};

// Enqueues a kernel: on a device `device`, on the host host(arguments).
template <class Arguments, class Host>
absl::Status Enqueue(Stream stream, absl::Status (DeviceKernels::*device)(const Arguments&),
                     std::type_identity_t<Arguments> arguments, Host host) {
  if (!stream.is_host()) return (stream.device_kernels().*device)(arguments);
  stream.host_queue().Enqueue([arguments = std::move(arguments), host = std::move(host)] { host(arguments); });
  return absl::OkStatus();
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_DEVICE_KERNELS_H_
