#include "reprise/graph/measure.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/graph/host_world.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::IsOk;
using ::reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CostFileOnDiskTest : public ::testing::Test {
 protected:
  CostFileOnDiskTest() { std::filesystem::create_directory(folder_); }
  ~CostFileOnDiskTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "/measure-", getpid());
  const std::string path_ = absl::StrCat(folder_, "/costs.json");
};

TEST(MeasureTest, HostRanksAreRefusedByName) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = 2}));
  bool told = false;
  const auto run = [&] {
    told = true;
    return absl::OkStatus();
  };
  EXPECT_THAT(Measure(*world, {.run = run, .progress = [&](absl::string_view) { told = true; }}),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("host ranks cannot be measured"), HasSubstr("measure in a CUDA world"))));
  EXPECT_FALSE(told);
}

TEST_F(CostFileOnDiskTest, IsReplacedAsAWholeAndNothingElseStays) {
  CostFile file;
  file.device = {{"gpu", "some"}};
  file.gemms = {{"key", std::string(60'000, 'x')}};
  ASSERT_THAT(WriteCostFile(path_, file), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile read, ReadCostFile(path_));
  EXPECT_EQ(read, file);
  // One that is open keeps what it was.
  std::ifstream before(path_);
  ASSERT_THAT(WriteCostFile(path_, CostFile()), IsOk());
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(before), {}), ToJson(file));
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile replaced, ReadCostFile(path_));
  EXPECT_EQ(replaced, CostFile());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(CostFileOnDiskTest, WhatCannotBeWrittenIsNamedAndLeavesNothing) {
  EXPECT_THAT(WriteCostFile("/nowhere/costs.json", CostFile()),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("cost file /nowhere/costs.json cannot be written (No such file or directory)")));
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_THAT(WriteCostFile(path_, CostFile()),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr(absl::StrCat("cost file ", path_, " cannot be written (Is a directory)"))));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(CostFileOnDiskTest, WhatCannotBeReadIsNamed) {
  EXPECT_THAT(ReadCostFile(path_),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr(absl::StrCat("cost file ", path_, " cannot be read (No such file or directory)"))));
  EXPECT_THAT(ReadCostFile(folder_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot be read (Is a directory)")));
  std::ofstream(path_) << R"({"version": 7})";
  EXPECT_THAT(ReadCostFile(path_), StatusIs(absl::StatusCode::kInvalidArgument,
                                            AllOf(HasSubstr(absl::StrCat("cost file ", path_, ": version: is \"7\"")),
                                                  HasSubstr("make it anew by step_bench --measure"))));
  std::ofstream(path_) << ToJson(CostFile()) << std::string(16 << 20, ' ');
  EXPECT_THAT(ReadCostFile(path_), StatusIs(absl::StatusCode::kInvalidArgument,
                                            AllOf(HasSubstr(path_), HasSubstr("longer than 16777216 bytes"))));
}

}  // namespace
}  // namespace reprise
