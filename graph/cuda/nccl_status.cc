#include "graph/cuda/nccl_status.h"

#include "absl/strings/str_cat.h"

namespace reprise::internal {
namespace {

absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
    case ncclInProgress:
      return absl::StatusCode::kOk;
    case ncclRemoteError:
    case ncclSystemError:
      return absl::StatusCode::kUnavailable;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    case ncclUnhandledCudaError:
    case ncclInternalError:
    case ncclNumResults:
      return absl::StatusCode::kInternal;
  }
  return absl::StatusCode::kInternal;
}

}  // namespace

absl::Status NcclStatus(ncclResult_t result, absl::string_view what, ncclComm_t communicator) {
  const absl::StatusCode code = CodeOf(result);
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  const char* const details = ncclGetLastError(communicator);
  return absl::Status(code, absl::StrCat(what, " failed: ", ncclGetErrorString(result),
                                         details == nullptr || *details == '\0' ? "" : absl::StrCat(" (", details, ")"),
                                         "; NCCL_DEBUG=WARN prints what NCCL saw"));
}

std::string NcclVersionName(int code) { return absl::StrCat(code / 10000, ".", code / 100 % 100, ".", code % 100); }

std::string GraphHangRemedy(int version) {
  // Replays of graphs across hosts that ended with this one, and not with 2.28.9: vllm-project/vllm#52504.
  constexpr int kFirstWithout = 23004;
  if (version >= kFirstWithout) return "";
  return absl::StrCat(", or, as graphs of NCCL ", NcclVersionName(version),
                      " between hosts have open reports of hangs, use NCCL ", NcclVersionName(kFirstWithout),
                      " or later, or replay eagerly (RunOptions::execution)");
}

}  // namespace reprise::internal
