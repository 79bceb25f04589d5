// A word that processes share: what one stores the others see, and no name stays behind.
#include "graph/comm/shared_word.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using ::testing::HasSubstr;

TEST(SharedWordTest, AnotherProcessSeesTheFirstValue) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SharedWord> mine, SharedWord::Create());
  EXPECT_EQ(mine->value(), 0u);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Its own mapping, not the one that it inherited.
    const absl::StatusOr<std::unique_ptr<SharedWord>> word = SharedWord::Open(mine->name());
    if (!word.ok()) _exit(2);
    (*word)->Set(7);
    (*word)->Set(8);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(mine->value(), 7u) << "the first stays";
  mine->Set(9);
  EXPECT_EQ(mine->value(), 7u);
}

TEST(SharedWordTest, ItsNameIsGoneOnceItIsRemovedAndItsUsersKeepIt) {
  REPRISE_ASSERT_OK_AND_ASSIGN(std::unique_ptr<SharedWord> creator, SharedWord::Create());
  const std::string name = creator->name();
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SharedWord> user, SharedWord::Open(name));
  creator->RemoveName();
  EXPECT_THAT(SharedWord::Open(name),
              testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("opening the shared memory " + name)));
  user->Set(3);
  EXPECT_EQ(creator->value(), 3u);
  creator.reset();
  EXPECT_EQ(user->value(), 3u);
}

TEST(SharedWordTest, ACreatorThatGoesTakesItsNameAlong) {
  std::string name;
  {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SharedWord> word, SharedWord::Create());
    name = word->name();
    // One who only opened it does not.
    EXPECT_THAT(SharedWord::Open(name), testing::IsOk());
    EXPECT_THAT(SharedWord::Open(name), testing::IsOk());
  }
  EXPECT_THAT(SharedWord::Open(name), testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr(name)));
}

TEST(SharedWordTest, WordsAreApart) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SharedWord> a, SharedWord::Create());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SharedWord> b, SharedWord::Create());
  a->Set(1);
  EXPECT_EQ(b->value(), 0u);
}

}  // namespace
}  // namespace reprise::internal
