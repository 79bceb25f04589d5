#include "graph/cuda/lane_walk.h"

#include "graph/check_writes.h"
#include "graph/cuda/cuda_collectives.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {

using kernels::CudaStatus;

absl::Status LaneWalk::Prepare(const Schedule& schedule) {
  done_.clear();
  done_.resize(schedule.commands.size());
  for (const ScheduledCommand& command : schedule.commands) {
    for (const Wait& wait : command.waits) {
      EventHandle& event = done_[wait.command.value()];
      if (event) continue;
      REPRISE_RETURN_IF_ERROR(
          CudaStatus(cudaEventCreateWithFlags(event.receive(), cudaEventDisableTiming), "creating an event"));
    }
  }
  return absl::OkStatus();
}

absl::Status LaneWalk::Enqueue(CommandId id, const ScheduledCommand& command) const {
  const cudaStream_t stream = rank_->lane_stream(command.lane);
  for (const Wait& wait : command.waits) {
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaStreamWaitEvent(stream, done_[wait.command.value()].get()), "waiting for a command"));
  }
  REPRISE_RETURN_IF_ERROR(bindings().check_writes ? CheckDeviceWrites(command) : Launch(command));
  if (!done_[id.value()]) return absl::OkStatus();
  return CudaStatus(cudaEventRecord(done_[id.value()].get(), stream), "marking a command's end");
}

absl::Status LaneWalk::Launch(const ScheduledCommand& command) const {
  if (IsCollective(command.command)) return LaunchCollective(*rank_, bindings(), command);
  return launcher_.Launch(/*local=*/0, command, rank_->stream(command.lane));
}

absl::Status LaneWalk::CheckDeviceWrites(const ScheduledCommand& command) const {
  const cudaStream_t stream = rank_->lane_stream(command.lane);
  const auto fill = [stream](void* to, uint8_t value, int64_t num_bytes) {
    return CudaStatus(cudaMemsetAsync(to, value, static_cast<size_t>(num_bytes), stream), "filling device memory");
  };
  const auto read = [stream](void* to_host, const void* from, int64_t num_bytes) {
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(to_host, from, static_cast<size_t>(num_bytes), cudaMemcpyDeviceToHost, stream),
                   "copying from the device"));
    return CudaStatus(cudaStreamSynchronize(stream), "copying from the device");
  };
  return CheckWrites(bindings(), /*local=*/0, command, {.fill = fill, .read = read}, [&] { return Launch(command); });
}

}  // namespace reprise::internal
