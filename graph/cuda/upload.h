// Copies from the host that do not wait for the device: through a ring of pinned memory.
#ifndef REPRISE_GRAPH_CUDA_UPLOAD_H_
#define REPRISE_GRAPH_CUDA_UPLOAD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "graph/cuda/cuda_rank.h"

namespace reprise::internal {

class Upload {
 public:
  // `stream` is one of the rank's.
  Upload(std::shared_ptr<CudaRank> rank, cudaStream_t stream) : rank_(std::move(rank)), stream_(stream) {}
  ~Upload();

  // Enqueues the copy. `source` may be reused on return.
  absl::Status Copy(void* destination, const void* source, int64_t num_bytes);

 private:
  // A part is reused once the copy from it is done. Four parts of 4 MiB keep a PCIe link busy while the host fills the
  // next one, and hold the inputs of several microbatches of tokens.
  static constexpr int kParts = 4;
  static constexpr int64_t kPartBytes = int64_t{4} << 20;
  struct Part {
    std::byte* memory = nullptr;
    EventHandle copied;
    int64_t used = 0;        // bytes
    bool in_flight = false;  // `copied` was recorded
  };

  absl::Status Open();
  // A part with room for some bytes.
  absl::StatusOr<Part*> NextPart(int64_t num_bytes);

  const std::shared_ptr<CudaRank> rank_;
  const cudaStream_t stream_;
  std::byte* memory_ = nullptr;
  std::array<Part, kParts> parts_;
  int current_ = 0;
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_UPLOAD_H_
