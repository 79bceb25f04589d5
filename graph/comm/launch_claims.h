// What the variables of each launcher say about this process, side by side: variables of a launcher that did not start
// it, inherited from a shell or from the process of another launcher, may say something else.
#ifndef REPRISE_GRAPH_COMM_LAUNCH_CLAIMS_H_
#define REPRISE_GRAPH_COMM_LAUNCH_CLAIMS_H_

#include "absl/status/status.h"
#include "graph/comm/launch_variables.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::internal {

// srun gives each of its steps a number. Shells of an allocation, batch scripts and the like either have none or one of
// those that Slurm reserves.
bool StartedBySrun(const LaunchVariables& variables);

// InvalidArgument if another launcher's variables contradict those of `launcher`, which decides, as DetectLaunch says.
// OK if those of `launcher` are missing or malformed.
absl::Status CheckOtherLaunchers(const LaunchVariables& variables, Launcher launcher);

// Both say rank and size, and the same.
bool SayTheSame(const LaunchVariables& variables, Launcher one, Launcher other);

// InvalidArgument if only a launcher that DetectLaunch does not know, or a rank on this host, tells that this process
// was started as one of several ranks.
absl::Status CheckUnknownLaunchers(const LaunchVariables& variables);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_LAUNCH_CLAIMS_H_
