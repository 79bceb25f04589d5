#include "reprise/graph/launch_environment.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "graph/comm/detect_launch.h"
#include "graph/comm/nccl_settings.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

std::string LauncherName(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "without a launcher";
    case Launcher::kReprise:
      return "by reprise";
    case Launcher::kTorchrun:
      return "by torchrun";
    case Launcher::kOpenMpi:
      return "by Open MPI";
    case Launcher::kMvapich:
      return "by MVAPICH2";
    case Launcher::kJsrun:
      return "by jsrun";
    case Launcher::kFlux:
      return "by Flux";
    case Launcher::kPals:
      return "by PALS";
    case Launcher::kPmi:
      return "by mpiexec (PMI)";
    case Launcher::kSlurm:
      return "by Slurm";
  }
  return "";
}

}  // namespace

absl::StatusOr<LaunchEnvironment> DetectLaunch() {
  REPRISE_ASSIGN_OR_RETURN(LaunchEnvironment launch,
                           internal::DetectLaunchFrom([](const char* name) -> const char* { return std::getenv(name); },
                                                      absl::StrCat(getppid())));
  launch.nccl_settings = internal::NcclSettings(environ);
  return launch;
}

absl::Status Validate(const LaunchEnvironment& launch) {
  if (launch.size < 1 || launch.rank < 0 || launch.rank >= launch.size || launch.local_size < 1 ||
      launch.local_rank < 0 || launch.local_rank >= launch.local_size || launch.local_size > launch.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the launch environment says rank ", launch.rank, " of ", launch.size, ", local rank ", launch.local_rank,
        " of ", launch.local_size, "; ranks must be from 0 to size - 1, and no more be local than there are"));
  }
  if (launch.size == 1 || launch.connect != nullptr) return absl::OkStatus();
  if (launch.host.empty() && launch.local_size < launch.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("only ", launch.local_size, " of ", launch.size,
                     " ranks are on this host and nothing says where rank 0 is; set REPRISE_HOST to its host and "
                     "REPRISE_PORT to a port that is free there, on all ranks (mpirun -x REPRISE_HOST=...)"));
  }
  if (!launch.host.empty() && (launch.port < 1 || launch.port > 65535)) {
    return absl::InvalidArgumentError(absl::StrCat("the port of rank 0 is ", launch.port,
                                                   " but must be from 1 to 65535; set REPRISE_PORT on all ranks"));
  }
  return absl::OkStatus();
}

std::string ToString(const LaunchEnvironment& launch) {
  std::string text =
      absl::StrCat("launched ", LauncherName(launch.launcher), ": rank ", launch.rank, " of ", launch.size);
  if (launch.size == 1) return text;
  absl::StrAppend(&text, " (local rank ", launch.local_rank, " of ", launch.local_size, "), rendezvous ");
  if (launch.connect != nullptr) return absl::StrCat(text, "by the program's own connections");
  if (launch.host.empty()) {
    absl::StrAppend(&text, "by a file in ", launch.directory);
  } else {
    const bool brackets = absl::StrContains(launch.host, ":");
    absl::StrAppend(&text, "at ", brackets ? "[" : "", launch.host, brackets ? "]:" : ":", launch.port);
  }
  return absl::StrCat(text, ", job ", internal::Quoted(launch.job));
}

}  // namespace reprise
