#include "graph/comm/detect_launch.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/model/hasher.h"
#include "graph/comm/launch_claims.h"
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

// What to do about a launcher's variables.
std::string StartWith(const char* program) {
  return absl::StrCat("start every rank with ", program, ", or unset its variables");
}
constexpr absl::string_view kByHand =
    "set REPRISE_RANK and REPRISE_WORLD_SIZE on every rank, and for several hosts REPRISE_LOCAL_RANK, "
    "REPRISE_LOCAL_SIZE, REPRISE_HOST and REPRISE_PORT, or none of them";

absl::StatusOr<LaunchEnvironment> FromReprise(Lookup lookup) {
  const LaunchVariables variables(lookup, std::string(kByHand));
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
  const LaunchVariables variables(lookup, StartWith("torchrun"));
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

// MPI and its like: where ranks of several hosts meet is for the user to say, in torch's variables or in ours.
absl::StatusOr<LaunchEnvironment> PlaceMpi(const LaunchVariables& variables, LaunchEnvironment launch) {
  if (launch.local_size == launch.size || !variables.Has("MASTER_ADDR")) return launch;
  REPRISE_ASSIGN_OR_RETURN(launch.host, variables.Required("MASTER_ADDR"));
  REPRISE_ASSIGN_OR_RETURN(launch.port, variables.Number("MASTER_PORT", 1, kMaxPort));
  return launch;
}

absl::StatusOr<LaunchEnvironment> FromOpenMpi(Lookup lookup) {
  const LaunchVariables variables(lookup, StartWith("mpirun"));
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch,
                           ReadRanks(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"));
  launch.launcher = Launcher::kOpenMpi;
  if (const char* name = variables.FirstOf({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})) {
    launch.job = variables.Text(name);
  }
  return PlaceMpi(variables, std::move(launch));
}

// Of mpirun_rsh; its mpispawn sets them.
absl::StatusOr<LaunchEnvironment> FromMvapich(Lookup lookup) {
  const LaunchVariables variables(lookup, StartWith("mpirun_rsh"));
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch,
                           ReadRanks(variables, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                                     "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"));
  launch.launcher = Launcher::kMvapich;
  return PlaceMpi(variables, std::move(launch));
}

// IBM's job step manager, with Spectrum MPI or without.
absl::StatusOr<LaunchEnvironment> FromJsrun(Lookup lookup) {
  const LaunchVariables variables(lookup, StartWith("jsrun"));
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch, ReadRanks(variables, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
                                                               "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"));
  launch.launcher = Launcher::kJsrun;
  launch.job = variables.Text("PMIX_NAMESPACE");
  return PlaceMpi(variables, std::move(launch));
}

absl::StatusOr<LaunchEnvironment> FromPmi(Lookup lookup) {
  const LaunchVariables variables(lookup, StartWith("mpiexec"));
  // Hydra's names, and those of Cray's PMI.
  const bool cray = !variables.Has("MPI_LOCALRANKID") && variables.Has("PMI_LOCAL_RANK");
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch,
                           ReadRanks(variables, "PMI_RANK", "PMI_SIZE", cray ? "PMI_LOCAL_RANK" : "MPI_LOCALRANKID",
                                     cray ? "PMI_LOCAL_SIZE" : "MPI_LOCALNRANKS"));
  launch.launcher = Launcher::kPmi;
  launch.job = variables.Text("PMI_JOBID");
  return PlaceMpi(variables, std::move(launch));
}

// HPE's mpiexec. It says how many ranks there are only by PMI.
absl::StatusOr<LaunchEnvironment> FromPals(Lookup lookup) {
  const LaunchVariables variables(lookup, std::string(kByHand));
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch,
                           ReadRanks(variables, "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID",
                                     variables.Has("PALS_LOCAL_SIZE") ? "PALS_LOCAL_SIZE" : "PMI_LOCAL_SIZE"));
  launch.launcher = Launcher::kPals;
  launch.job = variables.Text("PALS_APID");
  return PlaceMpi(variables, std::move(launch));
}

// Names as in flux-environment(7). How many tasks are on this node is not among them: they are taken to be spread
// evenly.
absl::StatusOr<LaunchEnvironment> FromFlux(Lookup lookup) {
  const LaunchVariables variables(lookup, std::string(kByHand));
  LaunchEnvironment launch;
  launch.launcher = Launcher::kFlux;
  REPRISE_ASSIGN_OR_RETURN(launch.size, variables.Number("FLUX_JOB_SIZE", 1, kMaxRanks));
  REPRISE_ASSIGN_OR_RETURN(launch.rank, variables.Number("FLUX_TASK_RANK", 0, launch.size - 1));
  REPRISE_ASSIGN_OR_RETURN(const int nodes, variables.Number("FLUX_JOB_NNODES", 1, launch.size));
  if (launch.size % nodes != 0) {
    return variables.Wrong("FLUX_JOB_NNODES", absl::StrCat("FLUX_JOB_SIZE is ", launch.size,
                                                           ", so that nodes have different numbers of ranks"));
  }
  launch.local_size = launch.size / nodes;
  REPRISE_ASSIGN_OR_RETURN(launch.local_rank, variables.Number("FLUX_TASK_LOCAL_ID", 0, launch.local_size - 1));
  launch.job = variables.Text("FLUX_JOB_ID");
  return PlaceMpi(variables, std::move(launch));
}

// Ranks on this node. Variables of the step come before those of the allocation, which may be larger.
absl::StatusOr<int> SlurmLocalSize(const LaunchVariables& variables, int size) {
  const char* nodes = variables.FirstOf({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (size == 1 || (nodes != nullptr && variables.NumberIfSet(nodes) == 1)) return size;
  const char* counts = variables.FirstOf({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (counts == nullptr) return variables.Number("SLURM_NTASKS_PER_NODE", 1, size);
  REPRISE_ASSIGN_OR_RETURN(const int node, variables.Number("SLURM_NODEID", 0, kMaxRanks));
  const std::optional<int> count = SlurmCount(variables.Text(counts), node);
  if (!count.has_value()) return variables.Wrong(counts, absl::StrCat("gives no number for SLURM_NODEID ", node));
  if (*count > size) return variables.Wrong(counts, absl::StrCat("there are only ", size, " ranks"));
  return *count;
}

absl::StatusOr<LaunchEnvironment> FromSlurm(Lookup lookup) {
  const LaunchVariables variables(lookup, StartWith("srun"));
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

// The launcher that decides, by the order in the header.
Launcher Decides(const LaunchVariables& any, bool but_torchrun) {
  if (any.Has("REPRISE_RANK") || any.Has("REPRISE_WORLD_SIZE")) return Launcher::kReprise;
  // WORLD_SIZE alone is no sign of torchrun: batch scripts export it for programs that srun starts.
  if (!but_torchrun && (any.Has("RANK") || any.Has("LOCAL_RANK"))) return Launcher::kTorchrun;
  if (any.Has("JSM_NAMESPACE_RANK") || any.Has("JSM_NAMESPACE_SIZE")) return Launcher::kJsrun;
  if (any.Has("OMPI_COMM_WORLD_RANK") || any.Has("OMPI_COMM_WORLD_SIZE")) return Launcher::kOpenMpi;
  if (any.Has("MV2_COMM_WORLD_RANK") || any.Has("MV2_COMM_WORLD_SIZE")) return Launcher::kMvapich;
  // Hydra starts its helpers with srun, and Slurm, Flux and PALS speak PMI: local ranks tell that it was Hydra.
  const bool pmi = any.Has("PMI_RANK") || any.Has("PMI_SIZE");
  if (pmi && any.Has("MPI_LOCALRANKID")) return Launcher::kPmi;
  if (any.Has("FLUX_TASK_RANK")) return Launcher::kFlux;
  if (StartedBySrun(any)) return Launcher::kSlurm;
  if (any.Has("PALS_RANKID")) return Launcher::kPals;
  if (pmi) return Launcher::kPmi;
  if (any.Has("WORLD_SIZE") && any.NumberIfSet("WORLD_SIZE") != 1) return Launcher::kTorchrun;
  return Launcher::kNone;
}

absl::StatusOr<LaunchEnvironment> From(Launcher launcher, Lookup lookup) {
  switch (launcher) {
    case Launcher::kNone:
      return LaunchEnvironment();
    case Launcher::kReprise:
      return FromReprise(lookup);
    case Launcher::kTorchrun:
      return FromTorchrun(lookup);
    case Launcher::kOpenMpi:
      return FromOpenMpi(lookup);
    case Launcher::kPmi:
      return FromPmi(lookup);
    case Launcher::kSlurm:
      return FromSlurm(lookup);
    case Launcher::kMvapich:
      return FromMvapich(lookup);
    case Launcher::kJsrun:
      return FromJsrun(lookup);
    case Launcher::kFlux:
      return FromFlux(lookup);
    case Launcher::kPals:
      return FromPals(lookup);
  }
  return absl::InternalError("no launcher");
}

// Scripts that another launcher starts give its rank and size torch's names, and often no more: then the other decides.
// Whether that is so for `other`, the launcher that decides but for torch's.
bool SetByScript(const LaunchVariables& any, Launcher other, Lookup lookup) {
  const bool lacking =
      !any.Has("LOCAL_RANK") || !any.Has("LOCAL_WORLD_SIZE") || !any.Has("MASTER_ADDR") || !any.Has("MASTER_PORT");
  return lacking && !any.Has("TORCHELASTIC_RUN_ID") && SayTheSame(any, Launcher::kTorchrun, other) &&
         !FromTorchrun(lookup).ok() && From(other, lookup).ok();
}

absl::StatusOr<LaunchEnvironment> FromWhoRanScript(Launcher other, Lookup lookup) {
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch, From(other, lookup));
  const LaunchVariables variables(lookup, "unset it, or set it to what the launcher says");
  for (const auto& [name, number] : {std::pair<const char*, int>{"LOCAL_RANK", launch.local_rank},
                                     std::pair<const char*, int>{"LOCAL_WORLD_SIZE", launch.local_size}}) {
    if (variables.Has(name) && variables.NumberIfSet(name) != number) {
      return variables.Wrong(name, absl::StrCat("the launcher that started this process says ", number));
    }
  }
  return launch;
}

absl::StatusOr<LaunchEnvironment> FromLauncher(Lookup lookup) {
  const LaunchVariables any(lookup, std::string(kByHand));
  const Launcher launcher = Decides(any, false);
  if (launcher != Launcher::kReprise) {
    // By themselves they would be overlooked: each process would be rank 0 of 1, or use another rank's device.
    if (const char* name = any.FirstOf({"REPRISE_LOCAL_RANK", "REPRISE_LOCAL_SIZE"})) {
      return any.Wrong(name, "REPRISE_RANK and REPRISE_WORLD_SIZE are not set");
    }
  }
  if (launcher == Launcher::kNone) REPRISE_RETURN_IF_ERROR(CheckUnknownLaunchers(any));
  // What a launcher's variables lack matters only once it is clear that they are the right ones.
  const Launcher other = Decides(any, true);
  const bool by_script = launcher == Launcher::kTorchrun && SetByScript(any, other, lookup);
  REPRISE_RETURN_IF_ERROR(CheckOtherLaunchers(any, by_script ? other : launcher));
  return by_script ? FromWhoRanScript(other, lookup) : From(launcher, lookup);
}

}  // namespace

absl::StatusOr<LaunchEnvironment> DetectLaunchFrom(Lookup lookup, const std::string& parent) {
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch, FromLauncher(lookup));
  const LaunchVariables variables(lookup, "set it to a port that is free on the host of rank 0, the same on all ranks");
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
