// main of tests whose ranks are processes on the host. With --ranks=N, N more than 1, it starts itself once per rank.
#include <cstdlib>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "reprise/graph/launch_environment.h"
#include "reprise/graph/local_launch.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int ranks = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--ranks=", 0) == 0) ranks = std::atoi(argument.c_str() + 8);
  }
  const absl::StatusOr<reprise::LaunchEnvironment> launch = reprise::DetectLaunch();
  if (ranks == 1 || (launch.ok() && launch->launcher == reprise::Launcher::kReprise)) return RUN_ALL_TESTS();
  const absl::StatusOr<reprise::LocalRun> run = reprise::RunLocalRanks({.ranks = ranks});
  std::cerr << (run.ok() ? run->message : run.status().ToString()) << std::endl;
  return run.ok() ? run->exit_code : 1;
}
