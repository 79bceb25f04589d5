// The few driver functions that inspect graphs and that the runtime has no equal of, looked up when a program runs:
// programs must start on machines without a driver. The runtime's own queries answer "unknown error" for a graph with
// batch-memory-operation nodes.
#ifndef REPRISE_GRAPH_CUDA_DRIVER_API_H_
#define REPRISE_GRAPH_CUDA_DRIVER_API_H_

#include <cuda.h>
#include <cudaTypedefs.h>

#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise::internal {

struct DriverApi {
  decltype(&cuGraphGetNodes) graph_get_nodes = nullptr;
  decltype(&cuGraphGetEdges) graph_get_edges = nullptr;
  decltype(&cuGraphNodeGetDependencies) graph_node_get_dependencies = nullptr;
  decltype(&cuGraphNodeGetType) graph_node_get_type = nullptr;
  decltype(&cuGraphKernelNodeGetParams) graph_kernel_node_get_params = nullptr;
  decltype(&cuGraphAddDependencies) graph_add_dependencies = nullptr;
  decltype(&cuGraphRemoveDependencies) graph_remove_dependencies = nullptr;
  decltype(&cuStreamBatchMemOp) stream_batch_mem_op = nullptr;
};

// Unavailable, naming the function, where the driver is missing or too old.
absl::StatusOr<DriverApi> LoadDriverApi();
// `version` is that of CUDA which introduced the signature, as in CUDA_VERSION: a driver need be no newer than what is
// called. LoadDriverFunction takes it from a name of cudaTypedefs.h, which must be of the type of `function`.
absl::StatusOr<void*> FindDriverFunction(const char* name, int version);
template <class Signature, class Function>
absl::Status LoadDriverFunction(const char* name, int version, Function& function) {
  static_assert(std::is_same_v<Signature, Function>, "the header declares another version of this function");
  const absl::StatusOr<void*> address = FindDriverFunction(name, version);
  if (address.ok()) function = reinterpret_cast<Function>(*address);
  return address.status();
}
#define REPRISE_LOAD_DRIVER_FUNCTION(name, version, function) \
  ::reprise::internal::LoadDriverFunction<PFN_##name##_v##version>(#name, version, function)

absl::Status DriverStatus(CUresult result, const char* what);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_DRIVER_API_H_
