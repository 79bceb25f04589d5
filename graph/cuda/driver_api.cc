#include "graph/cuda/driver_api.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// The version whose signatures the header declares.
constexpr unsigned kVersion = CUDA_VERSION;

}  // namespace

absl::StatusOr<void*> FindDriverFunction(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found);
  if (error == cudaSuccess && found == cudaDriverEntryPointSuccess && address != nullptr) return address;
  cudaGetLastError();
  return absl::UnavailableError(absl::StrCat("the driver has no ", name, " of CUDA ", kVersion / 1000, ".",
                                             kVersion / 10 % 100, "; install a driver for that version or later"));
}

absl::StatusOr<DriverApi> LoadDriverApi() {
  DriverApi api;
  REPRISE_RETURN_IF_ERROR(LoadDriverFunction("cuGraphGetNodes", api.graph_get_nodes));
  REPRISE_RETURN_IF_ERROR(LoadDriverFunction("cuGraphGetEdges", api.graph_get_edges));
  REPRISE_RETURN_IF_ERROR(LoadDriverFunction("cuGraphNodeGetDependencies", api.graph_node_get_dependencies));
  REPRISE_RETURN_IF_ERROR(LoadDriverFunction("cuGraphNodeGetType", api.graph_node_get_type));
  REPRISE_RETURN_IF_ERROR(LoadDriverFunction("cuGraphKernelNodeGetParams", api.graph_kernel_node_get_params));
  REPRISE_RETURN_IF_ERROR(LoadDriverFunction("cuGraphAddDependencies", api.graph_add_dependencies));
  REPRISE_RETURN_IF_ERROR(LoadDriverFunction("cuGraphRemoveDependencies", api.graph_remove_dependencies));
  REPRISE_RETURN_IF_ERROR(LoadDriverFunction("cuStreamBatchMemOp", api.stream_batch_mem_op));
  return api;
}

absl::Status DriverStatus(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " failed with driver error ", static_cast<int>(result)));
}

}  // namespace reprise::internal
