#include "graph/cuda/lane_walk.h"

#include "graph/check_writes.h"
#include "graph/compute_binding.h"
#include "graph/cuda/captured_graph.h"
#include "graph/cuda/cuda_collectives.h"
#include "graph/cuda/device_probe.h"
#include "graph/find_non_finite.h"
#include "graph/launch_command.h"
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
  const cudaStream_t stream = rank_->lanes().lane_stream(command.lane);
  for (const Wait& wait : command.waits) {
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaStreamWaitEvent(stream, done_[wait.command.value()].get()), "waiting for a command"));
  }
  const bool is_checked = bindings().check_writes && IsCompute(command.command);
  REPRISE_RETURN_IF_ERROR(is_checked                         ? CheckDeviceWrites(id, command)
                          : bindings().non_finite != nullptr ? FindOnDevice(id, command)
                                                             : Launch(command));
  if (!done_[id.value()]) return absl::OkStatus();
  return CudaStatus(cudaEventRecord(done_[id.value()].get(), stream), "marking a command's end");
}

absl::Status LaneWalk::Launch(const ScheduledCommand& command) const {
  if (IsCollective(command.command)) return LaunchCollective(*rank_, bindings(), command);
  return LaunchCommand(bindings(), /*local=*/0, command, rank_->lanes().stream(command.lane));
}

absl::Status LaneWalk::LaunchCaptured(CommandId id, const ScheduledCommand& command) const {
  const cudaStream_t stream = rank_->lanes().lane_stream(command.lane);
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning the capture"));
  const absl::Status enqueued = Launch(command);
  const absl::Status allowed = CapturedGraph(rank_->driver()).AddCommand(id, stream, /*is_compute=*/true);
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  const GraphHandle handle(graph);
  if (!enqueued.ok() || !allowed.ok() || error != cudaSuccess) {
    cudaGetLastError();
    return Launch(command);
  }
  GraphExecHandle exec;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(exec.receive(), graph, 0), "instantiating a command"));
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(exec.get(), stream), "launching a command's graph"));
  // The graph lives until it is done.
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceProbe> probe, DeviceProbe::Create(*rank_, command.lane));
  absl::Status status = probe->Wait();
  if (!status.ok()) exec.Abandon();
  return status;
}

absl::Status LaneWalk::CheckDeviceWrites(CommandId id, const ScheduledCommand& command) const {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceProbe> probe, DeviceProbe::Create(*rank_, command.lane));
  const auto enqueue = [&](bool as_recorded) {
    return as_recorded && bindings().check_captured ? LaunchCaptured(id, command) : Launch(command);
  };
  const auto nothing = [] { return absl::OkStatus(); };
  return CheckWrites(bindings(), /*local=*/0, command, *probe,
                     {.enqueue = enqueue, .execute = nothing, .runs_at_once = true}, /*digests=*/nullptr);
}

absl::Status LaneWalk::FindOnDevice(CommandId id, const ScheduledCommand& command) const {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceProbe> probe, DeviceProbe::Create(*rank_, command.lane));
  return FindNonFinite(bindings(), /*local=*/0, id, command, *probe, [&] { return Launch(command); });
}

}  // namespace reprise::internal
