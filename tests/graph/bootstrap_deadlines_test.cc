// Meeting keeps to its deadline whoever is slow, and those that come late hear what happened.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "absl/time/clock.h"
#include "graph/comm/background.h"
#include "graph/comm/bootstrap.h"
#include "graph/comm/rendezvous_file.h"
#include "tests/graph/bootstrap_testing.h"
#include "tests/testing/status_matchers.h"

namespace {

constexpr char kStalledName[] = "stalled.invalid";
constexpr absl::Duration kStall = absl::Seconds(4);

}  // namespace

// In place of the system's, which it calls: a name whose server stalls.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** result) {
  if (std::strcmp(node, kStalledName) == 0) {
    absl::SleepFor(kStall);
    return EAI_AGAIN;
  }
  static const auto system = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return system(node, service, hints, result);
}

namespace reprise::testing {
namespace {

using internal::Bootstrap;
using internal::FileDescriptor;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatient = absl::Seconds(60);

// Ports held by strangers of every slow kind, the first of a job and those after it.
class SlowStrangers {
 public:
  explicit SlowStrangers(int first_port) {
    for (int i = 0; i < kCount; ++i) {
      absl::StatusOr<FileDescriptor> listener = Listen(internal::Reach::kThisHost, first_port + i);
      if (!listener.ok()) continue;  // somebody else's, as slow as it likes
      if (i % 3 == 0) DropConnections(*listener, first_port + i);
      listeners_.push_back(*std::move(listener));
      if (i % 3 == 1) talking_.push_back(listeners_.size() - 1);  // the rest accept and say nothing
    }
    talker_ = std::thread([this] { Talk(); });
  }
  ~SlowStrangers() {
    done_ = true;
    talker_.join();
  }

  static constexpr int kCount = 12;

 private:
  // A queue that is full: the system answers no further connection.
  void DropConnections(const FileDescriptor& listener, int port) {
    listen(listener.get(), 0);
    for (int i = 0; i < 3; ++i) {
      absl::StatusOr<FileDescriptor> waiting = internal::BeginConnect(internal::Loopback(port)[0]);
      if (waiting.ok()) connections_.push_back(*std::move(waiting));
    }
  }
  // One byte of a greeting and then another.
  void Talk() {
    const auto greeting = internal::MakeGreeting(internal::kRank0Magic, 0, {});
    std::vector<std::pair<FileDescriptor, size_t>> guests;
    for (int round = 0; !done_; ++round) {
      for (const size_t talking : talking_) {
        internal::Address address;
        absl::StatusOr<FileDescriptor> guest = internal::Accept(listeners_[talking], address);
        if (guest.ok()) guests.emplace_back(*std::move(guest), 0);
      }
      for (auto& [guest, sent] : guests) {
        if (round % 100 != 0 || sent >= sizeof(greeting)) continue;
        internal::SendNow(guest, {reinterpret_cast<const char*>(&greeting) + sent++, 1});
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
  }

  std::vector<FileDescriptor> listeners_, connections_;
  std::vector<size_t> talking_;
  std::atomic<bool> done_ = false;
  std::thread talker_;
};

class DeadlinesTest : public ::testing::Test {
 protected:
  // Before each of the others has its turn, rank 0 took a second for each port, and its fellows half a one.
  const TestJob job_ = {.meeting = Meeting::kByPort, .size = 3};
  const absl::Time begin_ = absl::Now();
  absl::Duration elapsed() const { return absl::Now() - begin_; }
};

TEST_F(DeadlinesTest, RanksMeetPastSlowStrangersAtOnce) {
  const SlowStrangers strangers(job_.port);
  EXPECT_THAT(ConnectAll(AllRanks(job_), absl::Seconds(8)), Each(IsOk()));
}

TEST_F(DeadlinesTest, SlowStrangersDoNotDelayTheVerdict) {
  const SlowStrangers strangers(job_.port);
  EXPECT_THAT(ConnectAll({job_.Rank(0), job_.Rank(2)}, absl::Seconds(1)),
              Each(StatusIs(absl::StatusCode::kDeadlineExceeded,
                            AllOf(HasSubstr("rank 1 of 3 did not connect"), HasSubstr("within 1s")))));
  EXPECT_LT(elapsed(), absl::Seconds(8)) << "1 s, and 1 s for latecomers";
}

TEST_F(DeadlinesTest, WithoutRank0SlowStrangersAreNamedInTime) {
  const SlowStrangers strangers(job_.port);
  EXPECT_THAT(Bootstrap::Connect(job_.Rank(1), absl::Milliseconds(500)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("within 500ms (127.0.0.1:"), HasSubstr(" did not answer)"))));
}

TEST_F(DeadlinesTest, ANameServerThatStallsDoesNotHoldUpTheDeadline) {
  TestJob job = {.meeting = Meeting::kByPortOfAnyHost};
  LaunchEnvironment launch = job.Rank(1);
  launch.host = kStalledName;
  EXPECT_THAT(Bootstrap::Connect(launch, absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("did not find rank 0 at stalled.invalid"), HasSubstr("address takes long"))));
  EXPECT_LT(elapsed(), kStall);
}

TEST_F(DeadlinesTest, ACallInTheBackgroundIsLeftAlone) {
  internal::Background<int> slow([] {
    absl::SleepFor(absl::Milliseconds(300));
    return 7;
  });
  EXPECT_EQ(slow.Await(internal::Deadline(absl::Milliseconds(1))), std::nullopt);
  EXPECT_EQ(slow.Await(internal::Deadline(absl::InfiniteDuration())), 7);
}

// ---- latecomers ----

class LatecomersTest : public ::testing::TestWithParam<Meeting> {
 protected:
  TestJob Job(int size) const { return {.meeting = GetParam(), .size = size}; }
};
INSTANTIATE_TEST_SUITE_P(, LatecomersTest, ::testing::Values(Meeting::kByFile, Meeting::kByPort),
                         [](const ::testing::TestParamInfo<Meeting>& info) {
                           return info.param == Meeting::kByFile ? "ByFile" : "ByPort";
                         });

TEST_P(LatecomersTest, HearWhoWasMissing) {
  const TestJob job = Job(4);
  constexpr absl::Duration kDeadline = absl::Seconds(1);
  const auto verdict = StatusIs(absl::StatusCode::kDeadlineExceeded,
                                AllOf(HasSubstr("ranks 2, 3 of 4 did not connect to rank 0"), HasSubstr("within 1s")));
  Connected rank0;
  std::thread thread([&] { rank0 = Bootstrap::Connect(job.Rank(0), kDeadline); });
  EXPECT_THAT(Bootstrap::Connect(job.Rank(1), kDeadline), verdict);
  EXPECT_THAT(ConnectAll({job.Rank(2), job.Rank(3)}, kDeadline), Each(verdict));
  thread.join();
  EXPECT_THAT(rank0, verdict);
  EXPECT_TRUE(std::filesystem::is_empty(job.directory.path()));
}

TEST_P(LatecomersTest, HearWhatRanksContradictedEachOtherIn) {
  const TestJob job = Job(3);
  LaunchEnvironment wrong = job.Rank(1);
  wrong.size = wrong.local_size = 5;
  const auto verdict = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("world size 5, rank 0 has 3"));
  Connected rank0;
  std::thread thread([&] { rank0 = Bootstrap::Connect(job.Rank(0), kPatient); });
  EXPECT_THAT(Bootstrap::Connect(wrong, kPatient), verdict);
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_THAT(Bootstrap::Connect(job.Rank(2), absl::Seconds(5)), verdict);
  thread.join();
  EXPECT_THAT(rank0, verdict);
}

// ---- what may lie where the file should ----

TEST(RendezvousPathTest, WhateverLiesThereHoldsNobodyUp) {
  for (const std::string what : {"pipe", "link", "dead link", "large file", "words"}) {
    const TestJob job;
    const std::string path = internal::RendezvousPath(job.Rank(0));
    if (what == "pipe") {
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    } else if (what == "link") {
      std::filesystem::create_symlink("/dev/zero", path);
    } else if (what == "dead link") {
      std::filesystem::create_symlink(path, path);
    } else {
      std::ofstream(path) << (what == "words" ? "reprise-rendezvous 0 zz -1" : "");
      std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
      if (what == "large file") std::filesystem::resize_file(path, uint64_t{1} << 40);
    }
    Connected rank1;
    std::thread early([&] { rank1 = Bootstrap::Connect(job.Rank(1), kPatient); });
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_THAT(Bootstrap::Connect(job.Rank(0), kPatient), IsOk()) << what;
    early.join();
    EXPECT_THAT(rank1, IsOk()) << what;
  }
}

TEST(RendezvousPathTest, ADirectoryThereIsNamed) {
  const TestJob job;
  const std::string path = internal::RendezvousPath(job.Rank(0));
  std::filesystem::create_directories(path + "/full");
  EXPECT_THAT(Bootstrap::Connect(job.Rank(0), kPatient),
              StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr(path), HasSubstr("directory"))));
}

}  // namespace
}  // namespace reprise::testing
