// Plans as text files: a change of planning shows as a change of text. Each file starts with the command that prints
// the rest of it, from the project's root; --update_golden writes the files anew.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/run_executable.h"

namespace reprise {
namespace {

bool update = false;

constexpr char kCommand[] = "$ reprise_plan ";

std::vector<std::filesystem::path> Files() {
  std::vector<std::filesystem::path> files;
  std::error_code no_folder;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden", no_folder)) {
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt")
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class GoldenTest : public ::testing::TestWithParam<std::filesystem::path> {};

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, ::testing::ValuesIn(Files()),
                         [](const auto& info) { return info.param.stem().string(); });

TEST(GoldenFilesTest, AreFoundFromTheProjectsRoot) { EXPECT_GE(Files().size(), 6u); }

TEST_P(GoldenTest, PlanIsAsWritten) {
  std::ifstream file(GetParam());
  std::string command;
  std::getline(file, command);
  const std::string expected((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::string_view flags = command;
  ASSERT_TRUE(absl::ConsumePrefix(&flags, kCommand)) << "the first line is \"" << command << "\"";
  const testing::FinishedRun run = testing::RunExecutable(REPRISE_PLAN, std::string(flags) + " --format=text 2>&1");
  ASSERT_EQ(run.exit_code, 0) << run.output;
  if (update) {
    std::ofstream(GetParam()) << command << "\n" << run.output;
    return;
  }
  EXPECT_EQ(run.output, expected) << "if the change is meant: golden_test --update_golden";
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) reprise::update = reprise::update || absl::string_view(argv[i]) == "--update_golden";
  return RUN_ALL_TESTS();
}
