#include "graph/cuda/peer_copies.h"

#include <algorithm>

#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

// The driver takes fewer than 256 operations at once. Both of a flag are of one batch.
constexpr size_t kMaxOperations = 254;

CUstreamBatchMemOpParams Clear(uint32_t* flag) {
  CUstreamBatchMemOpParams operation = {};
  operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.writeValue.value = PeerFlags::kClear;
  // Before the next flag that this rank sets: the one who sees that may set this one again.
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return operation;
}

CUstreamBatchMemOpParams WaitUntilSet(uint32_t* flag) {
  CUstreamBatchMemOpParams operation = {};
  operation.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.waitValue.value = PeerFlags::kSet;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return operation;
}

// Sets this rank's flag at every other one, then waits for every other rank's here, and clears it.
template <class Flag>
absl::Status Meet(const DriverApi& driver, const PeerFlags& flags, const Flag& flag, cudaStream_t stream) {
  std::vector<PeerCopy> tell;
  std::vector<CUstreamBatchMemOpParams> waits;
  for (int peer = 0; peer < flags.size(); ++peer) {
    if (peer == flags.rank) continue;
    tell.push_back({.to = flag(peer, flags.rank), .from = flags.set, .num_bytes = sizeof(uint32_t)});
    waits.push_back(WaitUntilSet(flag(flags.rank, peer)));
    waits.push_back(Clear(flag(flags.rank, peer)));
  }
  REPRISE_RETURN_IF_ERROR(Copy(tell, stream));
  for (size_t done = 0; done < waits.size(); done += kMaxOperations) {
    const size_t count = std::min(waits.size() - done, kMaxOperations);
    REPRISE_RETURN_IF_ERROR(
        DriverStatus(driver.stream_batch_mem_op(stream, static_cast<unsigned>(count), waits.data() + done, /*flags=*/0),
                     "cuStreamBatchMemOp"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Copy(absl::Span<const PeerCopy> copies, cudaStream_t stream) {
  for (const PeerCopy& copy : copies) {
    if (copy.num_bytes == 0) continue;
    REPRISE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpyAsync(copy.to, copy.from, static_cast<size_t>(copy.num_bytes), cudaMemcpyDeviceToDevice, stream),
        "copying between ranks"));
  }
  return absl::OkStatus();
}

absl::Status CopyToPeers(const DriverApi& driver, const PeerFlags& flags, absl::Span<const PeerCopy> copies,
                         cudaStream_t stream) {
  REPRISE_RETURN_IF_ERROR(Meet(
      driver, flags, [&](int owner, int from) { return flags.ready(owner, from); }, stream));
  REPRISE_RETURN_IF_ERROR(Copy(copies, stream));
  return Meet(
      driver, flags, [&](int owner, int from) { return flags.written(owner, from); }, stream);
}

}  // namespace reprise::internal
