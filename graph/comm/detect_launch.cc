#include "graph/comm/detect_launch.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/hasher.h"
#include "graph/comm/slurm_lists.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

constexpr int kMaxRanks = 1 << 20;
constexpr int kMaxPort = 65535;

// Rank and size, in the world and on this host, from four variables.
absl::StatusOr<LaunchEnvironment> ReadRanks(const LaunchVariables& variables, const char* rank, const char* size,
                                            const char* local_rank, const char* local_size) {
  LaunchEnvironment launch;
  REPRISE_ASSIGN_OR_RETURN(launch.size, variables.Number(size, 1, kMaxRanks));
  REPRISE_ASSIGN_OR_RETURN(launch.rank, variables.Number(rank, 0, kMaxRanks));
  if (launch.rank >= launch.size) return variables.Wrong(rank, absl::StrCat(size, " is ", launch.size));
  REPRISE_ASSIGN_OR_RETURN(launch.local_size, variables.Number(local_size, 1, kMaxRanks));
  if (launch.local_size > launch.size) return variables.Wrong(local_size, absl::StrCat(size, " is ", launch.size));
  REPRISE_ASSIGN_OR_RETURN(launch.local_rank, variables.Number(local_rank, 0, kMaxRanks));
  if (launch.local_rank >= launch.local_size) {
    return variables.Wrong(local_rank, absl::StrCat(local_size, " is ", launch.local_size));
  }
  return launch;
}

// A port for a launcher that names none: the same on all ranks, seldom that of another job, below the ports that
// systems give to outgoing connections.
int PortOfJob(const std::string& job) {
  Hasher hasher;
  hasher.Add(job);
  return 20000 + static_cast<int>(hasher.Finish().low % 10000);
}

absl::StatusOr<LaunchEnvironment> FromReprise(Lookup lookup) {
  const LaunchVariables variables(lookup, "RunLocalRanks");
  // A user who starts two ranks by hand on one host need not say everything twice.
  const bool one_host =
      !variables.Has("REPRISE_LOCAL_RANK") && !variables.Has("REPRISE_LOCAL_SIZE") && !variables.Has("REPRISE_HOST");
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch, ReadRanks(variables, "REPRISE_RANK", "REPRISE_WORLD_SIZE",
                                                               one_host ? "REPRISE_RANK" : "REPRISE_LOCAL_RANK",
                                                               one_host ? "REPRISE_WORLD_SIZE" : "REPRISE_LOCAL_SIZE"));
  launch.launcher = Launcher::kReprise;
  return launch;
}

absl::StatusOr<LaunchEnvironment> FromTorchrun(Lookup lookup) {
  const LaunchVariables variables(lookup, "torchrun");
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch,
                           ReadRanks(variables, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"));
  launch.launcher = Launcher::kTorchrun;
  launch.job = variables.Text("TORCHELASTIC_RUN_ID");
  if (launch.size == 1) return launch;
  REPRISE_ASSIGN_OR_RETURN(launch.host, variables.Required("MASTER_ADDR"));
  REPRISE_ASSIGN_OR_RETURN(launch.port, variables.Number("MASTER_PORT", 1, kMaxPort - 1));
  // The default id is "none" for every run, but no two runs on one host share a port.
  launch.job = absl::StrCat(launch.job, " at port ", launch.port);
  ++launch.port;
  return launch;
}

// Open MPI and PMI: where ranks of several hosts meet is for the user to say, in torch's variables or in ours.
absl::StatusOr<LaunchEnvironment> PlaceMpi(const LaunchVariables& variables, LaunchEnvironment launch) {
  if (launch.local_size == launch.size || !variables.Has("MASTER_ADDR")) return launch;
  REPRISE_ASSIGN_OR_RETURN(launch.host, variables.Required("MASTER_ADDR"));
  REPRISE_ASSIGN_OR_RETURN(launch.port, variables.Number("MASTER_PORT", 1, kMaxPort));
  return launch;
}

absl::StatusOr<LaunchEnvironment> FromOpenMpi(Lookup lookup) {
  const LaunchVariables variables(lookup, "mpirun");
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch,
                           ReadRanks(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"));
  launch.launcher = Launcher::kOpenMpi;
  if (const char* name = variables.FirstOf({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})) {
    launch.job = variables.Text(name);
  }
  return PlaceMpi(variables, std::move(launch));
}

absl::StatusOr<LaunchEnvironment> FromPmi(Lookup lookup) {
  const LaunchVariables variables(lookup, "mpiexec");
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch,
                           ReadRanks(variables, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"));
  launch.launcher = Launcher::kPmi;
  launch.job = variables.Text("PMI_JOBID");
  return PlaceMpi(variables, std::move(launch));
}

// srun gives each of its steps a number. Shells of an allocation, batch scripts and the like either have none or one of
// those that Slurm reserves, from 0xfffffff0 on.
bool StartedBySrun(const LaunchVariables& variables) {
  const char* step = variables.FirstOf({"SLURM_STEP_ID", "SLURM_STEPID"});
  uint32_t number = 0;
  return step != nullptr && variables.Has("SLURM_PROCID") && absl::SimpleAtoi(variables.Text(step), &number) &&
         number < 0xfffffff0u;
}

// Ranks on this node. Variables of the step come before those of the allocation, which may be larger.
absl::StatusOr<int> SlurmLocalSize(const LaunchVariables& variables, int size) {
  const char* nodes = variables.FirstOf({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (size == 1 || (nodes != nullptr && variables.Text(nodes) == "1")) return size;
  const char* counts = variables.FirstOf({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (counts == nullptr) return variables.Number("SLURM_NTASKS_PER_NODE", 1, size);
  REPRISE_ASSIGN_OR_RETURN(const int node, variables.Number("SLURM_NODEID", 0, kMaxRanks));
  const std::optional<int> count = SlurmCount(variables.Text(counts), node);
  if (!count.has_value()) return variables.Wrong(counts, absl::StrCat("gives no number for SLURM_NODEID ", node));
  if (*count > size) return variables.Wrong(counts, absl::StrCat("there are only ", size, " ranks"));
  return *count;
}

absl::StatusOr<LaunchEnvironment> FromSlurm(Lookup lookup) {
  const LaunchVariables variables(lookup, "srun");
  LaunchEnvironment launch;
  launch.launcher = Launcher::kSlurm;
  const char* size = variables.FirstOf({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  REPRISE_ASSIGN_OR_RETURN(launch.size,
                           variables.Number(size == nullptr ? "SLURM_STEP_NUM_TASKS" : size, 1, kMaxRanks));
  REPRISE_ASSIGN_OR_RETURN(launch.rank, variables.Number("SLURM_PROCID", 0, launch.size - 1));
  REPRISE_ASSIGN_OR_RETURN(launch.local_size, SlurmLocalSize(variables, launch.size));
  REPRISE_ASSIGN_OR_RETURN(launch.local_rank, variables.Number("SLURM_LOCALID", 0, launch.local_size - 1));
  const char* job = variables.FirstOf({"SLURM_JOB_ID", "SLURM_JOBID"});
  REPRISE_ASSIGN_OR_RETURN(const std::string job_id, variables.Required(job == nullptr ? "SLURM_JOB_ID" : job));
  launch.job = absl::StrCat(job_id, ".", variables.Text(variables.FirstOf({"SLURM_STEP_ID", "SLURM_STEPID"})));
  if (launch.local_size == launch.size) return launch;

  const char* hosts = variables.FirstOf({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  REPRISE_ASSIGN_OR_RETURN(const std::string list, variables.Required(hosts == nullptr ? "SLURM_JOB_NODELIST" : hosts));
  const std::optional<std::string> host = FirstSlurmHost(list);
  if (!host.has_value()) return variables.Wrong(hosts, "is not a list of hosts");
  launch.host = *host;
  launch.port = PortOfJob(launch.job);
  return launch;
}

absl::StatusOr<LaunchEnvironment> FromLauncher(Lookup lookup) {
  const LaunchVariables any(lookup, "a launcher");
  if (any.Has("REPRISE_RANK") || any.Has("REPRISE_WORLD_SIZE")) return FromReprise(lookup);
  // WORLD_SIZE alone is no sign of torchrun: batch scripts export it for programs that srun starts.
  if (any.Has("RANK") || any.Has("LOCAL_RANK")) return FromTorchrun(lookup);
  if (any.Has("OMPI_COMM_WORLD_RANK") || any.Has("OMPI_COMM_WORLD_SIZE")) return FromOpenMpi(lookup);
  // Hydra starts its helpers with srun and Slurm speaks PMI: local ranks tell which of them started this process.
  const bool pmi = any.Has("PMI_RANK") || any.Has("PMI_SIZE");
  const bool srun = StartedBySrun(any);
  if (pmi && (!srun || any.Has("MPI_LOCALRANKID"))) return FromPmi(lookup);
  if (srun) return FromSlurm(lookup);
  if (any.Has("WORLD_SIZE") && any.Text("WORLD_SIZE") != "1") return FromTorchrun(lookup);
  return LaunchEnvironment();
}

}  // namespace

absl::StatusOr<LaunchEnvironment> DetectLaunchFrom(Lookup lookup, const std::string& parent) {
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch, FromLauncher(lookup));
  const LaunchVariables variables(lookup, "the right values");
  if (variables.Has("TMPDIR")) launch.directory = variables.Text("TMPDIR");
  if (launch.launcher == Launcher::kNone) return launch;
  if (variables.Has("REPRISE_JOB")) launch.job = variables.Text("REPRISE_JOB");
  if (variables.Has("REPRISE_HOST")) launch.host = variables.Text("REPRISE_HOST");
  if (variables.Has("REPRISE_PORT")) {
    REPRISE_ASSIGN_OR_RETURN(launch.port, variables.Number("REPRISE_PORT", 1, kMaxPort));
    // Someone who gives a port wants it used.
    if (launch.host.empty() && launch.local_size == launch.size) launch.host = "localhost";
  }
  if (launch.job.empty() && launch.local_size == launch.size) launch.job = absl::StrCat("of parent process ", parent);
  if (!launch.host.empty() && launch.port == 0) launch.port = PortOfJob(launch.job);
  return launch;
}

}  // namespace reprise::internal
