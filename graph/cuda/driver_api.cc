#include "graph/cuda/driver_api.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

absl::StatusOr<void*> FindDriverFunction(const char* name, int version) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &address, static_cast<unsigned>(version), cudaEnableDefault, &found);
  if (error == cudaSuccess && found == cudaDriverEntryPointSuccess && address != nullptr) return address;
  cudaGetLastError();
  return absl::UnavailableError(absl::StrCat("the driver has no ", name, " of CUDA ", version / 1000, ".",
                                             version / 10 % 100, "; install a driver for that version or later"));
}

absl::StatusOr<DriverApi> LoadDriverApi() {
  DriverApi api;
  REPRISE_RETURN_IF_ERROR(REPRISE_LOAD_DRIVER_FUNCTION(cuGraphGetNodes, 10000, api.graph_get_nodes));
  REPRISE_RETURN_IF_ERROR(REPRISE_LOAD_DRIVER_FUNCTION(cuGraphGetEdges, 12030, api.graph_get_edges));
  REPRISE_RETURN_IF_ERROR(
      REPRISE_LOAD_DRIVER_FUNCTION(cuGraphNodeGetDependencies, 12030, api.graph_node_get_dependencies));
  REPRISE_RETURN_IF_ERROR(REPRISE_LOAD_DRIVER_FUNCTION(cuGraphNodeGetType, 10000, api.graph_node_get_type));
  REPRISE_RETURN_IF_ERROR(
      REPRISE_LOAD_DRIVER_FUNCTION(cuGraphKernelNodeGetParams, 12000, api.graph_kernel_node_get_params));
  REPRISE_RETURN_IF_ERROR(REPRISE_LOAD_DRIVER_FUNCTION(cuGraphAddDependencies, 12030, api.graph_add_dependencies));
  REPRISE_RETURN_IF_ERROR(
      REPRISE_LOAD_DRIVER_FUNCTION(cuGraphRemoveDependencies, 12030, api.graph_remove_dependencies));
  REPRISE_RETURN_IF_ERROR(REPRISE_LOAD_DRIVER_FUNCTION(cuStreamBatchMemOp, 11070, api.stream_batch_mem_op));
  return api;
}

absl::Status DriverStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " failed with driver error ", static_cast<int>(result)));
}

}  // namespace reprise::internal
