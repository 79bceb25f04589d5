#include "graph/cuda/cuda_recorder.h"

#include <nvtx3/nvToolsExt.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/command_error.h"
#include "graph/compute_binding.h"
#include "graph/cuda/captured_graph.h"
#include "graph/cuda/cuda_collectives.h"
#include "graph/cuda/lane_walk.h"
#include "kernels/cuda/cuda_status.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

using kernels::CudaStatus;
using Keep = CallerState::Keep;

// ---- graphs ----

class GraphExecutable : public Executable {
 public:
  GraphExecutable(std::shared_ptr<CudaRank> rank, std::shared_ptr<const Bindings> bindings, int schedule,
                  GraphHandle graph, NodeCommands commands, GraphExecHandle exec, int64_t num_bytes,
                  const GraphAudit& audit)
      : rank_(std::move(rank)),
        bindings_(std::move(bindings)),
        schedule_(schedule),
        graph_(std::move(graph)),
        commands_(std::move(commands)),
        exec_(std::move(exec)),
        num_bytes_(num_bytes),
        audit_(audit) {}
  ~GraphExecutable() override {
    if (!rank_->queue().Drain()) {
      timed_exec_.Abandon();
      exec_.Abandon();
      graph_.Abandon();
      return;
    }
    const CallerState caller(rank_->device());
    timed_exec_ = GraphExecHandle();
    exec_ = GraphExecHandle();
    graph_ = GraphHandle();
    rank_->account().AddRecording(-num_bytes_);
  }

  absl::Status Replay() override {
    REPRISE_RETURN_IF_ERROR(rank_->queue().Admit());
    const CallerState caller(rank_->device(), Keep::kDeviceOnly);
    DeviceProfile* const profile = rank_->ProfileOf(*bindings_->plan);
    if (profile != nullptr) {
      REPRISE_RETURN_IF_ERROR(LaunchTimed(*profile));
    } else {
      REPRISE_RETURN_IF_ERROR(
          CudaStatus(cudaGraphLaunch(exec_.get(), rank_->lanes().launch_stream()), "launching a graph"));
    }
    return rank_->queue().Launched(/*is_graph=*/true);
  }
  GraphAudit audit() const override { return audit_; }

 private:
  absl::Status LaunchTimed(DeviceProfile& profile) {
    if (timed_by_ != profile.number()) {
      REPRISE_ASSIGN_OR_RETURN(timed_exec_, profile.Instantiate(graph_.get(), commands_));
      timed_by_ = profile.number();
    }
    profile.BeginReplay(schedule_);
    profile.BeginLaunch(CommandId());
    const cudaError_t error = cudaGraphLaunch(timed_exec_.get(), rank_->lanes().launch_stream());
    profile.EndLaunch();
    return CudaStatus(error, "launching a graph");
  }

  const std::shared_ptr<CudaRank> rank_;
  const std::shared_ptr<const Bindings> bindings_;  // keeps what the graph touches
  const int schedule_;
  GraphHandle graph_;
  const NodeCommands commands_;
  GraphExecHandle exec_;
  GraphExecHandle timed_exec_;  // of the last profile
  int64_t timed_by_ = -1;
  const int64_t num_bytes_;  // that it took
  const GraphAudit audit_;
};

class CaptureRecorder : public Recorder {
 public:
  CaptureRecorder(std::shared_ptr<const Bindings> bindings, std::shared_ptr<CudaRank> rank)
      : Recorder(bindings), rank_(rank), walk_(rank, std::move(bindings)), captured_(rank->driver()) {}
  ~CaptureRecorder() override {
    if (is_capturing_) EndCapture().IgnoreError();
  }

 private:
  absl::Status Begin() override {
    REPRISE_RETURN_IF_ERROR(rank_->queue().Wait());
    const CallerState caller(rank_->device(), Keep::kDeviceOnly);
    REPRISE_RETURN_IF_ERROR(walk_.Prepare(schedule()));
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaStreamBeginCapture(rank_->lanes().lane_stream(Lane::kCompute), cudaStreamCaptureModeThreadLocal),
                   "beginning the capture"));
    is_capturing_ = true;
    return absl::OkStatus();
  }

  absl::Status Record(CommandId id, const ScheduledCommand& command) override {
    const CallerState caller(rank_->device(), Keep::kDeviceOnly);
    const absl::Status enqueued = walk_.Enqueue(id, command);
    const absl::Status captured =
        captured_.AddCommand(id, rank_->lanes().lane_stream(command.lane), IsCompute(command.command));
    is_collective_.push_back(IsCollective(command.command));
    // A function that met a broken capture says so in words of its own, or not at all.
    return enqueued.ok() ? captured : enqueued;
  }

  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    const CallerState caller(rank_->device());
    REPRISE_ASSIGN_OR_RETURN(GraphHandle graph, EndCapture());
    return Instantiate(std::move(graph));
  }

  absl::StatusOr<GraphHandle> EndCapture() {
    is_capturing_ = false;
    const CallerState caller(rank_->device(), Keep::kDeviceOnly);
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(rank_->lanes().lane_stream(Lane::kCompute), &graph);
    GraphHandle handle(graph);
    REPRISE_RETURN_IF_ERROR(CudaStatus(error, "ending the capture"));
    return handle;
  }

  absl::StatusOr<std::unique_ptr<Executable>> Instantiate(GraphHandle graph) {
    REPRISE_RETURN_IF_ERROR(captured_.ReplaceProgrammaticEdges(graph.get(), is_collective_));
    REPRISE_ASSIGN_OR_RETURN(const GraphAudit audit, captured_.Audit(graph.get(), schedule()));
    REPRISE_RETURN_IF_ERROR(CheckCollectivesFit(audit));
    REPRISE_ASSIGN_OR_RETURN(const int64_t before, rank_->account().TakenBytes());
    GraphExecHandle exec;
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaGraphInstantiate(exec.receive(), graph.get(), cudaGraphInstantiateFlagUseNodePriority),
                   "instantiating the graph"));
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaGraphUpload(exec.get(), rank_->lanes().launch_stream()), "uploading the graph"));
    // NCCL fills its descriptors on streams of its own, which a graph without mixing does not wait for.
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "synchronising after the capture"));
    REPRISE_ASSIGN_OR_RETURN(const int64_t after, rank_->account().TakenBytes());
    rank_->account().AddRecording(after - before);
    return std::make_unique<GraphExecutable>(rank_, bindings(), index(), std::move(graph), captured_.commands(),
                                             std::move(exec), after - before, audit);
  }

  absl::Status CheckCollectivesFit(const GraphAudit& audit) const {
    int processors = 0;
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, rank_->device()),
                   "asking for the number of multiprocessors"));
    if (audit.communication_ctas <= processors) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "collectives that may run at once take ", audit.communication_ctas, " thread blocks, but the device has ",
        processors, " multiprocessors, so that they could wait for each other forever; lower NCCL_MAX_CTAS"));
  }

  const std::shared_ptr<CudaRank> rank_;
  LaneWalk walk_;
  CapturedGraph captured_;
  std::vector<bool> is_collective_;  // by command
  bool is_capturing_ = false;
};

// ---- eager ----

class EagerExecutable : public Executable {
 public:
  EagerExecutable(std::shared_ptr<CudaRank> rank, std::shared_ptr<const Bindings> bindings, int schedule)
      : bindings_(bindings), index_(schedule), walk_(std::move(rank), std::move(bindings)) {}
  ~EagerExecutable() override { walk_.rank().queue().Drain(); }

  absl::Status Prepare() {
    const CallerState caller(walk_.rank().device());
    for (EventHandle& event : ends_) {
      REPRISE_RETURN_IF_ERROR(
          CudaStatus(cudaEventCreateWithFlags(event.receive(), cudaEventDisableTiming), "creating an event"));
    }
    for (const ScheduledCommand& command : schedule().commands) {
      names_.push_back(Describe(*bindings_->plan, command.command));
    }
    return walk_.Prepare(schedule());
  }

  absl::Status Replay() override {
    CudaRank& rank = walk_.rank();
    REPRISE_RETURN_IF_ERROR(rank.queue().WaitForGraphs());
    REPRISE_RETURN_IF_ERROR(rank.queue().Admit());
    const CallerState caller(rank.device(), Keep::kDeviceOnly);
    REPRISE_RETURN_IF_ERROR(Order(rank.lanes().launch_stream(), rank.lanes().lane_stream(Lane::kCompute), ends_[0]));
    absl::Status status = Enqueue();
    // After an error the lanes are joined all the same: what was enqueued runs.
    for (int lane = 0; lane < kNumLanes; ++lane) {
      REPRISE_RETURN_IF_ERROR(
          Order(rank.lanes().lane_stream(static_cast<Lane>(lane)), rank.lanes().launch_stream(), ends_[lane]));
    }
    REPRISE_RETURN_IF_ERROR(rank.queue().Launched(/*is_graph=*/false));
    return status;
  }

 private:
  static absl::Status Order(cudaStream_t first, cudaStream_t then, const EventHandle& event) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event.get(), first), "ordering two streams"));
    return CudaStatus(cudaStreamWaitEvent(then, event.get()), "ordering two streams");
  }

  absl::Status Enqueue() {
    const bool is_first = std::exchange(is_first_, false);
    DeviceProfile* const profile = walk_.rank().ProfileOf(*bindings_->plan);
    if (profile != nullptr) profile->BeginReplay(index_);
    for (size_t c = 0; c < schedule().commands.size(); ++c) {
      const CommandId id(static_cast<int64_t>(c));
      const ScheduledCommand& command = schedule().commands[c];
      nvtxRangePushA(names_[c].c_str());
      if (profile != nullptr) profile->BeginLaunch(id);
      absl::Status status = walk_.Enqueue(id, command);
      if (status.ok() && is_first) status = WaitForLane(command.lane);
      if (profile != nullptr) profile->EndLaunch();
      nvtxRangePop();
      REPRISE_RETURN_IF_ERROR(AtCommand(*bindings_->plan, id, command.command, status));
    }
    return absl::OkStatus();
  }

  // A kernel that runs for the first time is loaded, and the driver may then wait for all that the device does, where
  // nothing looks at the clock or at other ranks: not while a collective waits for a rank that failed.
  absl::Status WaitForLane(Lane lane) {
    CudaRank& rank = walk_.rank();
    const EventHandle& end = ends_[static_cast<int>(lane)];
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(end.get(), rank.lanes().lane_stream(lane)), "recording an event"));
    return rank.queue().WaitFor(end.get());
  }

  const Schedule& schedule() const { return bindings_->plan->schedules[index_]; }

  const std::shared_ptr<const Bindings> bindings_;
  bool is_first_ = true;            // has it never been replayed?
  const int index_;                 // of the schedule
  std::vector<std::string> names_;  // of the commands
  LaneWalk walk_;
  std::array<EventHandle, kNumLanes> ends_;  // of the lanes
};

class EagerRecorder : public Recorder {
 public:
  EagerRecorder(std::shared_ptr<const Bindings> bindings, std::shared_ptr<CudaRank> rank)
      : Recorder(std::move(bindings)), rank_(std::move(rank)) {}

 private:
  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    auto executable = std::make_unique<EagerExecutable>(rank_, bindings(), index());
    REPRISE_RETURN_IF_ERROR(executable->Prepare());
    return executable;
  }

  const std::shared_ptr<CudaRank> rank_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recorder>> NewCudaRecorder(Execution execution, std::shared_ptr<const Bindings> bindings,
                                                          std::shared_ptr<CudaRank> rank) {
  switch (execution) {
    case Execution::kGraph:
      return std::make_unique<CaptureRecorder>(std::move(bindings), std::move(rank));
    case Execution::kEager:
      return std::make_unique<EagerRecorder>(std::move(bindings), std::move(rank));
  }
  return absl::InternalError("unknown execution");
}

}  // namespace reprise::internal
