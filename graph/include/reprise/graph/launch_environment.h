// Which rank this process is, and where rank 0 can be met, as the program that started the process left it in the
// environment. Nothing else in the library reads the environment.
#ifndef REPRISE_GRAPH_LAUNCH_ENVIRONMENT_H_
#define REPRISE_GRAPH_LAUNCH_ENVIRONMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/graph/connection.h"

namespace reprise {

enum class Launcher : uint8_t {
  kNone,      // nothing started it as one of several ranks
  kReprise,   // RunLocalRanks, or a user who sets REPRISE_RANK by hand
  kTorchrun,  // torchrun and torch.distributed.launch
  kOpenMpi,   // mpirun of Open MPI
  kPmi,       // mpiexec of MPICH, Intel MPI and other Hydra launchers
  kSlurm,     // srun
  kMvapich,   // mpirun_rsh of MVAPICH2
  kJsrun,     // jsrun of IBM's LSF, with Spectrum MPI or without
  kFlux,      // flux run and flux submit
  kPals,      // mpiexec and aprun of HPE Cray's PALS
};

// A process as one rank of a job. A program that knows these values by other means fills one in itself.
struct LaunchEnvironment {
  int rank = 0, size = 1;              // among all processes of the job
  int local_rank = 0, local_size = 1;  // among those on this host: the device to use, unless the launcher hides others
  // Where to meet. With a host, rank 0 is on it, listens on the first free port from `port` (1 to 65535) and the others
  // look for it from there; if local_size is size, by the loopback addresses. Without, all ranks are on one host and
  // meet by a file in `directory`; `port` is not used.
  std::string host = {};
  int port = 0;
  // Equal on all ranks and on no other job of this user that runs on these hosts: what tells jobs apart that meet.
  std::string job = {};
  std::string directory = "/tmp";
  // The program's own connections between ranks, on all ranks or none. Then they do not meet, and host, port, job and
  // directory are not used.
  Connect connect = nullptr;
  Launcher launcher = Launcher::kNone;
  // The NCCL_ variables in force that all ranks must give the same value, sorted: {"NCCL_ALGO=Ring",
  // "NCCL_NVLS_ENABLE=0"}. A CUDA world refuses a difference. Left out are those that differ by nature, because they
  // name a host and its interfaces, devices, files and wiring, or say what a rank logs. One that this library does not
  // know is compared, because NCCL itself does not notice a difference and may hang; a program whose hosts give such a
  // one different values for a reason takes it out. Settings in NCCL's configuration files are not seen.
  std::vector<std::string> nccl_settings = {};
};

// Reads the environment. The first of these that is present decides:
//
//   kReprise   REPRISE_RANK, REPRISE_WORLD_SIZE, REPRISE_LOCAL_RANK, REPRISE_LOCAL_SIZE. The last two may be missing
//              on a single host.
//   kTorchrun  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID. The first
//              port tried is the one above MASTER_PORT, on which torchrun itself may listen.
//   kJsrun     JSM_NAMESPACE_RANK, JSM_NAMESPACE_SIZE, JSM_NAMESPACE_LOCAL_RANK, JSM_NAMESPACE_LOCAL_SIZE,
//              PMIX_NAMESPACE
//   kOpenMpi   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE,
//              PMIX_NAMESPACE or OMPI_MCA_ess_base_jobid
//   kMvapich   MV2_COMM_WORLD_RANK, MV2_COMM_WORLD_SIZE, MV2_COMM_WORLD_LOCAL_RANK, MV2_COMM_WORLD_LOCAL_SIZE
//   kPmi       PMI_RANK, PMI_SIZE, MPI_LOCALRANKID or PMI_LOCAL_RANK, MPI_LOCALNRANKS or PMI_LOCAL_SIZE, PMI_JOBID.
//              Without MPI_LOCALRANKID it comes after kPals: Flux, Slurm and PALS set some of these too.
//   kFlux      FLUX_TASK_RANK, FLUX_JOB_SIZE, FLUX_TASK_LOCAL_ID, FLUX_JOB_NNODES, FLUX_JOB_ID. All nodes must have as
//              many ranks.
//   kSlurm     SLURM_STEP_ID or SLURM_STEPID, SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS or SLURM_NPROCS,
//              SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_NUM_NODES or SLURM_NNODES or SLURM_JOB_NUM_NODES,
//              SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE,
//              SLURM_STEP_NODELIST or SLURM_JOB_NODELIST or SLURM_NODELIST, SLURM_JOB_ID or SLURM_JOBID. Only in
//              processes that srun started: in the shell of an allocation or of a batch script, where Slurm sets some
//              of these too, the answer is kNone.
//   kPals      PALS_RANKID, PMI_SIZE, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE or PMI_LOCAL_SIZE, PALS_APID
//   kNone      rank 0 of 1
//
// For every launcher, REPRISE_HOST, REPRISE_PORT and REPRISE_JOB replace what it says (mpirun -x REPRISE_HOST=node1),
// and TMPDIR is `directory`. Only torchrun and srun say where rank 0 is: for the rest, if ranks span several hosts,
// MASTER_ADDR and MASTER_PORT are used, or REPRISE_HOST and REPRISE_PORT must be set. Where a launcher names no job,
// ranks on one host are told apart by their parent process.
//
// Variables of several launchers, as where one starts the other or a shell exports them. kReprise wins over all.
// Otherwise another launcher's rank and size, the first variables of its list, must be the same, unless it says 1 rank,
// or may have started the launcher that decides, which then must say more than 1 rank:
//   * torchrun, seen by TORCHELASTIC_RUN_ID, may be started by any: srun torchrun ...
//   * kOpenMpi, kMvapich and kPmi may be started by jsrun, Flux, srun and PALS, which also start their daemons.
//   * Flux may be started by jsrun, srun and PALS.
// Scripts that another launcher starts often set RANK and WORLD_SIZE to its rank and size: without TORCHELASTIC_RUN_ID,
// and with any of torchrun's other variables missing, that launcher decides, if its variables are complete; LOCAL_RANK
// and LOCAL_WORLD_SIZE must be what it says, or not be set.
// Everything else is refused with both claims, in particular 1 rank within several (RANK=0 WORLD_SIZE=1 inherited by
// mpirun -n 4): that would be as many separate trainings.
//
// InvalidArgument if a value is missing, malformed or contradicts another; if REPRISE_LOCAL_RANK or REPRISE_LOCAL_SIZE
// is set without REPRISE_RANK and REPRISE_WORLD_SIZE; or if PMIX_RANK, PMI_ID, MVP_COMM_WORLD_RANK, ALPS_APP_PE or
// another launcher's rank on this host is the only sign of a launcher. Names the variable, its value and the remedy;
// which launcher it was comes before what its variables lack.
absl::StatusOr<LaunchEnvironment> DetectLaunch();

// InvalidArgument unless 0 <= rank < size, 0 <= local_rank < local_size <= size, and there is a place to meet or
// `connect`.
absl::Status Validate(const LaunchEnvironment& launch);

// One line for the log of every rank: "launched by torchrun: rank 1 of 8 (local rank 1 of 8), rendezvous at
// node1:29501, job "x"".
std::string ToString(const LaunchEnvironment& launch);

}  // namespace reprise

#endif  // REPRISE_GRAPH_LAUNCH_ENVIRONMENT_H_
