// Where this rank's device sees the other ranks' memory.
#ifndef REPRISE_GRAPH_CUDA_PEER_ADDRESSES_H_
#define REPRISE_GRAPH_CUDA_PEER_ADDRESSES_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>

namespace reprise::internal {

// addresses[rank] = where the memory of `rank` in the window starts, for each of `size` ranks on one host, all of the
// window's communicator. `addresses` is device memory.
cudaError_t LaunchPeerAddresses(cudaStream_t stream, ncclWindow_t window, int size, std::byte** addresses);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_PEER_ADDRESSES_H_
