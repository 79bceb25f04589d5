#include "graph/cuda/driver_api.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// The version whose signatures the header declares.
constexpr unsigned kVersion = CUDA_VERSION;

template <class Function>
absl::Status Load(const char* name, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found);
  if (error == cudaSuccess && found == cudaDriverEntryPointSuccess && address != nullptr) {
    function = reinterpret_cast<Function>(address);
    return absl::OkStatus();
  }
  cudaGetLastError();
  return absl::UnavailableError(absl::StrCat("the driver has no ", name, " of CUDA ", kVersion / 1000, ".",
                                             kVersion / 10 % 100, "; install a driver for that version or later"));
}

}  // namespace

absl::StatusOr<DriverApi> LoadDriverApi() {
  DriverApi api;
  REPRISE_RETURN_IF_ERROR(Load("cuGraphGetNodes", api.graph_get_nodes));
  REPRISE_RETURN_IF_ERROR(Load("cuGraphGetEdges", api.graph_get_edges));
  REPRISE_RETURN_IF_ERROR(Load("cuGraphNodeGetDependencies", api.graph_node_get_dependencies));
  REPRISE_RETURN_IF_ERROR(Load("cuGraphNodeGetType", api.graph_node_get_type));
  REPRISE_RETURN_IF_ERROR(Load("cuGraphAddDependencies", api.graph_add_dependencies));
  REPRISE_RETURN_IF_ERROR(Load("cuGraphRemoveDependencies", api.graph_remove_dependencies));
  return api;
}

absl::Status DriverStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " failed with driver error ", static_cast<int>(result)));
}

}  // namespace reprise::internal
