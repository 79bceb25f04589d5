// DetectLaunch on any source of variables.
#ifndef REPRISE_GRAPH_COMM_DETECT_LAUNCH_H_
#define REPRISE_GRAPH_COMM_DETECT_LAUNCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "graph/comm/launch_variables.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::internal {

// `parent` stands for the process that started this rank: the name of a job whose launcher gives it none.
absl::StatusOr<LaunchEnvironment> DetectLaunchFrom(Lookup lookup, const std::string& parent);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_DETECT_LAUNCH_H_
