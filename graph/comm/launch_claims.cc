#include "graph/comm/launch_claims.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// The variables by which a launcher says which rank a process is, and what to unset so that it says nothing.
struct Family {
  Launcher launcher;
  const char* program;
  const char* rank;
  std::vector<const char*> sizes;  // the first that is set
  const char* unset;
};

const std::vector<Family>& Families() {
  static const auto* const families = new std::vector<Family>{
      {Launcher::kTorchrun, "torchrun", "RANK", {"WORLD_SIZE"}, "RANK, LOCAL_RANK and WORLD_SIZE"},
      {Launcher::kJsrun,
       "jsrun",
       "JSM_NAMESPACE_RANK",
       {"JSM_NAMESPACE_SIZE"},
       "JSM_NAMESPACE_RANK and JSM_NAMESPACE_SIZE"},
      {Launcher::kOpenMpi,
       "mpirun",
       "OMPI_COMM_WORLD_RANK",
       {"OMPI_COMM_WORLD_SIZE"},
       "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"},
      {Launcher::kMvapich,
       "mpirun_rsh",
       "MV2_COMM_WORLD_RANK",
       {"MV2_COMM_WORLD_SIZE"},
       "MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE"},
      {Launcher::kPmi, "mpiexec", "PMI_RANK", {"PMI_SIZE"}, "PMI_RANK and PMI_SIZE"},
      {Launcher::kFlux, "flux", "FLUX_TASK_RANK", {"FLUX_JOB_SIZE"}, "FLUX_TASK_RANK"},
      {Launcher::kSlurm,
       "srun",
       "SLURM_PROCID",
       {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"},
       "SLURM_PROCID"},
      {Launcher::kPals, "PALS mpiexec", "PALS_RANKID", {"PMI_SIZE"}, "PALS_RANKID"}};
  return *families;
}

struct Claim {
  int64_t rank = 0, size = 1;
  bool has_size = false;
  std::string text = {};  // "RANK is "0" and WORLD_SIZE is "1" (torchrun)"
};

// Nothing if the launcher's variables are not there, or no numbers.
std::optional<Claim> ClaimOf(const Family& family, const LaunchVariables& variables) {
  if (family.launcher == Launcher::kSlurm && !StartedBySrun(variables)) return std::nullopt;
  const std::optional<int> rank = variables.NumberIfSet(family.rank);
  if (!rank.has_value()) return std::nullopt;
  Claim claim = {.rank = *rank, .size = int64_t{*rank} + 1};  // at least, where the size is missing
  claim.text = absl::StrCat(family.rank, " is ", *rank);
  for (const char* name : family.sizes) {
    const std::optional<int> size = variables.NumberIfSet(name);
    if (!size.has_value()) continue;
    claim.size = *size;
    claim.has_size = true;
    absl::StrAppend(&claim.text, " and ", name, " is ", *size);
    break;
  }
  absl::StrAppend(&claim.text, " (", family.program, ")");
  return claim;
}

// Null for kNone and kReprise.
const Family* FamilyOf(Launcher launcher) {
  for (const Family& family : Families()) {
    if (family.launcher == launcher) return &family;
  }
  return nullptr;
}

// Resource managers start the daemons of other launchers, one on each node.
bool IsResourceManager(Launcher launcher, const LaunchVariables& variables) {
  switch (launcher) {
    case Launcher::kJsrun:
    case Launcher::kFlux:
    case Launcher::kSlurm:
    case Launcher::kPals:
      return true;
    case Launcher::kPmi:
      return !variables.Has("MPI_LOCALRANKID");  // not Hydra's: each of the above may speak PMI
    case Launcher::kNone:
    case Launcher::kReprise:
    case Launcher::kTorchrun:
    case Launcher::kOpenMpi:
    case Launcher::kMvapich:
      return false;
  }
  return false;
}

// Whether a process of `outer` may well have become the parent of several ranks of `inner`.
bool MayStart(Launcher outer, Launcher inner, const LaunchVariables& variables) {
  switch (inner) {
    case Launcher::kTorchrun:
      return variables.Has("TORCHELASTIC_RUN_ID");  // which torchrun itself sets, and no script
    case Launcher::kOpenMpi:
    case Launcher::kMvapich:
    case Launcher::kPmi:
      return IsResourceManager(outer, variables);
    case Launcher::kFlux:
      return outer != Launcher::kFlux && IsResourceManager(outer, variables);  // flux start
    case Launcher::kNone:
    case Launcher::kReprise:
    case Launcher::kJsrun:
    case Launcher::kSlurm:
    case Launcher::kPals:
      return false;
  }
  return false;
}

}  // namespace

bool StartedBySrun(const LaunchVariables& variables) {
  constexpr uint32_t kFirstReserved = 0xfffffff0;
  const char* step = variables.FirstOf({"SLURM_STEP_ID", "SLURM_STEPID"});
  uint32_t number = 0;
  return step != nullptr && variables.Has("SLURM_PROCID") && absl::SimpleAtoi(variables.Text(step), &number) &&
         number < kFirstReserved;
}

bool SayTheSame(const LaunchVariables& variables, Launcher one, Launcher other) {
  const Family *first = FamilyOf(one), *second = FamilyOf(other);
  if (first == nullptr || second == nullptr) return false;
  const std::optional<Claim> a = ClaimOf(*first, variables), b = ClaimOf(*second, variables);
  return a.has_value() && b.has_value() && a->has_size && b->has_size && a->rank == b->rank && a->size == b->size;
}

absl::Status CheckOtherLaunchers(const LaunchVariables& variables, Launcher launcher) {
  const Family* const mine = FamilyOf(launcher);
  const std::optional<Claim> my_claim = mine == nullptr ? std::nullopt : ClaimOf(*mine, variables);
  if (!my_claim.has_value()) return absl::OkStatus();  // what is missing or malformed, its reader says
  for (const Family& other : Families()) {
    const std::optional<Claim> claim = ClaimOf(other, variables);
    if (&other == mine || !claim.has_value() || claim->size == 1) continue;
    if (claim->rank == my_claim->rank && (claim->size == my_claim->size || !my_claim->has_size)) continue;
    const bool several = my_claim->size > 1 || !my_claim->has_size;
    if (several && MayStart(other.launcher, launcher, variables)) continue;
    return absl::InvalidArgumentError(absl::StrCat("two launchers contradict each other: ", my_claim->text, ", but ",
                                                   claim->text, "; unset ", mine->unset, " or ", other.unset,
                                                   ", whichever did not start this process, or set ",
                                                   "REPRISE_RANK and REPRISE_WORLD_SIZE on every rank"));
  }
  return absl::OkStatus();
}

absl::Status CheckUnknownLaunchers(const LaunchVariables& variables) {
  // PMIx without more (prun, PALS with --pmi=pmix), mpirun_rsh of old, MVAPICH 3, aprun; and what is left where a
  // container or sudo let only some of a launcher's variables through.
  const char* sign =
      variables.FirstOf({"PMIX_RANK", "PMI_ID", "MVP_COMM_WORLD_RANK", "ALPS_APP_PE", "OMPI_COMM_WORLD_LOCAL_RANK",
                         "MV2_COMM_WORLD_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK",
                         "FLUX_TASK_LOCAL_ID", "PALS_LOCAL_RANKID"});
  if (sign == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(sign, " is ", Quoted(variables.Text(sign)),
                   ", so a launcher started this process as a rank, but nothing says of how many; set REPRISE_RANK, "
                   "REPRISE_WORLD_SIZE, REPRISE_LOCAL_RANK and REPRISE_LOCAL_SIZE on every rank, and for several hosts "
                   "REPRISE_HOST and REPRISE_PORT, or unset ",
                   sign, " if it is alone"));
}

}  // namespace reprise::internal
