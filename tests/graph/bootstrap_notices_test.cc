// What ranks tell each other between exchanges, while their devices work.
#include "graph/comm/bootstrap.h"
#include "tests/graph/bootstrap_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using internal::Bootstrap;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BootstrapNoticesTest : public ::testing::TestWithParam<Meeting> {
 protected:
  static constexpr int kSize = 3;

  void SetUp() override {
    job_.network = std::make_shared<MemoryNetwork>();
    connected_.clear();
    connected_ = ConnectAll(AllRanks(job_), absl::Seconds(60));
    for (const Connected& rank : connected_) ASSERT_THAT(rank, IsOk());
  }
  Bootstrap& rank(int r) { return **connected_[r]; }

  // The first error that a rank hears of, looking again and again; notices pass through rank 0 when it looks.
  absl::Status Hear(int r) {
    const internal::Deadline deadline(absl::Seconds(20));
    while (!deadline.passed()) {
      rank(0).CheckPeers().IgnoreError();
      const absl::Status status = rank(r).CheckPeers();
      if (!status.ok()) return status;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return absl::OkStatus();
  }
  // Every rank gives its number.
  void ExpectExchangeWorks() {
    std::vector<absl::StatusOr<std::vector<std::string>>> all(kSize);
    InThreads(kSize, [&](int r) { all[r] = rank(r).Exchange("parts", absl::StrCat(r)); });
    for (const auto& parts : all) {
      ASSERT_THAT(parts, IsOk());
      EXPECT_THAT(*parts, ElementsAre("0", "1", "2"));
    }
  }

  TestJob job_ = {.meeting = GetParam(), .size = kSize};
  std::vector<Connected> connected_;
};

INSTANTIATE_TEST_SUITE_P(, BootstrapNoticesTest, EveryConnection(), NameOf);

TEST_P(BootstrapNoticesTest, AFailureIsHeardAtOnceAndForgottenByTheNextExchange) {
  for (const int failing : {1, 0, 2}) {
    rank(failing).TellFailure(absl::AbortedError("only here"));
    for (int r = 0; r < kSize; ++r) {
      if (r == failing) continue;
      EXPECT_THAT(Hear(r), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    AllOf(HasSubstr(absl::StrCat("rank ", failing, " of 3 failed")),
                                          HasSubstr("ABORTED: only here"))))
          << "rank " << r << " of rank " << failing;
    }
    ExpectExchangeWorks();
    for (int r = 0; r < kSize; ++r) EXPECT_THAT(rank(r).CheckPeers(), IsOk()) << "rank " << r;
  }
}

TEST_P(BootstrapNoticesTest, ABrokenRankIsHeardOfForGood) {
  for (int r = 0; r < kSize; ++r) EXPECT_THAT(rank(r).broken(), IsOk()) << "rank " << r;
  rank(2).TellBroken(absl::UnavailableError("no answer"));
  const auto verdict =
      StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("rank 2 of 3"), HasSubstr("no answer")));
  for (int r = 0; r < kSize; ++r) EXPECT_THAT(Hear(r), verdict) << "rank " << r;
  ExpectExchangeWorks();
  for (int r = 0; r < kSize; ++r) EXPECT_THAT(rank(r).CheckPeers(), verdict) << "rank " << r;
  for (int r = 0; r < kSize; ++r) EXPECT_THAT(rank(r).broken(), verdict) << "rank " << r;
}

// Whether it broke before the others announce or after it announced itself, and whichever rank it is.
TEST_P(BootstrapNoticesTest, WhatIsAnnouncedDoesNotWaitForABrokenRank) {
  for (int broken = 0; broken < kSize; ++broken) {
    for (const bool announces : {false, true}) {
      SetUp();
      std::vector<absl::Status> statuses(kSize);
      InThreads(kSize, [&](int r) {
        if (r == broken && announces) rank(r).Announce("a step", absl::OkStatus(), {}).status().IgnoreError();
        if (r == broken) return rank(r).TellBroken(absl::UnavailableError("no answer"));
        const absl::StatusOr<int64_t> ticket = rank(r).Announce("a step", absl::OkStatus(), {});
        statuses[r] = ticket.ok() ? rank(r).Announced(*ticket) : ticket.status();
      });
      // Where all have announced, ranks may have heard that first.
      for (int r = 0; r < kSize; ++r) {
        if (r == broken || (announces && statuses[r].ok())) continue;
        EXPECT_THAT(statuses[r],
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr(absl::StrCat("rank ", broken, " of 3 failed")), HasSubstr("no answer"))))
            << "rank " << r << " of a broken rank " << broken;
      }
    }
  }
}

TEST_P(BootstrapNoticesTest, ARankThatBreaksForAnothersFailureNamesThatOne) {
  rank(1).TellFailure(absl::AbortedError("only here"));
  const absl::Status heard = Hear(2);
  EXPECT_THAT(rank(2).broken(), IsOk()) << "a failure that lets devices end";
  rank(2).TellBroken(heard);
  for (int r = 0; r < kSize; ++r) {
    EXPECT_THAT(Hear(r), StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr("rank 1 of 3 failed"), ::testing::Not(HasSubstr("rank 2")))));
  }
}

TEST_P(BootstrapNoticesTest, LookingDoesNotLoseWhatOthersGiveEarly) {
  std::vector<absl::StatusOr<std::vector<std::string>>> all(kSize);
  InThreads(kSize, [&](int r) {
    if (r == 1) rank(1).TellFailure(absl::AbortedError("only here"));
    for (int look = 0; r == 0 && look < 200; ++look) {
      rank(0).CheckPeers().IgnoreError();
      absl::SleepFor(absl::Milliseconds(1));
    }
    all[r] = rank(r).Exchange("parts", absl::StrCat(r));
  });
  for (const auto& parts : all) {
    ASSERT_THAT(parts, IsOk());
    EXPECT_THAT(*parts, ElementsAre("0", "1", "2"));
  }
}

TEST_P(BootstrapNoticesTest, ARankThatLeftIsUnavailable) {
  connected_[1] = absl::CancelledError("gone");
  EXPECT_THAT(Hear(0), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
  EXPECT_THAT(Hear(2), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
}

}  // namespace
}  // namespace reprise::testing
