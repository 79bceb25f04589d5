// main of tests that need devices. Built with REPRISE_TEST_RANKS ranks: with more than one it starts itself once per
// rank. Where there are too few devices the test is skipped, or fails if REPRISE_REQUIRE_GPU is 1.
#include <cstdlib>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "reprise/graph/cuda_world.h"
#include "reprise/graph/launch_environment.h"
#include "reprise/graph/local_launch.h"

int main(int argc, char** argv) {
  constexpr int kRanks = REPRISE_TEST_RANKS;
  ::testing::InitGoogleTest(&argc, argv);
  // Before NCCL is first used, see README: graphs without nodes for mixing with eager collectives.
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", /*overwrite=*/0);
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  const int devices = reprise::NumCudaDevices();
  if (devices < kRanks) {
    const char* const required = std::getenv("REPRISE_REQUIRE_GPU");
    const bool fails = required != nullptr && std::string(required) == "1";
    std::cout << (fails ? "[  FAILED  ] " : "[  SKIPPED ] ") << "needs " << kRanks << " CUDA devices, found " << devices
              << std::endl;
    return fails ? 1 : 0;
  }
  const absl::StatusOr<reprise::LaunchEnvironment> launch = reprise::DetectLaunch();
  if (kRanks == 1 || (launch.ok() && launch->launcher == reprise::Launcher::kReprise)) return RUN_ALL_TESTS();
  const absl::StatusOr<reprise::LocalRun> run = reprise::RunLocalRanks({.ranks = kRanks});
  std::cerr << (run.ok() ? run->message : run.status().ToString()) << std::endl;
  return run.ok() ? run->exit_code : 1;
}
