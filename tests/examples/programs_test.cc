// Every program as its users run it: whatever its flags say and wherever its output goes, it ends by itself, says in
// one line what is wrong, and does not claim success where it has none.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/run_executable.h"
#include "tests/testing/sanitizers.h"

namespace reprise {
namespace {

using ::testing::AnyOf;
using testing::FinishedRun;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Program {
  std::string name, path;
  std::string flags;                // of a run that takes a tenth of a second
  std::vector<std::string> passed;  // flags that extreme values would be legal for, or take long
};

std::string TextPath() { return absl::StrCat(::testing::TempDir(), "/programs_test_", getpid(), ".txt"); }

std::vector<Program> Programs() {
  std::ofstream text(TextPath());
  for (int i = 0; i < 100; ++i) text << "In the beginning God created the heaven and the earth. ";
  return {
      {"train_lm",
       REPRISE_TRAIN_LM,
       absl::StrCat("--data='", TextPath(),
                    "' --device=host --ranks=1 --steps=1 --microbatches=1 --depth=1 --width=8 --heads=2 --context=4 "
                    "--batch=2 "),
       {"data", "costs", "steps", "lr"}},
      {"reprise_plan", REPRISE_PLAN, "--stack=2 --param_shape=64x64 --tokens=8 ", {"model", "costs"}},
#ifdef REPRISE_STEP_BENCH
      {"step_bench",
       REPRISE_STEP_BENCH,
       "--device=host --ranks=1 --workloads=tiny --modes=graph --batches=1 --seconds=0.001 ",
       {"json", "timeline", "costs"}},
#endif
  };
}

// The standard error of a run with at most 4 GiB of addresses and a minute.
FinishedRun Errors(const Program& program, const std::string& arguments) {
#ifdef REPRISE_SANITIZED
  const char* const limit = "";  // shadow memory takes terabytes of addresses
#else
  const char* const limit = "ulimit -v 4194304; ";
#endif
  return testing::RunExecutable("/bin/sh", absl::StrCat("-c \"", limit, "exec timeout 60 '", program.path, "' ",
                                                        program.flags, arguments, "\" 2>&1 >/dev/null"));
}

std::string Output(const Program& program, const std::string& arguments) {
  return testing::RunExecutable(program.path, arguments).output;
}

class ProgramsTest : public ::testing::Test {
 protected:
  ~ProgramsTest() override { std::remove(TextPath().c_str()); }
  const std::vector<Program> programs_ = Programs();
};

std::vector<std::string> FlagsOf(const Program& program) {
  const std::string help = Output(program, "--help");
  const std::regex line("\n  --(\\w+)");
  std::vector<std::string> flags;
  for (std::sregex_iterator it(help.begin(), help.end(), line), end; it != end; ++it) flags.push_back((*it)[1]);
  return flags;
}

TEST_F(ProgramsTest, EveryValueOfEveryFlagIsTakenOrRefusedInOneLine) {
  const char* const values[] = {
      "0",     "-1",  "1",   "2147483647", "2147483648", "-2147483649", "9223372036854775807",  "9223372036854775808",
      "1e400", "nan", "inf", "",           "text",       "1x1",         "2147483647x2147483647"};
  for (const Program& program : programs_) {
    const std::vector<std::string> flags = FlagsOf(program);
    EXPECT_GT(flags.size(), 10u) << program.name;
    for (const std::string& flag : flags) {
      if (std::count(program.passed.begin(), program.passed.end(), flag) > 0) continue;
      for (const char* value : values) {
        const FinishedRun run = Errors(program, absl::StrCat("--", flag, "='", value, "'"));
        const std::string what = absl::StrCat(program.name, " --", flag, "=", value, ": ", run.output);
        ASSERT_THAT(run.exit_code, AnyOf(0, 2)) << what;
        if (run.exit_code == 0) continue;
        EXPECT_THAT(run.output, StartsWith(program.name + ": ")) << what;
        EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << what;
      }
    }
  }
}

TEST_F(ProgramsTest, AValueThatIsNoneIsRefusedOnceWithWhatTheFlagTakes) {
  struct Case {
    size_t program;  // of programs_
    const char* flag;
    const char* value;
    const char* takes;
  };
  const char* const int32 = "it takes whole numbers from -2147483648 to 2147483647";
  const char* const int64 = "it takes whole numbers from -9223372036854775808 to 9223372036854775807";
  for (const Case& c : {
           Case{0, "ranks", "x", int32},
           Case{0, "depth", "99999999999", int32},
           Case{0, "lr", "much", "it takes a number"},
           Case{0, "seed", "-1", "it takes whole numbers from 0 to 18446744073709551615"},
           Case{0, "check", "maybe", "it takes true or false"},
           Case{0, "device", "gpu", "must be auto, host or cuda"},
           Case{1, "ranks", "2.5", int32},
           Case{1, "stack", "two", int32},
           Case{1, "tokens", "8k", int64},
           Case{1, "verify", "maybe", "it takes true or false"},
#ifdef REPRISE_STEP_BENCH
           Case{2, "device", "x", "must be auto, host or cuda"},
           Case{2, "batches", "ten", int32},
           Case{2, "seconds", "1s", "it takes a number"},
#endif
       }) {
    const Program& program = programs_[c.program];
    const FinishedRun run = Errors(program, absl::StrCat("--", c.flag, "=", c.value));
    EXPECT_EQ(run.exit_code, 2) << c.flag;
    EXPECT_EQ(run.output, absl::StrCat(program.name, ": --", c.flag, "=", c.value, " is not a value of that flag: ",
                                       c.takes, "; --help lists the flags and their values\n"));
  }
}

TEST_F(ProgramsTest, WhatCannotBeIsRefusedBeforeItTakesMemoryOrTime) {
  struct Case {
    size_t program;  // of programs_
    const char* flags;
    const char* message;
  };
  for (const Case& c : {
           Case{0, "--depth=2147483647", "depth is 2147483647 but must be at most 64000"},
           Case{0, "--context=2147483646", "use a text of at least"},
           Case{0, "--width=2147483646 --batch=2147483647 --context=2147483647", "takes more than 2^61 bytes"},
           Case{0, "--width=2147483646", "is too large"},
           Case{0, "--microbatches=1048577", "--microbatches is 1048577 but must be from 1 to 1048576"},
           Case{0, "--check --master_dtype=bf16", "--check follows masters of f32"},
           Case{0, "--device=host --costs=x", "--costs is for devices"},
           Case{0, "--steps=0", "--steps is 0 but must be from 1 to 2147483647"},
           Case{0, "--ranks=2147483647", "2147483647"},
           Case{1, "--stack=2147483647", "stack of 2147483647 units"},
#ifdef REPRISE_STEP_BENCH
           Case{2, "--batches=2147483647", "--batches is 2147483647 but must be from 1 to 10000"},
           Case{2, "--workloads=tiny --microbatches_per_graph=2147483647", "lower microbatches_per_graph"},
           Case{2, "--seconds=1e300", "--seconds is 1e+300"},
           Case{2, "--measure=costs.json", "--measure needs the rates of compute alone and of communication"},
#endif
       }) {
    const FinishedRun run = Errors(programs_[c.program], c.flags);
    EXPECT_EQ(run.exit_code, 2) << c.flags;
    EXPECT_THAT(run.output, HasSubstr(c.message)) << c.flags;
  }
}

TEST_F(ProgramsTest, LostOutputFailsTheProgram) {
  for (const Program& program : programs_) {
    for (const std::string& asked : {program.flags, std::string("--help "), std::string("--version ")}) {
      for (const char* to : {">/dev/full", ">&-", "<&- >&-"}) {
        const FinishedRun run =
            testing::RunExecutable("/bin/sh", absl::StrCat("-c \"exec '", program.path, "' ", asked, to, "\" 2>&1"));
        const std::string what = absl::StrCat(program.name, " ", asked, to, ": ", run.output);
        EXPECT_EQ(run.exit_code, 1) << what;
        EXPECT_THAT(run.output, StartsWith(program.name + ": the standard output cannot be written (")) << what;
      }
    }
    EXPECT_EQ(Errors(program, "").exit_code, 0) << program.name;
  }
}

#ifdef REPRISE_STEP_BENCH
TEST_F(ProgramsTest, LostOutputFailsABenchmark) {
  const FinishedRun benchmark =
      testing::RunExecutable(REPRISE_PLAN_BENCH, "--benchmark_min_time=0.001 --benchmark_filter=/10$ 2>&1 >/dev/full");
  EXPECT_EQ(benchmark.exit_code, 1);
  EXPECT_THAT(benchmark.output, HasSubstr("plan_bench: the standard output cannot be written"));
}

TEST_F(ProgramsTest, LostFilesFailTheProgram) {
  const FinishedRun run = Errors(programs_[2], "--json=/dev/full");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.output, "step_bench: /dev/full cannot be written (No space left on device)\n");
}

// A file that is opened while the standard output is closed must not become the standard output.
TEST_F(ProgramsTest, NothingIsPrintedIntoAFile) {
  const std::string json = TextPath() + ".json";
  const FinishedRun run =
      testing::RunExecutable("/bin/sh", absl::StrCat("-c \"exec '", REPRISE_STEP_BENCH, "' ", programs_[2].flags,
                                                     "--json='", json, "' <&- >/dev/null 2>&-\""));
  EXPECT_EQ(run.exit_code, 0);
  std::ifstream file(json);
  EXPECT_EQ(file.get(), '[');
  std::remove(json.c_str());
}
#endif

TEST_F(ProgramsTest, HelpAndVersionAreNoFailures) {
  for (const Program& program : programs_) {
    for (const char* flag : {"--help", "--helpfull", "-help"}) {
      const FinishedRun run = testing::RunExecutable(program.path, flag);
      EXPECT_EQ(run.exit_code, 0) << program.name << " " << flag;
      EXPECT_THAT(run.output, StartsWith(program.name + ": ")) << flag;
      EXPECT_THAT(run.output, HasSubstr("\nExit codes: 0 done; 1 failed; 2 refused, because of a flag, ")) << flag;
    }
    const FinishedRun run = testing::RunExecutable(program.path, "--version");
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(run.output, absl::StrCat(program.name, " of reprise ", REPRISE_VERSION, "\n"));
    for (const char* mistake :
         {"--nope", "--nope=1", "--noranks", "--help --nope", "nope", "--nohelp", "-", "--", "--="}) {
      const FinishedRun refused = Errors(program, mistake);
      EXPECT_EQ(refused.exit_code, 2) << program.name << " " << mistake;
      EXPECT_THAT(refused.output, HasSubstr("; --help lists the flags")) << mistake;
    }
  }
}

}  // namespace
}  // namespace reprise
