// Environments that launchers leave, and what DetectLaunch makes of them.
#ifndef REPRISE_TESTS_GRAPH_LAUNCH_TESTING_H_
#define REPRISE_TESTS_GRAPH_LAUNCH_TESTING_H_

#include <map>
#include <set>
#include <string>

#include "graph/comm/detect_launch.h"

namespace reprise::testing {

using Variables = std::map<std::string, std::string>;

// All names that detection ever asked for.
inline std::set<std::string>& LookedUp() {
  static auto* const names = new std::set<std::string>();
  return *names;
}

inline absl::StatusOr<LaunchEnvironment> Detect(const Variables& variables) {
  const auto lookup = [&](const char* name) -> const char* {
    LookedUp().insert(name);
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  return internal::DetectLaunchFrom(lookup, "77");
}

inline Variables With(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}
inline Variables Without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

inline const Variables kTorchrunVariables = {{"RANK", "5"},
                                             {"WORLD_SIZE", "8"},
                                             {"LOCAL_RANK", "1"},
                                             {"LOCAL_WORLD_SIZE", "4"},
                                             {"MASTER_ADDR", "node1"},
                                             {"MASTER_PORT", "29500"},
                                             {"TORCHELASTIC_RUN_ID", "run"}};
inline const Variables kOpenMpiVariables = {{"OMPI_COMM_WORLD_RANK", "1"},
                                            {"OMPI_COMM_WORLD_SIZE", "2"},
                                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                            {"OMPI_MCA_ess_base_jobid", "1234"}};
inline const Variables kPmiVariables = {
    {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
inline const Variables kSlurmVariables = {
    {"SLURM_JOB_ID", "991"}, {"SLURM_STEP_ID", "3"},          {"SLURM_PROCID", "5"},
    {"SLURM_NTASKS", "7"},   {"SLURM_LOCALID", "1"},          {"SLURM_NODEID", "1"},
    {"SLURM_NNODES", "2"},   {"SLURM_TASKS_PER_NODE", "4,3"}, {"SLURM_NODELIST", "gpu[07-08]"}};
inline const Variables kMvapichVariables = {{"MV2_COMM_WORLD_RANK", "1"},
                                            {"MV2_COMM_WORLD_SIZE", "2"},
                                            {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                                            {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};
inline const Variables kJsrunVariables = {{"JSM_NAMESPACE_RANK", "5"},
                                          {"JSM_NAMESPACE_SIZE", "8"},
                                          {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                                          {"JSM_NAMESPACE_LOCAL_SIZE", "4"},
                                          {"PMIX_NAMESPACE", "jsm-7"}};
inline const Variables kFluxVariables = {{"FLUX_TASK_RANK", "5"},
                                         {"FLUX_JOB_SIZE", "8"},
                                         {"FLUX_TASK_LOCAL_ID", "1"},
                                         {"FLUX_JOB_NNODES", "2"},
                                         {"FLUX_JOB_ID", "ƒ2Mk"}};
inline const Variables kPalsVariables = {{"PALS_RANKID", "1"},     {"PMI_SIZE", "4"},       {"PALS_LOCAL_RANKID", "1"},
                                         {"PALS_LOCAL_SIZE", "4"}, {"PALS_APID", "apid-1"}, {"PMI_RANK", "1"}};
inline const Variables kRepriseVariables = {{"REPRISE_RANK", "2"},
                                            {"REPRISE_WORLD_SIZE", "4"},
                                            {"REPRISE_LOCAL_RANK", "2"},
                                            {"REPRISE_LOCAL_SIZE", "4"},
                                            {"REPRISE_JOB", "mine"}};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_LAUNCH_TESTING_H_
