// Where this rank's device sees the other ranks' memory.
#ifndef REPRISE_GRAPH_CUDA_PEER_ADDRESSES_H_
#define REPRISE_GRAPH_CUDA_PEER_ADDRESSES_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise::internal {

// addresses[rank] = where the memory of `rank` in the window starts, for each of `size` ranks on one host, all of the
// window's communicator. Asks the library where it has a function for that (2.29 and later), and otherwise reads what
// it left on the device, as the library's header does that this was built with: see CheckTokens. Waits for the
// stream. Unavailable if the devices cannot reach each other's memory.
absl::StatusOr<std::vector<std::byte*>> FindPeerAddresses(ncclComm_t communicator, ncclWindow_t window, int size,
                                                          cudaStream_t stream);

// Unavailable, naming the first rank, unless the word at words[rank] is tokens[rank], which that rank left there: then
// the addresses are of other memory. Waits for the stream.
absl::Status CheckTokens(absl::Span<const uint32_t* const> words, absl::Span<const uint32_t> tokens,
                         cudaStream_t stream);

// The same as FindPeerAddresses finds, by a kernel, into device memory.
cudaError_t LaunchPeerAddresses(cudaStream_t stream, ncclWindow_t window, int size, std::byte** addresses);
// How many ranks reach each other's memory by such addresses.
int NumRanksInReach(ncclComm_t communicator);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_PEER_ADDRESSES_H_
