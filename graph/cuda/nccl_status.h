// NCCL's results as statuses.
#ifndef REPRISE_GRAPH_CUDA_NCCL_STATUS_H_
#define REPRISE_GRAPH_CUDA_NCCL_STATUS_H_

#include <nccl.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace reprise::internal {

// OK, or "<what> failed: <NCCL's words>". Errors of a peer or of the network are Unavailable, wrong use is
// FailedPrecondition, the rest Internal. `communicator`, if not null, is asked for the details.
absl::Status NcclStatus(ncclResult_t result, absl::string_view what, ncclComm_t communicator = nullptr);

// "2.28.9" of a version code.
std::string NcclVersionName(int code);

// What else to try where a graph of collectives between hosts does not end, as part of a remedy: some versions have
// open reports of that. Empty for others.
std::string GraphHangRemedy(int version);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_CUDA_NCCL_STATUS_H_
