// One GPU as a rank of a job: schedules become CUDA graphs, collectives are NCCL's. Link reprise::cuda.
#ifndef REPRISE_GRAPH_CUDA_WORLD_H_
#define REPRISE_GRAPH_CUDA_WORLD_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/core/stream.h"
#include "reprise/graph/launch_environment.h"
#include "reprise/graph/world.h"

namespace reprise {

struct CudaWorldOptions {
  int device = -1;                // CUDA ordinal; -1: DeviceOf(launch, share_device)
  cudaStream_t stream = nullptr;  // every launch and copy goes here; null: a new non-blocking stream
  ncclComm_t parent = nullptr;    // if set, of the same ranks: split into the world's communicators, then left alone
  // For every wait on other ranks: joining, votes, and replays that do not end. Positive.
  absl::Duration deadline = absl::Minutes(5);
  // If set, on all ranks, which then must have the same GPU and cuBLASLt: a file of rank 0's by Measure or step_bench
  // --measure. GEMMs use the kernels that it names, if its device, driver and cuBLASLt are those here, and
  // PlanOptions::transports are its where they are unset, if its whole key is what is here. What is of another key is
  // not used; SessionReport::transport_reason says so. Never written: runs with the same file give the same results bit
  // for bit. Empty: cuBLASLt's first choice, the same in every run, and the transport kNccl.
  std::string cost_file = {};
  // Several ranks may use one device, on all ranks or none: for tests of several ranks where there is one GPU, never
  // for speed, because their processes take turns on it. NCCL takes such ranks of one host from 2.30 on, if
  // NCCL_MULTI_RANK_GPU_ENABLE=1 is set; ranks of different hosts (by NCCL_HOSTID) need nothing. Where each collective
  // waits for the turns of all ranks, a deadline must be longer.
  bool share_device = false;
};

// (c) Joins the ranks named by `launch`, over TCP or by its `connect`, makes the communicators and the streams. The
// caller's current device stays as it was, here and in every later call; a thread that never used a device gets the
// world's.
//
// Errors, on every rank that can be told: Unavailable without a device or if a rank does not appear or goes away;
// DeadlineExceeded; FailedPrecondition, naming both sides, if ranks share a device or differ in NCCL's version or
// settings, if only some have a cost file, or if `stream` is being captured; InvalidArgument for options out of range
// or a cost file that is none; Unavailable for one that cannot be read.
//
// Device memory beyond what is asked for: see World::memory(). Replay returns once the graph is launched. A rank that
// dies makes the waits of the others end with Unavailable; the world is then of no further use.
//
// Once a rank gave up waiting, for a rank that died or was late, what the devices of the others go on with means
// nothing: ranks of one host return its error instead of any result from then on. Between hosts a message says so,
// which such a result may overtake. A caller's `stream` and external buffers are the caller's to look at: only calls of
// ours say so.
//
// Graphs of collectives between hosts have open reports of hangs with NCCL before 2.30.4: use that, or
// Execution::kEager.
//
// The transports kSymmetric and kCopyEngine need NCCL 2.28.7 or later and all ranks on one host; recording is otherwise
// Unavailable on every rank, and where none is named it is kNccl. While a collective of kSymmetric, or one of
// kNccl beside others, waits for a rank that is gone nothing aborts it: what it uses is not given
// back before the process ends.
absl::StatusOr<std::shared_ptr<World>> CreateCudaWorld(const LaunchEnvironment& launch,
                                                       const CudaWorldOptions& options = {});

// How many devices this process can use; 0 without a driver.
int NumCudaDevices();
// The device of a rank: the one with its number on its host, or the only one that its launcher lets it see. Ranks that
// share devices go round those there are.
int DeviceOf(const LaunchEnvironment& launch, bool share_device = false);

// The stream of a compute function that runs on a device. Only if !stream.is_host().
inline cudaStream_t CudaStream(Stream stream) { return static_cast<cudaStream_t>(stream.device_stream()); }

}  // namespace reprise

#endif  // REPRISE_GRAPH_CUDA_WORLD_H_
