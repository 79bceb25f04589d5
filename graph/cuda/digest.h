// Digests of device memory, see graph/digest.h.
#ifndef REPRISE_GRAPH_CUDA_DIGEST_H_
#define REPRISE_GRAPH_CUDA_DIGEST_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace reprise::internal {

inline constexpr int kDigestParts = 512;

// Writes kDigestParts words whose sum, modulo 2^64, is the digest; to memory of the device's or to mapped memory.
cudaError_t LaunchDigest(cudaStream_t stream, const std::byte* from, int64_t num_bytes, uint64_t* parts);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_DIGEST_H_
