#include "graph/cuda/peer_addresses.h"

#include <nccl_device.h>

namespace reprise::internal {
namespace {

__global__ void PeerAddresses(ncclWindow_t window, int size, std::byte** addresses) {
  for (int rank = threadIdx.x; rank < size; rank += blockDim.x) {
    addresses[rank] = static_cast<std::byte*>(ncclGetLsaPointer(window, /*offset=*/0, rank));
  }
}

}  // namespace

cudaError_t LaunchPeerAddresses(cudaStream_t stream, ncclWindow_t window, int size, std::byte** addresses) {
  PeerAddresses<<<1, 32, 0, stream>>>(window, size, addresses);
  return cudaGetLastError();
}

int NumRanksInReach(ncclComm_t communicator) { return ncclTeamLsa(communicator).nRanks; }

}  // namespace reprise::internal
