// Collective calls name themselves: ranks that make different ones all get the same error, and go on in order.
#include <functional>
#include <random>

#include "graph/comm/bootstrap.h"
#include "reprise/core/status_macros.h"
#include "tests/graph/bootstrap_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using internal::Bootstrap;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BootstrapCallsTest : public ::testing::TestWithParam<Meeting> {
 protected:
  void Connect(int size) {
    connected_.clear();
    job_.size = size;
    job_.name += "x";
    job_.network = std::make_shared<MemoryNetwork>();
    connected_ = ConnectAll(AllRanks(job_), absl::Seconds(60));
    for (const Connected& rank : connected_) ASSERT_THAT(rank, IsOk());
  }
  Bootstrap& rank(int r) { return **connected_[r]; }

  // What each rank gets from its call, all at a time.
  template <class T>
  std::vector<T> All(const std::function<T(int, Bootstrap&)>& call) {
    std::vector<T> results(connected_.size());
    InThreads(job_.size, [&](int r) { results[r] = call(r, rank(r)); });
    return results;
  }
  std::vector<absl::Status> Statuses(const std::function<absl::Status(int, Bootstrap&)>& call) {
    return All<absl::Status>(call);
  }
  void ExpectInOrder() {
    const auto all = All<absl::StatusOr<std::vector<std::string>>>(
        [](int r, Bootstrap& b) { return b.Exchange("numbers", std::string(1, static_cast<char>('0' + r))); });
    for (const auto& parts : all) {
      ASSERT_THAT(parts, IsOk());
      for (int r = 0; r < job_.size; ++r) EXPECT_EQ((*parts)[r], std::string(1, static_cast<char>('0' + r)));
    }
  }

  TestJob job_ = {.meeting = GetParam()};
  std::vector<Connected> connected_;
};

INSTANTIATE_TEST_SUITE_P(, BootstrapCallsTest, EveryConnection(), NameOf);

TEST_P(BootstrapCallsTest, OneRankAgreesWithItself) {
  Connect(1);
  EXPECT_THAT(rank(0).AgreeOn("x", absl::OkStatus(), {internal::AgreedValue::Integer("n", 1)}), IsOk());
  EXPECT_THAT(rank(0).AgreeOn("x", absl::AbortedError("no"), {}), StatusIs(absl::StatusCode::kAborted, "no"));
  REPRISE_ASSERT_OK_AND_ASSIGN(const int64_t ticket, rank(0).Announce("x", absl::OkStatus(), {}));
  EXPECT_THAT(rank(0).Announced(ticket), IsOk());
  ExpectInOrder();
}

TEST_P(BootstrapCallsTest, EqualPartsAreEverybodys) {
  Connect(3);
  const auto all =
      All<absl::StatusOr<std::vector<std::string>>>([](int, Bootstrap& b) { return b.Exchange("parts", "the same"); });
  for (const auto& parts : all) {
    ASSERT_THAT(parts, IsOk());
    EXPECT_THAT(*parts, ElementsAre("the same", "the same", "the same"));
  }
}

TEST_P(BootstrapCallsTest, DifferentCallsAreNamedOnAllAndOver) {
  Connect(4);
  const std::vector<absl::Status> statuses = Statuses([](int r, Bootstrap& b) {
    return r == 1 ? b.AgreeOn("rest", absl::OkStatus(), {}) : b.Exchange(r == 2 ? "b" : "a", "bytes").status();
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "ranks disagree: a on ranks 0, 3 but rest on rank 1, b on rank 2; make the same "
                                    "collective calls in the same order on every rank"));
  EXPECT_THAT(statuses, Each(statuses[0]));
  ExpectInOrder();
}

TEST_P(BootstrapCallsTest, ValuesThatDifferAreNamedWithTheirValues) {
  Connect(3);
  const std::vector<absl::Status> statuses = Statuses([](int r, Bootstrap& b) {
    return b.AgreeOn(
        "step", absl::OkStatus(),
        {internal::AgreedValue::Integer("same", -7), internal::AgreedValue::Real("rate", r == 1 ? 0.1 : 0.25),
         internal::AgreedValue::Integer("count", r == 2 ? -1 : 3),
         internal::AgreedValue::Hash("hash", r == 0 ? 0xabc : 0xdef)});
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "step: ranks disagree: rate 0.25 on ranks 0, 2 but 0.1 on rank 1; count 3 on ranks "
                                    "0, 1 but -1 on rank 2; hash 0000000000000abc on rank 0 but 0000000000000def on "
                                    "ranks 1, 2; give the same values on every rank"));
  EXPECT_THAT(statuses, Each(statuses[0]));
  ExpectInOrder();
}

TEST_P(BootstrapCallsTest, AFailureOfOneRankIsItsOwnErrorAndNamedOnTheOthers) {
  Connect(3);
  const std::vector<absl::Status> statuses = Statuses([](int r, Bootstrap& b) {
    return b.AgreeOn("step", r == 1 ? absl::AbortedError("only here") : absl::OkStatus(), {});
  });
  EXPECT_EQ(statuses[1], absl::AbortedError("only here"));
  EXPECT_EQ(statuses[0], statuses[2]);
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("step failed on rank 1 of 3: ABORTED: only here; every rank stops here")));
  ExpectInOrder();
}

TEST_P(BootstrapCallsTest, AnAnnouncementDoesNotWaitAndIsSettledByTheNextCall) {
  Connect(3);
  // One after another, so that a call which waited would wait for ever.
  std::vector<int64_t> tickets;
  for (const int r : {2, 0, 1}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        tickets.emplace_back(),
        rank(r).Announce("step", absl::OkStatus(), {internal::AgreedValue::Integer("n", r == 1 ? 2 : 1)}));
  }
  ExpectInOrder();
  const std::vector<absl::Status> statuses = Statuses([&](int, Bootstrap& b) { return b.Announced(tickets[0]); });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("step: ranks disagree: n 1 on ranks 0, 2 but 2 on rank 1")));
  EXPECT_THAT(statuses, Each(statuses[0])) << "repeated for whoever asks";
  EXPECT_EQ(rank(1).Announced(tickets[0]), statuses[0]);
  // The ranks launch the same, and what they wait for comes to an end.
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(rank(r).Progress(tickets[0]), IsOk());
    EXPECT_THAT(rank(r).CheckPeers(), IsOk());
  }
}

TEST_P(BootstrapCallsTest, ARankThatWaitsForADeviceHearsWhatKeepsOthersFromLaunchingTheSame) {
  for (const bool fails : {false, true}) {
    Connect(3);
    const std::vector<absl::Status> statuses = Statuses([&](int r, Bootstrap& b) {
      const absl::StatusOr<int64_t> ticket =
          b.Announce("step", fails && r == 1 ? absl::AbortedError("only here") : absl::OkStatus(),
                     {internal::AgreedValue::Integer("n", !fails && r == 1 ? 2 : 1).DecidingLaunches()});
      const internal::Deadline deadline(absl::Seconds(20));
      absl::Status status;
      while (status.ok() && !deadline.passed()) {
        status = r == 0 ? b.CheckPeers() : b.Progress(*ticket);
        absl::SleepFor(absl::Milliseconds(1));
      }
      EXPECT_EQ(b.Announced(*ticket), status);
      return status;
    });
    EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr(fails ? "step failed on rank 1 of 3: ABORTED: only here"
                                                      : "step: ranks disagree: n 1 on ranks 0, 2 but 2 on rank 1")));
    EXPECT_EQ(statuses[1], fails ? absl::AbortedError("only here") : statuses[0]);
    EXPECT_EQ(statuses[2], statuses[0]);
  }
}

TEST_P(BootstrapCallsTest, AnAnnouncementBesideAnotherCallIsNamedOnAll) {
  for (const int odd : {0, 1, 2}) {
    Connect(3);
    const std::vector<absl::Status> statuses = Statuses([&](int r, Bootstrap& b) {
      if (r == odd) return b.Exchange("read", "bytes").status();
      const absl::StatusOr<int64_t> ticket =
          b.Announce("step", absl::OkStatus(), {internal::AgreedValue::Integer("n", 1)});
      const absl::Status status = ticket.ok() ? b.Announced(*ticket) : ticket.status();
      EXPECT_EQ(b.Progress(*ticket), status) << "other calls are known before anybody asks";
      return status;
    });
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(absl::StrCat("read on rank ", odd)), HasSubstr("step on ranks "))));
    EXPECT_THAT(statuses, Each(statuses[0]));
    ExpectInOrder();
  }
}

TEST_P(BootstrapCallsTest, DifferentLaunchesAreFinal) {
  for (const bool more : {false, true}) {
    Connect(3);
    for (int r = 0; r < 3; ++r) {
      ASSERT_THAT(rank(r).NoteLaunch(1, "first"), IsOk());
      if (r < 2 && more) continue;
      ASSERT_THAT(rank(r).NoteLaunch(r == 2 ? 3 : 2, r == 2 ? "odd" : "body"), IsOk());
    }
    const auto call = [](int, Bootstrap& b) { return b.Exchange("a", "bytes").status(); };
    const std::vector<absl::Status> statuses = Statuses(call);
    EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr(more ? "a after 1 launch, the last one first, on ranks 0, 1"
                                                           : "a after 2 launches, the last one body, on ranks 0, 1"),
                                            HasSubstr("a after 2 launches, the last one odd, on rank 2"),
                                            HasSubstr("this world can launch no more"))));
    EXPECT_THAT(statuses, Each(statuses[0]));
    EXPECT_THAT(Statuses(call), Each(statuses[0])) << "for good";
    EXPECT_EQ(rank(1).NoteLaunch(1, "first"), statuses[0]);
    EXPECT_EQ(rank(1).CheckPeers(), statuses[0]);
  }
}

TEST_P(BootstrapCallsTest, LaunchesInAnotherOrderAreFound) {
  for (const bool same_call : {true, false}) {
    Connect(3);
    for (int r = 0; r < 3; ++r) {
      for (const int launch : {r / 2, 1 - r / 2, 2}) {
        ASSERT_THAT(rank(r).NoteLaunch(launch, absl::StrCat("launch ", launch)), IsOk());
      }
    }
    const std::vector<absl::Status> statuses =
        Statuses([&](int r, Bootstrap& b) { return b.Exchange(same_call || r < 2 ? "a" : "b", "").status(); });
    const std::string words = " after 3 launches, the last one launch 2, an earlier one differing (hash ";
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(absl::StrCat("ranks disagree: a", words)), HasSubstr("), on ranks 0, 1 but "),
                               HasSubstr(absl::StrCat(same_call ? "a" : "b", words)),
                               HasSubstr("), on rank 2; make the same"))));
    EXPECT_THAT(statuses, Each(statuses[0]));
  }
}

// Of ranks that wait for a device, as `waiting` says, and others in a call. Those that wait look at the others.
TEST_P(BootstrapCallsTest, ARankThatIsWaitedForInVainSaysWhatItDoes) {
  constexpr int kSize = 3;
  for (int waiting = 1; waiting + 1 < 1 << kSize; ++waiting) {
    Connect(kSize);
    const std::vector<absl::Status> statuses = Statuses([&](int r, Bootstrap& b) {
      if ((waiting >> r & 1) == 0) return b.Exchange("a", "bytes").status();
      EXPECT_THAT(b.NoteLaunch(1, "alone"), IsOk());
      const internal::Deadline deadline(absl::Seconds(20));
      absl::Status status;
      while (status.ok() && !deadline.passed()) {
        status = b.CheckPeers();
        absl::SleepFor(absl::Milliseconds(1));
      }
      return status;
    });
    EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("a after 0 launches on rank"),
                                            HasSubstr("a wait for its device after 1 launch, the last one alone, on"))))
        << waiting;
    EXPECT_THAT(statuses, Each(statuses[0])) << waiting;
  }
}

// A rank that is late, but has launched no more than the others, is waited for.
TEST_P(BootstrapCallsTest, ALateRankIsNoOtherRank) {
  Connect(3);
  const std::vector<absl::Status> statuses = Statuses([&](int r, Bootstrap& b) {
    EXPECT_THAT(b.NoteLaunch(1, "all"), IsOk());
    const internal::Deadline late(absl::Milliseconds(r == 0 ? 0 : 400 * r));
    while (!late.passed()) {
      EXPECT_THAT(b.CheckPeers(), IsOk());
      absl::SleepFor(absl::Milliseconds(1));
    }
    return b.Exchange("a", "bytes").status();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// ---- random programs ----

struct Op {
  enum class Kind { kExchange, kAgree, kAnnounce, kSettle, kLaunch };
  Kind kind = Kind::kExchange;
  int value = 0;
  friend bool operator==(const Op&, const Op&) = default;
};

// Runs until the first error.
absl::Status Play(Bootstrap& b, const std::vector<Op>& program) {
  int64_t ticket = 0;
  for (const Op& op : program) {
    const std::string what = absl::StrCat("call ", op.value);
    switch (op.kind) {
      case Op::Kind::kExchange: {
        REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, b.Exchange(what, absl::StrCat(op.value)));
        for (const std::string& part : all) {
          if (part != absl::StrCat(op.value)) return absl::DataLossError("bytes of another call");
        }
        break;
      }
      case Op::Kind::kAgree:
        REPRISE_RETURN_IF_ERROR(
            b.AgreeOn("agreement", absl::OkStatus(), {internal::AgreedValue::Integer("value", op.value)}));
        break;
      case Op::Kind::kAnnounce: {
        REPRISE_ASSIGN_OR_RETURN(
            ticket, b.Announce("announcement", absl::OkStatus(), {internal::AgreedValue::Real("value", op.value)}));
        break;
      }
      case Op::Kind::kSettle:
        REPRISE_RETURN_IF_ERROR(b.Announced(ticket));
        break;
      case Op::Kind::kLaunch:
        REPRISE_RETURN_IF_ERROR(b.NoteLaunch(static_cast<uint64_t>(op.value), what));
        break;
    }
  }
  return absl::OkStatus();
}

std::vector<Op> RandomProgram(std::minstd_rand& random) {
  std::vector<Op> program;
  for (int i = 0; i < 12; ++i) {
    const Op op = {static_cast<Op::Kind>(random() % 5), static_cast<int>(random() % 3)};
    program.push_back(op);
    if (op.kind == Op::Kind::kAnnounce) {
      // As a step: launches, and the announcement is settled at its end.
      for (unsigned launches = random() % 3; launches > 0; --launches) program.push_back({Op::Kind::kLaunch, 7});
      program.push_back({Op::Kind::kSettle});
    }
  }
  program.push_back({Op::Kind::kExchange, 99});
  return program;
}

// One call changed, left out or added.
std::vector<Op> Mutate(std::vector<Op> program, std::minstd_rand& random) {
  size_t at = 0;
  do at = random() % (program.size() - 1);
  while (program[at].kind == Op::Kind::kSettle);
  switch (random() % 4) {
    case 0:
      program[at].value += 10;
      break;
    case 1:
      program[at].kind = program[at].kind == Op::Kind::kLaunch ? Op::Kind::kAgree : Op::Kind::kLaunch;
      break;
    case 2:
      program.erase(program.begin() + static_cast<int64_t>(at));
      break;
    case 3:
      program.insert(program.begin() + static_cast<int64_t>(at),
                     {random() % 2 == 0 ? Op::Kind::kAgree : Op::Kind::kLaunch, static_cast<int>(random() % 3)});
      break;
  }
  return program;
}

TEST_P(BootstrapCallsTest, OneChangeInAnyProgramIsFoundByAllRanks) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::minstd_rand random(seed + 1);
    const int size = 2 + static_cast<int>(random() % 3);
    const int odd = static_cast<int>(random() % static_cast<unsigned>(size + 1));  // none if it is `size`
    const std::vector<Op> program = RandomProgram(random);
    const std::vector<Op> changed = Mutate(program, random);
    if (changed == program) continue;
    Connect(size);
    const std::vector<absl::Status> statuses =
        Statuses([&](int r, Bootstrap& b) { return Play(b, r == odd ? changed : program); });
    if (odd == size) {
      EXPECT_THAT(statuses, Each(IsOk())) << "seed " << seed;
      ExpectInOrder();
    } else {
      EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ranks disagree")))
          << "seed " << seed;
      EXPECT_THAT(statuses, Each(statuses[0])) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace reprise::testing
