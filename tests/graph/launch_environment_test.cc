#include "reprise/graph/launch_environment.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "graph/comm/detect_launch.h"
#include "graph/comm/nccl_settings.h"
#include "graph/comm/slurm_lists.h"
#include "tests/graph/launch_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using internal::FirstSlurmHost;
using internal::NcclSettings;
using internal::SlurmCount;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Of a launcher that names none; Validate looks at it.
constexpr int kAnyPort = -1;

LaunchEnvironment Launch(Launcher launcher, int rank, int size, int local_rank, int local_size, std::string job,
                         std::string host = "", int port = 0) {
  return {.rank = rank,
          .size = size,
          .local_rank = local_rank,
          .local_size = local_size,
          .host = std::move(host),
          .port = port,
          .job = std::move(job),
          .launcher = launcher};
}

struct Case {
  std::string name;
  Variables variables;
  LaunchEnvironment expected;
};

class DetectLaunchTest : public ::testing::TestWithParam<Case> {};

TEST_P(DetectLaunchTest, ReadsWhatTheLauncherSet) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, Detect(GetParam().variables));
  const LaunchEnvironment& expected = GetParam().expected;
  EXPECT_EQ(launch.launcher, expected.launcher);
  EXPECT_EQ(launch.rank, expected.rank);
  EXPECT_EQ(launch.size, expected.size);
  EXPECT_EQ(launch.local_rank, expected.local_rank);
  EXPECT_EQ(launch.local_size, expected.local_size);
  EXPECT_EQ(launch.host, expected.host);
  EXPECT_EQ(launch.port, expected.port == kAnyPort ? launch.port : expected.port);
  EXPECT_EQ(launch.job, expected.job);
  EXPECT_EQ(launch.directory, expected.directory);
  EXPECT_THAT(Validate(launch), IsOk());
}

const LaunchEnvironment kSingle = {};

INSTANTIATE_TEST_SUITE_P(
    , DetectLaunchTest,
    ::testing::Values(
        Case{"Nothing", {}, kSingle},
        Case{"OnlyATemporaryDirectory", {{"TMPDIR", "/scratch"}}, {.directory = "/scratch"}},
        Case{"Torchrun", kTorchrunVariables,
             Launch(Launcher::kTorchrun, 5, 8, 1, 4, "run at port 29500", "node1", 29501)},
        Case{"TorchrunOfOneRankNeedsNoPlace",
             {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}},
             Launch(Launcher::kTorchrun, 0, 1, 0, 1, "of parent process 77")},
        Case{"TorchrunWithinSrun", With(kSlurmVariables, kTorchrunVariables),
             Launch(Launcher::kTorchrun, 5, 8, 1, 4, "run at port 29500", "node1", 29501)},
        Case{"PlaceIsReplaced",
             With(kTorchrunVariables, {{"REPRISE_HOST", "node2"}, {"REPRISE_PORT", "400"}, {"REPRISE_JOB", "j"}}),
             Launch(Launcher::kTorchrun, 5, 8, 1, 4, "j", "node2", 400)},
        Case{"OpenMpi", kOpenMpiVariables, Launch(Launcher::kOpenMpi, 1, 2, 1, 2, "1234")},
        Case{"OpenMpi5NamesItsJobByPmix", With(kOpenMpiVariables, {{"PMIX_NAMESPACE", "prterun-1@1"}}),
             Launch(Launcher::kOpenMpi, 1, 2, 1, 2, "prterun-1@1")},
        Case{"OpenMpiWithinAnAllocation", With(kSlurmVariables, kOpenMpiVariables),
             Launch(Launcher::kOpenMpi, 1, 2, 1, 2, "1234")},
        Case{"OpenMpiOnTwoHosts", With(kOpenMpiVariables, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"REPRISE_HOST", "node1"}}),
             Launch(Launcher::kOpenMpi, 1, 4, 1, 2, "1234", "node1", kAnyPort)},
        Case{"OpenMpiOnTwoHostsByTorchsVariables",
             With(kOpenMpiVariables,
                  {{"OMPI_COMM_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}),
             Launch(Launcher::kOpenMpi, 1, 4, 1, 2, "1234", "node1", 29500)},
        Case{"Pmi", kPmiVariables, Launch(Launcher::kPmi, 0, 2, 0, 2, "of parent process 77")},
        Case{"HydraStartedItsHelpersWithSrun", With(kSlurmVariables, kPmiVariables),
             Launch(Launcher::kPmi, 0, 2, 0, 2, "of parent process 77")},
        Case{"Mvapich", kMvapichVariables, Launch(Launcher::kMvapich, 1, 2, 1, 2, "of parent process 77")},
        Case{"Jsrun", With(kJsrunVariables, {{"REPRISE_HOST", "node1"}}),
             Launch(Launcher::kJsrun, 5, 8, 1, 4, "jsm-7", "node1", kAnyPort)},
        Case{"JsrunOfSpectrumMpi",
             With(With(kJsrunVariables, {{"REPRISE_HOST", "node1"}}),
                  {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}}),
             Launch(Launcher::kJsrun, 5, 8, 1, 4, "jsm-7", "node1", kAnyPort)},
        Case{"Flux", With(kFluxVariables, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}),
             Launch(Launcher::kFlux, 5, 8, 1, 4, "ƒ2Mk", "node1", 29500)},
        Case{"FluxOnOneHostThatSpeaksPmi",
             With(kFluxVariables,
                  {{"FLUX_JOB_NNODES", "1"}, {"FLUX_TASK_LOCAL_ID", "5"}, {"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}),
             Launch(Launcher::kFlux, 5, 8, 5, 8, "ƒ2Mk")},
        Case{"FluxWithinSrun",
             With(With(kFluxVariables, {{"FLUX_JOB_NNODES", "1"}, {"FLUX_TASK_LOCAL_ID", "5"}}), kSlurmVariables),
             Launch(Launcher::kFlux, 5, 8, 5, 8, "ƒ2Mk")},
        Case{"Pals", kPalsVariables, Launch(Launcher::kPals, 1, 4, 1, 4, "apid-1")},
        Case{
            "PalsOfSrun",
            With(kSlurmVariables, {{"PALS_RANKID", "5"}, {"PALS_APID", "991.3"}, {"PMI_RANK", "5"}, {"PMI_SIZE", "7"}}),
            Launch(Launcher::kSlurm, 5, 7, 1, 3, "991.3", "gpu07", kAnyPort)},
        Case{"CraysPmi",
             {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "2"}},
             Launch(Launcher::kPmi, 1, 2, 1, 2, "of parent process 77")},
        Case{"SpacesAroundANumber", With(kOpenMpiVariables, {{"OMPI_COMM_WORLD_SIZE", "  2\n"}}),
             Launch(Launcher::kOpenMpi, 1, 2, 1, 2, "1234")},
        Case{"Slurm", kSlurmVariables, Launch(Launcher::kSlurm, 5, 7, 1, 3, "991.3", "gpu07", kAnyPort)},
        Case{"SlurmThatSpeaksPmi", With(kSlurmVariables, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}}),
             Launch(Launcher::kSlurm, 5, 7, 1, 3, "991.3", "gpu07", kAnyPort)},
        Case{"SlurmScriptThatExportsWorldSize",
             With(kSlurmVariables, {{"WORLD_SIZE", "7"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "1"}}),
             Launch(Launcher::kSlurm, 5, 7, 1, 3, "991.3", "gpu07", kAnyPort)},
        Case{"SlurmStepSmallerThanItsAllocation",
             With(kSlurmVariables, {{"SLURM_STEP_NUM_TASKS", "2"},
                                    {"SLURM_STEP_NUM_NODES", "2"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                    {"SLURM_STEP_NODELIST", "gpu[11,08]"},
                                    {"SLURM_PROCID", "1"},
                                    {"SLURM_LOCALID", "0"}}),
             Launch(Launcher::kSlurm, 1, 2, 0, 1, "991.3", "gpu11", kAnyPort)},
        Case{"SlurmOnOneHostMeetsByFile",
             With(Without(kSlurmVariables, "SLURM_TASKS_PER_NODE"), {{"SLURM_NNODES", "1"}, {"SLURM_LOCALID", "5"}}),
             Launch(Launcher::kSlurm, 5, 7, 5, 7, "991.3")},
        Case{"ShellOfAnAllocation", Without(Without(kSlurmVariables, "SLURM_STEP_ID"), "SLURM_PROCID"), kSingle},
        Case{"BatchScript", With(Without(kSlurmVariables, "SLURM_STEP_ID"), {{"SLURM_PROCID", "0"}}), kSingle},
        Case{"InteractiveStep", With(kSlurmVariables, {{"SLURM_STEP_ID", "4294967290"}}), kSingle},
        Case{"Reprise", kRepriseVariables, Launch(Launcher::kReprise, 2, 4, 2, 4, "mine")},
        Case{"RepriseBeforeAllOthers", With(With(kTorchrunVariables, kSlurmVariables), kRepriseVariables),
             Launch(Launcher::kReprise, 2, 4, 2, 4, "mine")},
        Case{"RepriseByHand",
             {{"REPRISE_RANK", "1"}, {"REPRISE_WORLD_SIZE", "2"}},
             Launch(Launcher::kReprise, 1, 2, 1, 2, "of parent process 77")},
        Case{"RepriseByHandAtAPort",
             {{"REPRISE_RANK", "1"}, {"REPRISE_WORLD_SIZE", "2"}, {"REPRISE_PORT", "4000"}},
             Launch(Launcher::kReprise, 1, 2, 1, 2, "of parent process 77", "localhost", 4000)}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

constexpr char kByHand[] = "set REPRISE_RANK and REPRISE_WORLD_SIZE";

struct Mistake {
  std::string name;
  Variables variables;
  std::string first_words, second_words;
};

class LaunchMistakeTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(LaunchMistakeTest, IsRefusedByName) {
  EXPECT_THAT(Detect(GetParam().variables),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(GetParam().first_words), HasSubstr(GetParam().second_words), HasSubstr(";"))));
}

INSTANTIATE_TEST_SUITE_P(
    , LaunchMistakeTest,
    ::testing::Values(
        Mistake{"RankNotBelowSize", With(kTorchrunVariables, {{"RANK", "8"}}), "RANK is \"8\"", "WORLD_SIZE is 8"},
        Mistake{"NegativeRank", With(kTorchrunVariables, {{"RANK", "-1"}}), "RANK is \"-1\"", "number from 0"},
        Mistake{"NoNumber", With(kTorchrunVariables, {{"RANK", "first"}}), "RANK is \"first\"", "torchrun"},
        Mistake{"NumberTooLarge", With(kTorchrunVariables, {{"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE is",
                "1048576"},
        Mistake{"HalfSet", Without(kTorchrunVariables, "LOCAL_RANK"), "LOCAL_RANK is not set", "torchrun"},
        Mistake{"SetButEmpty", With(kTorchrunVariables, {{"LOCAL_RANK", ""}}), "LOCAL_RANK is not set", "torchrun"},
        Mistake{"OnlyWorldSize", {{"WORLD_SIZE", "2"}}, "RANK is not set", "unset"},
        Mistake{"NoMaster", Without(kTorchrunVariables, "MASTER_ADDR"), "MASTER_ADDR is not set", "torchrun"},
        Mistake{"PortWithoutNext", With(kTorchrunVariables, {{"MASTER_PORT", "65535"}}), "MASTER_PORT is", "65534"},
        Mistake{"MoreLocalThanThereAre", With(kTorchrunVariables, {{"LOCAL_WORLD_SIZE", "9"}}), "LOCAL_WORLD_SIZE is",
                "WORLD_SIZE is 8"},
        Mistake{"LocalRankNotBelowLocalSize", With(kTorchrunVariables, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK is \"4\"",
                "LOCAL_WORLD_SIZE is 4"},
        Mistake{"OpenMpiWithoutSize", Without(kOpenMpiVariables, "OMPI_COMM_WORLD_SIZE"),
                "OMPI_COMM_WORLD_SIZE is not set", "mpirun"},
        Mistake{"PmiWithoutLocalRank", Without(kPmiVariables, "MPI_LOCALRANKID"), "MPI_LOCALRANKID is not set",
                "mpiexec"},
        Mistake{"SlurmRankNotBelowSize", With(kSlurmVariables, {{"SLURM_PROCID", "7"}}), "SLURM_PROCID is \"7\"",
                "srun"},
        Mistake{"SlurmCountsMalformed", With(kSlurmVariables, {{"SLURM_TASKS_PER_NODE", "4(x"}}),
                "SLURM_TASKS_PER_NODE is \"4(x\"", "SLURM_NODEID 1"},
        Mistake{"SlurmHostsMalformed", With(kSlurmVariables, {{"SLURM_NODELIST", "gpu[07"}}),
                "SLURM_NODELIST is \"gpu[07\"", "list of hosts"},
        Mistake{"SlurmWithoutHosts", Without(kSlurmVariables, "SLURM_NODELIST"), "SLURM_JOB_NODELIST is not set",
                "srun"},
        Mistake{"RepriseHalfSet", Without(kRepriseVariables, "REPRISE_LOCAL_SIZE"), "REPRISE_LOCAL_SIZE is not set",
                "set REPRISE_RANK and REPRISE_WORLD_SIZE on every rank"},
        Mistake{"RepriseRankMissing", {{"REPRISE_WORLD_SIZE", "2"}}, "REPRISE_RANK is not set", kByHand},
        Mistake{"RepriseSizeMissing", {{"REPRISE_RANK", "1"}}, "REPRISE_WORLD_SIZE is not set", kByHand},
        Mistake{"RepriseRankNotBelowSize", With(kRepriseVariables, {{"REPRISE_RANK", "4"}}), "REPRISE_RANK is \"4\"",
                kByHand},
        Mistake{"RepriseOnSeveralHostsHalfSet",
                With(Without(Without(kRepriseVariables, "REPRISE_LOCAL_RANK"), "REPRISE_LOCAL_SIZE"),
                     {{"REPRISE_HOST", "node1"}}),
                "REPRISE_LOCAL_SIZE is not set", "for several hosts REPRISE_LOCAL_RANK"},
        Mistake{"Sign", With(kTorchrunVariables, {{"RANK", "+1"}}), "RANK is \"+1\"", "number from 0"},
        Mistake{"MinusZero", With(kTorchrunVariables, {{"RANK", "-0"}}), "RANK is \"-0\"", "number from 0"},
        Mistake{"OnlySpaces", With(kTorchrunVariables, {{"RANK", "  "}}), "RANK is \"  \"", "number from 0"},
        Mistake{"OtherDigits", With(kTorchrunVariables, {{"RANK", "١"}}), "RANK is ", "number from 0"},
        Mistake{"Hexadecimal", With(kTorchrunVariables, {{"RANK", "0x1"}}), "RANK is \"0x1\"", "number from 0"},
        Mistake{"Fraction", With(kTorchrunVariables, {{"RANK", "1.0"}}), "RANK is \"1.0\"", "number from 0"},
        Mistake{"TwoNumbers", With(kTorchrunVariables, {{"RANK", "1 2"}}), "RANK is \"1 2\"", "number from 0"},
        Mistake{"FluxOnUnlikeNodes", With(kFluxVariables, {{"FLUX_JOB_SIZE", "7"}}), "FLUX_JOB_NNODES is \"2\"",
                kByHand},
        Mistake{"FluxWithoutNodes", Without(kFluxVariables, "FLUX_JOB_NNODES"), "FLUX_JOB_NNODES is not set", kByHand},
        Mistake{"PalsWithoutSize", Without(Without(kPalsVariables, "PMI_SIZE"), "PMI_RANK"), "PMI_SIZE is not set",
                kByHand},
        Mistake{"MvapichHalfSet", Without(kMvapichVariables, "MV2_COMM_WORLD_LOCAL_SIZE"),
                "MV2_COMM_WORLD_LOCAL_SIZE is not set", "mpirun_rsh"},
        Mistake{"JsrunHalfSet", Without(kJsrunVariables, "JSM_NAMESPACE_RANK"), "JSM_NAMESPACE_RANK is not set",
                "jsrun"},
        Mistake{"RepriseLocalRankAlone", {{"REPRISE_LOCAL_RANK", "1"}}, "REPRISE_LOCAL_RANK is \"1\"", kByHand},
        Mistake{"RepriseLocalSizeAlone", {{"REPRISE_LOCAL_SIZE", "2"}}, "REPRISE_LOCAL_SIZE is \"2\"", kByHand},
        Mistake{"RepriseLocalRankBesideAnother", With(kOpenMpiVariables, {{"REPRISE_LOCAL_RANK", "0"}}),
                "REPRISE_LOCAL_RANK is \"0\"", kByHand},
        Mistake{"PmixAlone",
                {{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "prun"}},
                "PMIX_RANK is \"0\"",
                "set REPRISE_RANK, REPRISE_WORLD_SIZE"},
        Mistake{"MvapichOf3", {{"MVP_COMM_WORLD_RANK", "2"}}, "MVP_COMM_WORLD_RANK is \"2\"", "set REPRISE_RANK"},
        Mistake{"Aprun", {{"ALPS_APP_PE", "2"}}, "ALPS_APP_PE is \"2\"", "set REPRISE_RANK"},
        Mistake{"PortIsNone", With(kRepriseVariables, {{"REPRISE_PORT", "0"}}), "REPRISE_PORT is \"0\"", "1 to 65535"}),
    [](const ::testing::TestParamInfo<Mistake>& info) { return info.param.name; });

TEST(LaunchEnvironmentTest, ALocalRankAloneIsRefusedByName) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK",
                           "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "FLUX_TASK_LOCAL_ID", "PALS_LOCAL_RANKID"}) {
    for (const char* rank : {"0", "1"}) {
      EXPECT_THAT(Detect({{name, rank}}),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr(absl::StrCat(name, " is \"", rank, "\"")), HasSubstr("set REPRISE_RANK"),
                                 HasSubstr(absl::StrCat("or unset ", name)))));
    }
  }
  EXPECT_THAT(Detect({{"LOCAL_RANK", "1"}}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("torchrun")));
}

TEST(LaunchEnvironmentTest, RanksOnSeveralHostsNeedAPlaceToMeet) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch,
                               Detect(With(kOpenMpiVariables, {{"OMPI_COMM_WORLD_SIZE", "4"}})));
  EXPECT_THAT(Validate(launch), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("set REPRISE_HOST")));
}

TEST(LaunchEnvironmentTest, ValidateRefusesWhatAUserFillsInWrong) {
  EXPECT_THAT(Validate({.rank = 2, .size = 2, .local_size = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2 of 2")));
  EXPECT_THAT(Validate({.size = 0}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 of 0")));
  EXPECT_THAT(Validate({.size = 2, .local_rank = 1, .local_size = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local rank 1 of 1")));
  EXPECT_THAT(Validate({.size = 2, .local_size = 2, .host = "a", .port = 65536}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("port of rank 0 is 65536")));
}

TEST(LaunchEnvironmentTest, AllRanksOfAStepExpectRank0AtOnePlace) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment one, Detect(kSlurmVariables));
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const LaunchEnvironment other,
      Detect(With(kSlurmVariables, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}})));
  EXPECT_EQ(one.host, other.host);
  EXPECT_EQ(one.port, other.port);
  EXPECT_EQ(one.job, other.job);
  EXPECT_EQ(other.local_size, 4);
}

TEST(LaunchEnvironmentTest, TextSaysWhoAndWhere) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment torchrun, Detect(kTorchrunVariables));
  EXPECT_EQ(
      ToString(torchrun),
      "launched by torchrun: rank 5 of 8 (local rank 1 of 4), rendezvous at node1:29501, job \"run at port 29500\"");
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment mpi, Detect(kOpenMpiVariables));
  EXPECT_EQ(ToString(mpi),
            "launched by Open MPI: rank 1 of 2 (local rank 1 of 2), rendezvous by a file in /tmp, job \"1234\"");
  EXPECT_EQ(ToString(LaunchEnvironment{}), "launched without a launcher: rank 0 of 1");
  EXPECT_THAT(ToString(Launch(Launcher::kSlurm, 0, 2, 0, 1, "j", "::1", 80)), HasSubstr("at [::1]:80"));
}

TEST(LaunchEnvironmentTest, TheEnvironmentOfTheProcessIsRead) {
  setenv("REPRISE_RANK", "1", 1);
  setenv("REPRISE_WORLD_SIZE", "3", 1);
  const absl::StatusOr<LaunchEnvironment> launch = DetectLaunch();
  unsetenv("REPRISE_RANK");
  unsetenv("REPRISE_WORLD_SIZE");
  ASSERT_THAT(launch, IsOk());
  EXPECT_EQ(launch->rank, 1);
  EXPECT_EQ(launch->size, 3);
}

TEST(NcclSettingsTest, HoldsWhatMustBeEqualSorted) {
  const char* const variables[] = {"PATH=/bin",      "NCCL_PROTO=LL", "NCCL_DEBUG=INFO",       "NCCL_HOSTID=a b",
                                   "NCCL_ALGO=Ring", "XNCCL_A=1",     "NCCL_IB_HCA=mlx5_0:1,", nullptr};
  EXPECT_THAT(NcclSettings(variables), ElementsAre("NCCL_ALGO=Ring", "NCCL_PROTO=LL"));
  EXPECT_THAT(NcclSettings(nullptr), IsEmpty());
  ASSERT_EQ(setenv("NCCL_TEST_ONLY", "7", 1), 0);
  ASSERT_EQ(setenv("NCCL_SOCKET_IFNAME", "eth0", 1), 0);
  const absl::StatusOr<LaunchEnvironment> launch = DetectLaunch();
  unsetenv("NCCL_TEST_ONLY");
  unsetenv("NCCL_SOCKET_IFNAME");
  ASSERT_THAT(launch, IsOk());
  EXPECT_THAT(launch->nccl_settings, Contains("NCCL_TEST_ONLY=7"));
  EXPECT_THAT(launch->nccl_settings, Not(Contains(HasSubstr("IFNAME"))));
}

TEST(NcclSettingsTest, WhatNamesAHostMayDiffer) {
  for (const char* name : {"NCCL_HOSTID",
                           "NCCL_SOCKET_IFNAME",
                           "NCCL_SOCKET_FAMILY",
                           "NCCL_IB_HCA",
                           "NCCL_IB_GID_INDEX",
                           "NCCL_IB_SL",
                           "NCCL_NET_PLUGIN",
                           "NCCL_NET_GDR_LEVEL",
                           "NCCL_TOPO_FILE",
                           "NCCL_TOPO_DUMP_FILE",
                           "NCCL_GRAPH_FILE",
                           "NCCL_DEBUG",
                           "NCCL_DEBUG_FILE",
                           "NCCL_DEBUG_SUBSYS",
                           "NCCL_CONF_FILE",
                           "NCCL_COMM_ID",
                           "NCCL_OOB_NET_IFNAME",
                           "NCCL_CROSS_NIC",
                           "NCCL_PROFILER_PLUGIN",
                           "NCCL_TUNER_PLUGIN",
                           "NCCL_MNNVL_UUID",
                           "NCCL_RAS_ADDR",
                           "NCCL_PROXY_CPUSET",
                           "NCCL_IBVERBS_LIB",
                           "NCCL_GRAPH_DUMP_FILE_RANK",
                           "NCCL_PROXY_DUMP_SIGNAL",
                           "NCCL_GDRCOPY_ENABLE"}) {
    EXPECT_FALSE(internal::MustBeEqual(name)) << name;
  }
}

TEST(NcclSettingsTest, WhatRanksDoTogetherMustBeEqual) {
  for (const char* name : {"NCCL_ALGO",
                           "NCCL_PROTO",
                           "NCCL_MAX_CTAS",
                           "NCCL_MIN_CTAS",
                           "NCCL_NVLS_ENABLE",
                           "NCCL_WIN_ENABLE",
                           "NCCL_CUMEM_ENABLE",
                           "NCCL_P2P_LEVEL",
                           "NCCL_P2P_DISABLE",
                           "NCCL_SHM_DISABLE",
                           "NCCL_LAUNCH_MODE",
                           "NCCL_CTA_POLICY",
                           "NCCL_BUFFSIZE",
                           "NCCL_LL_BUFFSIZE",
                           "NCCL_GRAPH_REGISTER",
                           "NCCL_GRAPH_MIXING_SUPPORT",
                           "NCCL_NET",
                           "NCCL_IB_DISABLE",
                           "NCCL_SOCKET_MIN_TASKSIZE",
                           "NCCL_SOCKET_INLINE",
                           "NCCL_OOB_NET_ENABLE",
                           "NCCL_NET_OVERHEAD",
                           "NCCL_NET_SHARED_COMMS",
                           "NCCL_MULTI_RANK_GPU_ENABLE",
                           "NCCL_RUNTIME_CONNECT",
                           "NCCL_OF_A_LATER_VERSION",
                           "NCCL_",
                           "NCCL_HOSTID_2",
                           "NCCL_FILE"}) {
    EXPECT_TRUE(internal::MustBeEqual(name)) << name;
  }
}

TEST(NcclSettingsTest, TheFirstDifferenceIsNamedWithBothValues) {
  const auto check = [](const std::vector<std::vector<std::string>>& by_rank) {
    std::vector<std::string> bytes;
    for (const std::vector<std::string>& settings : by_rank) bytes.push_back(internal::ToBytes(settings));
    return internal::CheckSameNcclSettings(bytes);
  };
  EXPECT_THAT(check({{}, {}}), IsOk());
  EXPECT_THAT(check({{"NCCL_ALGO=a b=c", "NCCL_PROTO="}, {"NCCL_PROTO=", "NCCL_ALGO=a b=c"}}), IsOk());
  EXPECT_THAT(check({{"NCCL_ALGO=Ring", "NCCL_PROTO=LL"},
                     {"NCCL_ALGO=Ring", "NCCL_PROTO=LL128"},
                     {"NCCL_ALGO=Ring", "NCCL_PROTO=LL"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("ranks differ in NCCL settings: NCCL_PROTO is \"LL\" on ranks 0, 2 but "
                                       "\"LL128\" on rank 1; set it to the same on every rank"),
                             HasSubstr("LaunchEnvironment::nccl_settings"))));
  EXPECT_THAT(check({{}, {"NCCL_NTHREADS=64"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("NCCL_NTHREADS is unset on rank 0 but \"64\" on rank 1")));
  EXPECT_THAT(check({{"NCCL_NTHREADS="}, {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is \"\" on rank 0 but unset on rank 1")));
}

TEST(SlurmListsTest, FirstHost) {
  EXPECT_EQ(FirstSlurmHost("node7"), "node7");
  EXPECT_EQ(FirstSlurmHost("a.b.c,node7"), "a.b.c");
  EXPECT_EQ(FirstSlurmHost("node[001-128,200],login"), "node001");
  EXPECT_EQ(FirstSlurmHost("rack[2,5-7]n[09-12]-ib,x"), "rack2n09-ib");
  for (const char* bad : {"", ",a", "node[", "node[]", "node[-3]", "no de", "node]["}) {
    EXPECT_EQ(FirstSlurmHost(bad), std::nullopt) << bad;
  }
}

TEST(SlurmListsTest, Count) {
  EXPECT_EQ(SlurmCount("4", 0), 4);
  EXPECT_EQ(SlurmCount("4(x2),3", 1), 4);
  EXPECT_EQ(SlurmCount("4(x2),3", 2), 3);
  EXPECT_EQ(SlurmCount("4(x2),3", 3), std::nullopt);
  for (const char* bad : {"", "x", "4(x", "4(x)", "4(x0)", "0", "4,,4", "4(x2"}) {
    EXPECT_EQ(SlurmCount(bad, 2), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace reprise::testing
