#include "graph/cuda/process_memory.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// NVML's header is a package of its own, which building reprise does not ask for: these are the four functions of its
// stable interface that are needed (NVML API reference, "nvmlDeviceGetComputeRunningProcesses_v3").
constexpr int kNvmlSuccess = 0, kNvmlInsufficientSize = 7;
constexpr unsigned long long kNvmlNotAvailable = ~0ULL;
struct NvmlProcess {
  unsigned pid = 0;
  unsigned long long used_bytes = 0;
  unsigned gpu_instance = 0, compute_instance = 0;
};
struct Nvml {
  int (*init)() = nullptr;
  int (*get_handle)(const char* uuid, void** device) = nullptr;
  int (*get_processes)(void* device, unsigned* count, NvmlProcess* processes) = nullptr;
  const char* (*error_string)(int result) = nullptr;
};

absl::StatusOr<Nvml> LoadNvml() {
  void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "NVML, which tells each process's device memory, cannot be loaded: ", dlerror(), "; it comes with the driver"));
  }
  Nvml nvml;
  const auto find = [&](const char* name, auto& function) -> absl::Status {
    void* const address = dlsym(library, name);
    if (address == nullptr) return absl::UnavailableError(absl::StrCat("NVML has no ", name, "; update the driver"));
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
    return absl::OkStatus();
  };
  REPRISE_RETURN_IF_ERROR(find("nvmlInit_v2", nvml.init));
  REPRISE_RETURN_IF_ERROR(find("nvmlDeviceGetHandleByUUID", nvml.get_handle));
  REPRISE_RETURN_IF_ERROR(find("nvmlDeviceGetComputeRunningProcesses_v3", nvml.get_processes));
  REPRISE_RETURN_IF_ERROR(find("nvmlErrorString", nvml.error_string));
  return nvml;
}

absl::Status NvmlStatus(const Nvml& nvml, int result, absl::string_view what) {
  if (result == kNvmlSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", nvml.error_string(result), " (NVML error ", result, ")"));
}

// As NVML spells it.
std::string UuidOf(const cudaUUID_t& uuid) {
  const std::string hex = absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes)));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4),
                      "-", hex.substr(20));
}

class NvmlProcessMemory : public ProcessMemory {
 public:
  NvmlProcessMemory(Nvml nvml, void* device) : nvml_(nvml), device_(device) {}

  absl::StatusOr<int64_t> Bytes() const override {
    std::vector<NvmlProcess> processes(16);
    unsigned count = 0;
    for (;;) {
      count = static_cast<unsigned>(processes.size());
      const int result = nvml_.get_processes(device_, &count, processes.data());
      if (result != kNvmlInsufficientSize) {
        REPRISE_RETURN_IF_ERROR(NvmlStatus(nvml_, result, "asking for the processes on the device"));
        break;
      }
      processes.resize(std::max<size_t>(count, processes.size()) * 2);
    }
    processes.resize(count);
    const auto own = std::find_if(processes.begin(), processes.end(),
                                  [pid = static_cast<unsigned>(getpid())](const auto& p) { return p.pid == pid; });
    if (own == processes.end() || own->used_bytes == kNvmlNotAvailable) {
      return absl::UnavailableError(absl::StrCat("NVML names ", count, " processes on the device, but does not tell ",
                                                 "the memory of this one, ", getpid()));
    }
    return static_cast<int64_t>(own->used_bytes);
  }

 private:
  const Nvml nvml_;
  void* const device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessMemory>> ProcessMemory::Create(int device) {
  static const absl::StatusOr<Nvml> nvml = LoadNvml();
  REPRISE_RETURN_IF_ERROR(nvml.status());
  cudaDeviceProp properties;
  REPRISE_RETURN_IF_ERROR(kernels::CudaStatus(cudaGetDeviceProperties(&properties, device), "asking for the device"));
  REPRISE_RETURN_IF_ERROR(NvmlStatus(*nvml, nvml->init(), "opening NVML"));
  void* handle = nullptr;
  REPRISE_RETURN_IF_ERROR(
      NvmlStatus(*nvml, nvml->get_handle(UuidOf(properties.uuid).c_str(), &handle), "asking NVML for the device"));
  return std::make_unique<NvmlProcessMemory>(*nvml, handle);
}

}  // namespace reprise::internal
