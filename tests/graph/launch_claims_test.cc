// Variables of several launchers side by side, and the lists of variables that the header gives.
#include "graph/comm/launch_claims.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/graph/launch_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Variables kTorchrunAlone = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}};

// Variables of rank `rank` of `size`, all on this host, of one launcher; it says no more than that of the same job.
Variables SaysRank(Launcher launcher, int rank, int size) {
  const std::string r = absl::StrCat(rank), n = absl::StrCat(size);
  switch (launcher) {
    case Launcher::kTorchrun:
      return {{"RANK", r},
              {"WORLD_SIZE", n},
              {"LOCAL_RANK", r},
              {"LOCAL_WORLD_SIZE", n},
              {"TORCHELASTIC_RUN_ID", "j"},
              {"MASTER_ADDR", "localhost"},
              {"MASTER_PORT", "29500"}};
    case Launcher::kJsrun:
      return {{"JSM_NAMESPACE_RANK", r},
              {"JSM_NAMESPACE_SIZE", n},
              {"JSM_NAMESPACE_LOCAL_RANK", r},
              {"JSM_NAMESPACE_LOCAL_SIZE", n}};
    case Launcher::kOpenMpi:
      return {{"OMPI_COMM_WORLD_RANK", r},
              {"OMPI_COMM_WORLD_SIZE", n},
              {"OMPI_COMM_WORLD_LOCAL_RANK", r},
              {"OMPI_COMM_WORLD_LOCAL_SIZE", n}};
    case Launcher::kMvapich:
      return {{"MV2_COMM_WORLD_RANK", r},
              {"MV2_COMM_WORLD_SIZE", n},
              {"MV2_COMM_WORLD_LOCAL_RANK", r},
              {"MV2_COMM_WORLD_LOCAL_SIZE", n}};
    case Launcher::kPmi:
      return {{"PMI_RANK", r}, {"PMI_SIZE", n}, {"MPI_LOCALRANKID", r}, {"MPI_LOCALNRANKS", n}};
    case Launcher::kFlux:
      return {{"FLUX_TASK_RANK", r}, {"FLUX_JOB_SIZE", n}, {"FLUX_TASK_LOCAL_ID", r}, {"FLUX_JOB_NNODES", "1"}};
    case Launcher::kSlurm:
      return {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", r},           {"SLURM_STEP_NUM_TASKS", n},
              {"SLURM_LOCALID", r},   {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_JOB_ID", "1"}};
    case Launcher::kPals:  // its size is PMI's, so that it cannot differ from that
      return {{"PALS_RANKID", r}, {"PALS_LOCAL_RANKID", r}, {"PALS_LOCAL_SIZE", n}, {"PMI_RANK", r}, {"PMI_SIZE", n}};
    case Launcher::kNone:
    case Launcher::kReprise:
      return {};
  }
  return {};
}

// In the order in which they decide.
constexpr Launcher kInOrder[] = {Launcher::kTorchrun, Launcher::kJsrun, Launcher::kOpenMpi, Launcher::kMvapich,
                                 Launcher::kPmi,      Launcher::kFlux,  Launcher::kSlurm};

// Which of the pairs (inner, outer) nest, written down once more.
bool Nests(Launcher inner, Launcher outer) {
  const bool manager = outer == Launcher::kJsrun || outer == Launcher::kFlux || outer == Launcher::kSlurm;
  const bool mpi = inner == Launcher::kOpenMpi || inner == Launcher::kMvapich || inner == Launcher::kPmi;
  return inner == Launcher::kTorchrun || (manager && mpi) ||
         (inner == Launcher::kFlux && (outer == Launcher::kSlurm || outer == Launcher::kJsrun));
}

TEST(SeveralLaunchersTest, WhatContradictsIsRefused) {
  for (size_t i = 0; i < std::size(kInOrder); ++i) {
    for (size_t j = 0; j < std::size(kInOrder); ++j) {
      if (i == j) continue;
      const Launcher decides = kInOrder[std::min(i, j)], other = kInOrder[std::max(i, j)];
      const auto detect = [&](int rank, int size, int other_rank, int other_size) {
        return Detect(With(SaysRank(other, other_rank, other_size), SaysRank(decides, rank, size)));
      };
      // jsrun decides before the launchers that it starts.
      const bool nests = Nests(decides, other);
      SCOPED_TRACE(absl::StrCat("launchers ", static_cast<int>(decides), " and ", static_cast<int>(other)));
      const auto refused =
          StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("two launchers contradict each other: "),
                                                             HasSubstr("; unset "), HasSubstr("set REPRISE_RANK")));
      // Alone within several: as many separate trainings.
      EXPECT_THAT(detect(0, 1, 3, 4), refused);
      EXPECT_THAT(detect(0, 1, 0, 4), refused);
      // The same.
      EXPECT_THAT(detect(3, 4, 3, 4), IsOk());
      EXPECT_THAT(detect(0, 1, 0, 1), IsOk());
      // Several, started by one.
      EXPECT_THAT(detect(3, 4, 0, 1), IsOk());
      // Several within several, of whatever numbers.
      for (const auto& [rank, size, other_rank, other_size] :
           {std::array{5, 8, 1, 2}, std::array{1, 2, 3, 4}, std::array{1, 4, 2, 4}}) {
        const absl::StatusOr<LaunchEnvironment> launch = detect(rank, size, other_rank, other_size);
        if (!nests) {
          EXPECT_THAT(launch, refused);
        } else {
          ASSERT_THAT(launch, IsOk());
          EXPECT_EQ(launch->launcher, decides);
          EXPECT_EQ(launch->rank, rank);
        }
      }
      // The override.
      REPRISE_ASSERT_OK_AND_ASSIGN(
          const LaunchEnvironment launch,
          Detect(With(With(SaysRank(other, 3, 4), SaysRank(decides, 0, 1)), kRepriseVariables)));
      EXPECT_EQ(launch.launcher, Launcher::kReprise);
    }
  }
}

TEST(SeveralLaunchersTest, BothClaimsAreNamed) {
  EXPECT_THAT(Detect(With(SaysRank(Launcher::kOpenMpi, 3, 4), kTorchrunAlone)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "two launchers contradict each other: RANK is 0 and WORLD_SIZE is 1 (torchrun), but "
                       "OMPI_COMM_WORLD_RANK is 3 and OMPI_COMM_WORLD_SIZE is 4 (mpirun); unset RANK, LOCAL_RANK and "
                       "WORLD_SIZE or OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, whichever did not start this "
                       "process, or set REPRISE_RANK and REPRISE_WORLD_SIZE on every rank"));
  // Doing the one and the other.
  EXPECT_THAT(Detect(SaysRank(Launcher::kOpenMpi, 3, 4)), IsOk());
  EXPECT_THAT(Detect(kTorchrunAlone), IsOk());
  EXPECT_THAT(
      Detect(With(kSlurmVariables, kTorchrunAlone)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SLURM_PROCID is 5 and SLURM_NTASKS is 7 (srun)")));
}

TEST(SeveralLaunchersTest, TorchsVariablesSetByHandAreNotTorchrun) {
  const Variables by_hand = Without(SaysRank(Launcher::kTorchrun, 1, 2), "TORCHELASTIC_RUN_ID");
  EXPECT_THAT(Detect(by_hand), IsOk());
  EXPECT_THAT(Detect(With(SaysRank(Launcher::kSlurm, 1, 2), by_hand)), IsOk());
  EXPECT_THAT(Detect(With(SaysRank(Launcher::kSlurm, 2, 4), by_hand)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("contradict")));
}

TEST(SeveralLaunchersTest, AContradictionComesBeforeWhatIsMissing) {
  for (const Launcher other : kInOrder) {
    if (other == Launcher::kTorchrun) continue;
    for (const char* kept : {"WORLD_SIZE", "LOCAL_RANK"}) {
      const Variables alone = {{"RANK", "0"}, {kept, kTorchrunAlone.at(kept)}};
      EXPECT_THAT(Detect(With(SaysRank(other, 3, 4), alone)),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("two launchers contradict each other: RANK is 0"), HasSubstr(" is 3"))))
          << static_cast<int>(other);
    }
  }
  EXPECT_THAT(
      Detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("RANK is 0 and WORLD_SIZE is 1 (torchrun), but OMPI_COMM_WORLD_RANK is 3 and "
                         "OMPI_COMM_WORLD_SIZE is 4 (mpirun); unset ")));
}

TEST(SeveralLaunchersTest, AScriptMayGiveRanksTorchsNames) {
  const char* const more[] = {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  for (const Launcher other : kInOrder) {
    if (other == Launcher::kTorchrun) continue;
    for (unsigned given = 0; given < 16; ++given) {
      SCOPED_TRACE(absl::StrCat("launcher ", static_cast<int>(other), ", given ", given));
      Variables by_script = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
      for (size_t i = 0; i < std::size(more); ++i) {
        if ((given >> i & 1u) != 0) by_script[more[i]] = SaysRank(Launcher::kTorchrun, 1, 4).at(more[i]);
      }
      const Variables both = With(SaysRank(other, 1, 4), by_script);
      REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, Detect(both));
      EXPECT_EQ(launch.launcher, given == 15 ? Launcher::kTorchrun : other);
      EXPECT_EQ(launch.rank, 1);
      EXPECT_EQ(launch.size, 4);
      EXPECT_EQ(launch.local_rank, 1);
      EXPECT_EQ(launch.local_size, 4);
      // torchrun itself sets all of its variables.
      if (given != 15) {
        EXPECT_THAT(Detect(With(both, {{"TORCHELASTIC_RUN_ID", "j"}})),
                    StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not set")));
      }
      if ((given | 1u) != 15) {  // with which torch's variables would be complete, and decide
        EXPECT_THAT(Detect(With(both, {{"LOCAL_RANK", "2"}})),
                    StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LOCAL_RANK is \"2\"")));
      }
      EXPECT_THAT(Detect(With(both, {{"RANK", "2"}})),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("contradict")));
    }
  }
  // Neither is enough.
  EXPECT_THAT(
      Detect({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LOCAL_WORLD_SIZE is not set")));
  // mpirun may have been started by srun; the script's names change nothing.
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch,
                               Detect(With(With(SaysRank(Launcher::kOpenMpi, 1, 4), SaysRank(Launcher::kSlurm, 0, 2)),
                                           {{"RANK", "1"}, {"WORLD_SIZE", "4"}})));
  EXPECT_EQ(launch.launcher, Launcher::kOpenMpi);
}

TEST(SeveralLaunchersTest, AClaimNeedsNoSize) {
  EXPECT_THAT(Detect(With(kTorchrunAlone, {{"OMPI_COMM_WORLD_RANK", "3"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("but OMPI_COMM_WORLD_RANK is 3 (mpirun)")));
  EXPECT_THAT(Detect(With(kTorchrunAlone, {{"OMPI_COMM_WORLD_RANK", "2147483647"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("OMPI_COMM_WORLD_RANK is 2147483647")));
  // What is no number claims nothing.
  EXPECT_THAT(Detect(With(kTorchrunAlone, {{"OMPI_COMM_WORLD_RANK", "x"}, {"SLURM_PROCID", "3"}})), IsOk());
}

// ---- the header ----

// The comment of DetectLaunch in the header: for each launcher its variables, alternatives of one together.
class HeaderTest : public ::testing::Test {
 protected:
  using Groups = std::vector<std::vector<std::string>>;

  static std::string Comment() {
    std::ifstream file(REPRISE_LAUNCH_ENVIRONMENT_HEADER);
    std::string text, line;
    bool inside = false;
    while (std::getline(file, line)) {
      if (absl::StartsWith(line, "// Reads the environment.")) inside = true;
      if (inside && !absl::StartsWith(line, "//")) break;
      if (inside) absl::StrAppend(&text, line.substr(2), "\n");
    }
    return text;
  }
  static bool IsVariable(absl::string_view word) {
    const bool upper = std::all_of(word.begin(), word.end(), [](char c) {
      return absl::ascii_isupper(static_cast<unsigned char>(c)) || absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
             c == '_';
    });
    return word == "RANK" || word == "TMPDIR" || word == "OMPI_MCA_ess_base_jobid" ||
           (upper && absl::StrContains(word, "_"));
  }
  static std::vector<std::string> VariablesIn(absl::string_view text) {
    std::vector<std::string> names;
    for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" ,.;:()=\n"), absl::SkipEmpty())) {
      if (IsVariable(word)) names.emplace_back(word);
    }
    return names;
  }
  // The list after the launcher's name, up to the sentence that follows.
  static Groups ListOf(const std::string& launcher) {
    const std::string comment = Comment();
    const size_t begin = comment.find(absl::StrCat("   ", launcher, " "));
    EXPECT_NE(begin, std::string::npos) << launcher;
    const size_t name = begin + 3 + launcher.size();
    const size_t end = std::min({comment.find("\n   k", name), comment.find(". ", name), comment.find(".\n", name)});
    Groups groups;
    for (const absl::string_view group : absl::StrSplit(comment.substr(name, end - name), ',')) {
      groups.push_back(VariablesIn(group));
      EXPECT_FALSE(groups.back().empty()) << launcher << ": " << group;
    }
    return groups;
  }
};

struct Listed {
  const char* name;
  Launcher launcher;
  Variables values;  // of a rank of several hosts
};

TEST_F(HeaderTest, ItsListsAreEnough) {
  const Variables slurm = {{"SLURM_STEP_ID", "3"},
                           {"SLURM_STEPID", "3"},
                           {"SLURM_PROCID", "5"},
                           {"SLURM_STEP_NUM_TASKS", "8"},
                           {"SLURM_NTASKS", "8"},
                           {"SLURM_NPROCS", "8"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_STEP_NUM_NODES", "2"},
                           {"SLURM_NNODES", "2"},
                           {"SLURM_JOB_NUM_NODES", "2"},
                           {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                           {"SLURM_TASKS_PER_NODE", "4(x2)"},
                           {"SLURM_NTASKS_PER_NODE", "4"},
                           {"SLURM_STEP_NODELIST", "node[1-2]"},
                           {"SLURM_JOB_NODELIST", "node[1-2]"},
                           {"SLURM_NODELIST", "node[1-2]"},
                           {"SLURM_JOB_ID", "9"},
                           {"SLURM_JOBID", "9"}};
  const Variables pmi = {{"PMI_RANK", "5"},        {"PMI_SIZE", "8"},       {"MPI_LOCALRANKID", "1"},
                         {"MPI_LOCALNRANKS", "4"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "4"},
                         {"PMI_JOBID", "j"}};
  const Variables open_mpi = {
      {"OMPI_COMM_WORLD_RANK", "5"},       {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_NAMESPACE", "j"},       {"OMPI_MCA_ess_base_jobid", "j"}};
  const Variables mvapich = {{"MV2_COMM_WORLD_RANK", "5"},
                             {"MV2_COMM_WORLD_SIZE", "8"},
                             {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                             {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}};
  const Variables pals = {{"PALS_RANKID", "5"},     {"PMI_SIZE", "8"},       {"PALS_LOCAL_RANKID", "1"},
                          {"PALS_LOCAL_SIZE", "4"}, {"PMI_LOCAL_SIZE", "4"}, {"PALS_APID", "j"}};
  const Variables by_hand = {
      {"REPRISE_RANK", "5"}, {"REPRISE_WORLD_SIZE", "8"}, {"REPRISE_LOCAL_RANK", "1"}, {"REPRISE_LOCAL_SIZE", "4"}};
  const Listed launchers[] = {{"kReprise", Launcher::kReprise, by_hand},
                              {"kTorchrun", Launcher::kTorchrun, kTorchrunVariables},
                              {"kJsrun", Launcher::kJsrun, kJsrunVariables},
                              {"kOpenMpi", Launcher::kOpenMpi, open_mpi},
                              {"kMvapich", Launcher::kMvapich, mvapich},
                              {"kPmi", Launcher::kPmi, pmi},
                              {"kFlux", Launcher::kFlux, kFluxVariables},
                              {"kSlurm", Launcher::kSlurm, slurm},
                              {"kPals", Launcher::kPals, pals}};
  for (const Listed& listed : launchers) {
    const Groups groups = ListOf(listed.name);
    ASSERT_GE(groups.size(), 4u) << listed.name;
    // Each alternative by itself, the others of its group missing; it alone must be enough.
    for (const std::vector<std::string>& varied : groups) {
      for (const std::string& chosen : varied) {
        Variables variables = {{"REPRISE_HOST", "node1"}, {"REPRISE_PORT", "4000"}};
        for (const std::vector<std::string>& group : groups) {
          const std::string& name = &group == &varied ? chosen : group.front();
          ASSERT_TRUE(listed.values.count(name)) << listed.name << ": the test knows no value of " << name;
          variables[name] = listed.values.at(name);
        }
        // Both of Hydra or both of Cray.
        if (chosen == "PMI_LOCAL_RANK")
          variables = With(Without(variables, "MPI_LOCALNRANKS"), {{"PMI_LOCAL_SIZE", "4"}});
        if (chosen == "PMI_LOCAL_SIZE" && listed.launcher == Launcher::kPmi) {
          variables = With(Without(variables, "MPI_LOCALRANKID"), {{"PMI_LOCAL_RANK", "1"}});
        }
        REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, Detect(variables));
        EXPECT_EQ(launch.launcher, listed.launcher) << listed.name << " with " << chosen;
        EXPECT_EQ(launch.rank, 5) << listed.name << " with " << chosen;
        EXPECT_EQ(launch.size, 8) << listed.name << " with " << chosen;
        EXPECT_EQ(launch.local_rank, 1) << listed.name << " with " << chosen;
        EXPECT_EQ(launch.local_size, 4) << listed.name << " with " << chosen;
        EXPECT_THAT(Validate(launch), IsOk()) << listed.name << " with " << chosen;
      }
    }
  }
}

TEST_F(HeaderTest, EveryVariableThatIsReadIsInIt) {
  for (const Launcher launcher : kInOrder) Detect(SaysRank(launcher, 1, 2)).IgnoreError();
  for (const Variables& variables :
       {Variables(), kTorchrunVariables, kOpenMpiVariables, kPmiVariables, kSlurmVariables, kMvapichVariables,
        kJsrunVariables, kFluxVariables, kPalsVariables, kRepriseVariables}) {
    Detect(variables).IgnoreError();
    Detect(With(variables, {{"MASTER_ADDR", "x"}, {"REPRISE_PORT", "1"}})).IgnoreError();
  }
  const std::vector<std::string> listed = VariablesIn(Comment());
  const std::set<std::string> names(listed.begin(), listed.end());
  for (const std::string& name : LookedUp()) EXPECT_TRUE(names.count(name)) << name << " is read but not listed";
}

}  // namespace
}  // namespace reprise::testing
