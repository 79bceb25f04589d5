#include "graph/cuda/peer_copies.h"

#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;

CUstreamBatchMemOpParams Write(uint32_t* flag, uint32_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = reinterpret_cast<CUdeviceptr>(flag);
  operation.writeValue.value = value;
  // What the stream did before is visible to who sees the flag.
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
  std::vector<CUstreamBatchMemOpParams> operations;
  for (int peer = 0; peer < flags.size(); ++peer) {
    if (peer != flags.rank) operations.push_back(Write(flag(peer, flags.rank), PeerFlags::kSet));
  }
  for (int peer = 0; peer < flags.size(); ++peer) {
    if (peer == flags.rank) continue;
    operations.push_back(WaitUntilSet(flag(flags.rank, peer)));
    operations.push_back(Write(flag(flags.rank, peer), PeerFlags::kClear));
  }
  if (operations.empty()) return absl::OkStatus();
  return DriverStatus(
      driver.stream_batch_mem_op(stream, static_cast<unsigned>(operations.size()), operations.data(), /*flags=*/0),
      "cuStreamBatchMemOp");
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
