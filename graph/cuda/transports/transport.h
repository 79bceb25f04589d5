// How bytes travel between the devices of ranks: an object for each Transport, in a file of its own here.
#ifndef REPRISE_GRAPH_CUDA_TRANSPORTS_TRANSPORT_H_
#define REPRISE_GRAPH_CUDA_TRANSPORTS_TRANSPORT_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/bindings.h"
#include "graph/cuda/cuda_rank.h"
#include "reprise/core/dtype.h"
#include "reprise/core/plan.h"
#include "reprise/core/schedule.h"

namespace reprise::internal {

// Parts of all ranks, of one size, that a collective moves; in that order wherever some lie side by side.
struct Parts {
  const std::byte* from = nullptr;  // gathers: this rank's part; exchanges: those for every rank, this one too
  std::byte* to = nullptr;          // gathers: those of every rank; exchanges: those of the others, or their sum
  int64_t num_elements = 0;         // of one part, at least 1
  DType dtype = DType::kFloat32;

  int64_t part_bytes() const { return num_elements * SizeOf(dtype); }
};

// Where a collective is enqueued, and the memory that `Parts` lie in.
struct CollectiveLane {
  CudaRank& rank;
  const Bindings& bindings;
  Lane lane = Lane::kAllGather;

  cudaStream_t stream() const { return rank.lanes().lane_stream(lane); }
  ncclComm_t communicator() const { return rank.communicators().at(lane); }
  // The other ranks, from the next one on, so that not all ranks copy to one at a time.
  absl::Status ForEachPeer(absl::FunctionRef<absl::Status(int peer)> body) const;
};

// What a plan does by a transport.
struct TransportUse {
  bool gathers = false, exchanges = false;
  bool beside_windows = false;  // it opens windows on its memory for this transport or another one

  bool any() const { return gathers || exchanges; }
};
// All but beside_windows.
TransportUse UseOf(const Plan& plan, Transport transport);

// (c) The other ranks' statuses too; `what` is done for a transport, whose name follows.
using Vote = absl::FunctionRef<absl::Status(absl::string_view what, const absl::Status& mine)>;

// Between several ranks. All ranks enqueue the same, in the same order on each lane; it can be captured.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  // (c) Before a plan is recorded: makes what was not made before, with a vote after each thing that can fail on one
  // rank. With windows: after WhyNoWindows found that there can be some, and CheckWindows.
  virtual absl::Status Prepare(CudaRank& rank, const Bindings& bindings, const TransportUse& use, Vote vote) const = 0;
  // Every rank's part to every rank.
  virtual absl::Status Gather(const CollectiveLane& lane, absl::Span<const Parts> parts) const = 0;
  // To every rank, of each other one, the part for it; with Sum::kNccl, of those whose TransportTraits::adds holds, the
  // sum of all parts for it.
  virtual absl::Status Exchange(const CollectiveLane& lane, absl::Span<const Parts> parts, Sum sum) const = 0;
};

// One for each file here.
const DeviceTransport& NcclTransport();
const DeviceTransport& SymmetricTransport();
const DeviceTransport& CopyEngineTransport();

// Null for one that does not exist.
const DeviceTransport* FindTransport(Transport transport);

// (c) Windows of the lane's communicator on what of the memory communicates.
absl::Status RegisterWindows(const Bindings& bindings, Lane lane);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_TRANSPORTS_TRANSPORT_H_
