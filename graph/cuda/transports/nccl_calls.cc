#include "graph/cuda/transports/nccl_calls.h"

#include <nccl.h>

#include "absl/status/statusor.h"
#include "graph/cuda/nccl_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

absl::StatusOr<ncclDataType_t> NcclType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kUInt8:
      return ncclUint8;
  }
  return absl::InternalError("unknown dtype");
}

// Calls body(part, count, type) for each part; the calls in between become one operation. An error in between still
// ends the group.
template <class Body>
absl::Status InGroup(const CollectiveLane& lane, absl::Span<const Parts> parts, const Body& body) {
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclGroupStart(), "starting a group of collectives", lane.communicator()));
  const auto all = [&]() -> absl::Status {
    for (const Parts& part : parts) {
      REPRISE_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(part.dtype));
      REPRISE_RETURN_IF_ERROR(body(part, static_cast<size_t>(part.num_elements), type));
    }
    return absl::OkStatus();
  };
  const absl::Status status = all();
  const absl::Status end = NcclStatus(ncclGroupEnd(), "enqueueing a group of collectives", lane.communicator());
  return status.ok() ? end : status;
}

}  // namespace

absl::Status NcclGather(const CollectiveLane& lane, absl::Span<const Parts> parts) {
  return InGroup(lane, parts, [&](const Parts& part, size_t count, ncclDataType_t type) {
    return NcclStatus(ncclAllGather(part.from, part.to, count, type, lane.communicator(), lane.stream()),
                      "ncclAllGather", lane.communicator());
  });
}

absl::Status NcclSendAndReceive(const CollectiveLane& lane, absl::Span<const Parts> parts) {
  return InGroup(lane, parts, [&](const Parts& part, size_t count, ncclDataType_t type) {
    return lane.ForEachPeer([&](int peer) -> absl::Status {
      const std::byte* const mine = part.from + peer * part.part_bytes();
      std::byte* const its = part.to + PlaceOfPart(peer, lane.rank.rank()) * part.part_bytes();
      REPRISE_RETURN_IF_ERROR(NcclStatus(ncclSend(mine, count, type, peer, lane.communicator(), lane.stream()),
                                         "ncclSend", lane.communicator()));
      return NcclStatus(ncclRecv(its, count, type, peer, lane.communicator(), lane.stream()), "ncclRecv",
                        lane.communicator());
    });
  });
}

absl::Status NcclReduceScatter(const CollectiveLane& lane, absl::Span<const Parts> parts) {
  return InGroup(lane, parts, [&](const Parts& part, size_t count, ncclDataType_t type) {
    return NcclStatus(ncclReduceScatter(part.from, part.to, count, type, ncclSum, lane.communicator(), lane.stream()),
                      "ncclReduceScatter", lane.communicator());
  });
}

}  // namespace reprise::internal
