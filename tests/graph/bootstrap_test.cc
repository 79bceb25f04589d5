#include "graph/comm/bootstrap.h"

#include <random>

#include "tests/graph/bootstrap_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using internal::Bootstrap;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Long enough for a loaded machine; no test waits for it.
constexpr absl::Duration kPatient = absl::Seconds(60);

// What `rank` gives to exchange `round`: anything from nothing to a few KiB, and now and then 4 MiB.
std::string Part(int rank, int round) {
  std::mt19937 random(static_cast<uint32_t>(1000 * round + rank));
  const size_t size = round % 50 == 49 ? size_t{4} << 20 : round % 7 == rank % 7 ? 0 : random() % 5000;
  std::string bytes(size, static_cast<char>('a' + rank));
  for (size_t i = 0; i < size; i += 97) bytes[i] = static_cast<char>(random());
  return bytes;
}

struct Shape {
  std::string name;
  int size = 1;
  Meeting meeting = Meeting::kByFile;
};

class BootstrapTest : public ::testing::TestWithParam<Shape> {};

TEST_P(BootstrapTest, EveryRankGetsWhatAllGive) {
  const int size = GetParam().size;
  const int rounds = size <= 4 ? 100 : 50;
  const TestJob job = {.meeting = GetParam().meeting, .size = size};
  InThreads(size, [&](int rank) {
    Connected bootstrap = Bootstrap::Connect(job.Rank(rank), kPatient);
    ASSERT_THAT(bootstrap, IsOk());
    EXPECT_EQ((*bootstrap)->rank(), rank);
    EXPECT_EQ((*bootstrap)->size(), size);
    for (int round = 0; round < rounds; ++round) {
      const absl::StatusOr<std::vector<std::string>> all = (*bootstrap)->Exchange("parts", Part(rank, round));
      ASSERT_THAT(all, IsOk());
      ASSERT_EQ(all->size(), static_cast<size_t>(size));
      for (int other = 0; other < size; ++other) {
        ASSERT_TRUE((*all)[other] == Part(other, round)) << "rank " << rank << " round " << round << " part " << other;
      }
    }
  });
  EXPECT_TRUE(std::filesystem::is_empty(job.directory.path()));
}

INSTANTIATE_TEST_SUITE_P(, BootstrapTest,
                         ::testing::Values(Shape{"1Rank", 1}, Shape{"2Ranks", 2}, Shape{"3Ranks", 3},
                                           Shape{"8Ranks", 8}, Shape{"2RanksByPort", 2, Meeting::kByPort},
                                           Shape{"5RanksByPort", 5, Meeting::kByPort},
                                           Shape{"3RanksByPortOfAnyHost", 3, Meeting::kByPortOfAnyHost},
                                           Shape{"2RanksByMemory", 2, Meeting::kByMemory},
                                           Shape{"8RanksByMemory", 8, Meeting::kByMemory},
                                           Shape{"2RanksByMemorySlowly", 2, Meeting::kByMemorySlowly},
                                           Shape{"5RanksByMemorySlowly", 5, Meeting::kByMemorySlowly}),
                         [](const ::testing::TestParamInfo<Shape>& info) { return info.param.name; });

TEST(BootstrapJobsTest, TwoJobsFromOnePortDoNotMeet) {
  for (const Meeting meeting : {Meeting::kByPort, Meeting::kByPortOfAnyHost}) {
    TestJob first = {.meeting = meeting, .size = 3, .name = "first"};
    TestJob second = {.meeting = meeting, .size = 3, .port = first.port, .name = "second"};
    InThreads(6, [&](int i) {
      const TestJob& job = i % 2 == 0 ? first : second;
      Connected bootstrap = Bootstrap::Connect(job.Rank(i / 2), kPatient);
      ASSERT_THAT(bootstrap, IsOk());
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, (*bootstrap)->Exchange("parts", job.name));
      EXPECT_THAT(all, ElementsAre(job.name, job.name, job.name));
    });
  }
}

TEST(BootstrapJobsTest, JobsOfOneDirectoryDoNotMeet) {
  const TestJob shared;
  InThreads(4, [&](int i) {
    LaunchEnvironment launch = shared.Rank(i / 2);
    launch.job = i % 2 == 0 ? "first" : "second";
    Connected bootstrap = Bootstrap::Connect(launch, kPatient);
    ASSERT_THAT(bootstrap, IsOk());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, (*bootstrap)->Exchange("parts", launch.job));
    EXPECT_THAT(all, ElementsAre(launch.job, launch.job));
  });
}

TEST(BootstrapJobsTest, AJobFollowsAnotherOnTheSamePortsAtOnce) {
  const TestJob job = {.meeting = Meeting::kByPort};
  for (int run = 0; run < 5; ++run) {
    for (const Connected& connected : ConnectAll(AllRanks(job), kPatient)) EXPECT_THAT(connected, IsOk());
  }
}

TEST(BootstrapJobsTest, RanksMeetByIpv6) {
  TestJob job = {.meeting = Meeting::kByPortOfAnyHost, .size = 3};
  std::vector<LaunchEnvironment> launches = AllRanks(job);
  for (LaunchEnvironment& launch : launches) launch.host = "::1";
  REPRISE_ASSERT_OK_AND_ASSIGN(const internal::FileDescriptor any, Listen(internal::Reach::kEveryHost, 0));
  REPRISE_ASSERT_OK_AND_ASSIGN(internal::Address address, LocalAddress(any));
  if (address.bytes.ss_family != AF_INET6) GTEST_SKIP() << "no IPv6 here";
  for (const Connected& connected : ConnectAll(launches, kPatient)) EXPECT_THAT(connected, IsOk());
}

TEST(BootstrapJobsTest, AHostWithoutAddressIsAskedForUntilTheDeadline) {
  TestJob job = {.meeting = Meeting::kByPortOfAnyHost};
  LaunchEnvironment launch = job.Rank(1);
  launch.host = "no-such-host.invalid";
  EXPECT_THAT(Bootstrap::Connect(launch, absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("no address of host")));
}

TEST(BootstrapJobsTest, ALaunchThatMakesNoSenseIsRefused) {
  EXPECT_THAT(Bootstrap::Connect({.rank = 2, .size = 2, .local_size = 2}, kPatient),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2 of 2")));
}

TEST(BootstrapJobsTest, ADirectoryThatCannotBeWrittenIsNamed) {
  LaunchEnvironment launch = TestJob().Rank(0);
  launch.directory = "/proc";
  EXPECT_THAT(Bootstrap::Connect(launch, kPatient), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("TMPDIR")));
}

TEST(BootstrapJobsTest, OneRankNeedsNoNetwork) {
  REPRISE_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Bootstrap> bootstrap,
                               Bootstrap::Connect({.directory = "/nowhere"}, absl::ZeroDuration()));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, bootstrap->Exchange("parts", "x"));
  EXPECT_THAT(all, ElementsAre("x"));
}

}  // namespace
}  // namespace reprise::testing
