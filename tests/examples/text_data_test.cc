// Whatever --data names, the program gets a text or a status.
#include "examples/train_lm/text_data.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "examples/common/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace reprise::examples {
namespace {

using reprise::testing::IsOk;
using reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class TextDataTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string File(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("reprise_text_data_test." + std::to_string(getpid()));
};

TEST_F(TextDataTest, ReadsWhatIsThere) {
  const std::string text(3 << 20, 'x');
  EXPECT_EQ(*ReadFile(File("large", text), 3 << 20), text);
  EXPECT_EQ(*ReadFile(File("empty", ""), 0), "");
  const auto data = TextData::Load(File("text", std::string(900, 'a') + std::string(100, 'b')), /*context=*/8);
  ASSERT_THAT(data, IsOk());
  EXPECT_EQ(data->validation(), std::string(100, 'b'));
}

TEST_F(TextDataTest, RefusesWhatIsNoText) {
  const auto expect = [](const std::string& path, absl::StatusCode code, const std::string& why) {
    EXPECT_THAT(TextData::Load(path, /*context=*/8),
                StatusIs(code, AllOf(HasSubstr(path + " (" + why), HasSubstr("pass --data=FILE"))));
  };
  expect(folder_, kInvalid, "Is a directory");
  expect(folder_ / "none", absl::StatusCode::kNotFound, "No such file");
  expect("/dev/zero", kInvalid, "not a regular file");
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect(fifo, kInvalid, "not a regular file");
  const std::string huge = File("huge", "");
  std::filesystem::resize_file(huge, uintmax_t{1} << 40);  // a hole
  expect(huge, kInvalid, "more than 1073741824 bytes");
  const std::string locked = File("locked", "text");
  ASSERT_EQ(chmod(locked.c_str(), 0), 0);
  if (geteuid() != 0) expect(locked, absl::StatusCode::kNotFound, "Permission denied");
}

TEST_F(TextDataTest, RefusesATextThatIsTooShort) {
  EXPECT_THAT(TextData::Load(File("empty", ""), 8), StatusIs(kInvalid, HasSubstr("has 0 bytes")));
  EXPECT_THAT(TextData::Load(File("short", std::string(89, 'x')), 8),
              StatusIs(kInvalid, HasSubstr("use a text of at least 90 bytes")));
}

TEST_F(TextDataTest, RanksShareOneGlobalBatch) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i * i % 23);
  const auto data = TextData::Load(File("text", text), /*context=*/8);
  ASSERT_THAT(data, IsOk());
  const auto global = [&](int ranks, int64_t step, int microbatch) {
    Batch all;
    for (int rank = 0; rank < ranks; ++rank) {
      const Batch batch = data->TrainBatch(16 / ranks, /*seed=*/3, step, microbatch, rank);
      EXPECT_EQ(batch.tokens.size(), static_cast<size_t>(16 / ranks * 8));
      all.tokens.insert(all.tokens.end(), batch.tokens.begin(), batch.tokens.end());
      all.labels.insert(all.labels.end(), batch.labels.begin(), batch.labels.end());
    }
    return std::pair(all.tokens, all.labels);
  };
  for (const int ranks : {2, 4, 8, 16}) EXPECT_EQ(global(ranks, 5, 1), global(1, 5, 1)) << ranks;
  EXPECT_NE(global(2, 5, 0), global(2, 5, 1));
  EXPECT_NE(global(2, 5, 1), global(2, 6, 1));
}

}  // namespace
}  // namespace reprise::examples
