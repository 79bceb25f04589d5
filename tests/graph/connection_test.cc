// Ranks that reach each other by the program's own connections: what these can do wrong, and what a session does over
// them. Agreement, notices and deadlines over them are tested beside those over TCP, in the suites of Bootstrap.
#include "reprise/graph/connection.h"

#include <functional>

#include "reprise/core/status_macros.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/bootstrap_testing.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/process_world.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using internal::Bootstrap;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr absl::Duration kPatient = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(300);

const auto kRank1Left =
    ::testing::AnyOf(HasSubstr("rank 1 closed its connection"), HasSubstr("rank 1 lost its connection"));

// What each rank's joining, and then one exchange, comes to. `change` may replace a rank's connections.
std::vector<absl::Status> Join(int size, const std::function<void(LaunchEnvironment&)>& change,
                               absl::Duration deadline = kPatient) {
  const TestJob job = {.meeting = Meeting::kByMemory, .size = size};
  std::vector<absl::Status> statuses(static_cast<size_t>(size));
  InThreads(size, [&](int rank) {
    LaunchEnvironment launch = job.Rank(rank);
    change(launch);
    Connected connected = Bootstrap::Connect(launch, deadline);
    statuses[rank] = connected.ok() ? (*connected)->Exchange("parts", "x").status() : connected.status();
  });
  return statuses;
}

// A connection that does one thing wrong.
class Wrong : public Connection {
 public:
  explicit Wrong(std::unique_ptr<Connection> inner) : inner_(std::move(inner)) {}
  absl::StatusOr<size_t> Send(absl::string_view bytes) override {
    if (!send_error.ok()) return send_error;
    REPRISE_ASSIGN_OR_RETURN(const size_t taken, inner_->Send(bytes));
    return taken + too_many;
  }
  absl::Status Receive(std::string& received) override {
    REPRISE_RETURN_IF_ERROR(receive_error);
    received += std::exchange(garbage, "");
    return inner_->Receive(received);
  }

  size_t too_many = 0;
  std::string garbage;
  absl::Status send_error, receive_error;

 private:
  const std::unique_ptr<Connection> inner_;
};

// Rank 1 of 3 with wrong connections.
std::vector<absl::Status> JoinWith(const std::function<void(Wrong&)>& make_wrong) {
  return Join(3, [&](LaunchEnvironment& launch) {
    if (launch.rank != 1) return;
    launch.connect = [inner = launch.connect, &make_wrong](int to) -> absl::StatusOr<std::unique_ptr<Connection>> {
      REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, inner(to));
      auto wrong = std::make_unique<Wrong>(std::move(connection));
      make_wrong(*wrong);
      return wrong;
    };
  });
}

TEST(ConnectionTest, RanksMeetNowhereElse) {
  EXPECT_THAT(Join(3,
                   [](LaunchEnvironment& launch) {
                     launch.directory = "/nowhere";
                     launch.local_rank = 0;
                     launch.local_size = 1;
                   }),
              Each(IsOk()));
}

TEST(ConnectionTest, AreNamedInTheLog) {
  const TestJob job = {.meeting = Meeting::kByMemory};
  EXPECT_THAT(ToString(job.Rank(1)),
              HasSubstr("rank 1 of 2 (local rank 1 of 2), rendezvous by the program's own connections"));
}

TEST(ConnectionTest, OnlyRank0AndTheOthersConnect) {
  const TestJob job = {.meeting = Meeting::kByMemory, .size = 4};
  std::vector<std::vector<int>> asked(4);
  std::vector<LaunchEnvironment> launches = AllRanks(job);
  for (LaunchEnvironment& launch : launches) {
    launch.connect = [inner = launch.connect, &of_rank = asked[launch.rank]](int to) {
      of_rank.push_back(to);
      return inner(to);
    };
  }
  EXPECT_THAT(ConnectAll(launches, kPatient), Each(IsOk()));
  EXPECT_EQ(asked, (std::vector<std::vector<int>>{{1, 2, 3}, {0}, {0}, {0}}));
}

TEST(ConnectionTest, WorldSizesThatDifferAreNamedOnAllRanks) {
  const std::vector<absl::Status> statuses = Join(3, [](LaunchEnvironment& launch) {
    if (launch.rank == 2) launch.size = launch.local_size = 4;
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(statuses[rank],
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("joining: ranks disagree: world size 3 on ranks 0, 1 but 4 on rank 2")));
  }
  EXPECT_THAT(statuses[2], StatusIs(absl::StatusCode::kInternal,
                                    AllOf(HasSubstr("not the parts of 4 ranks"), HasSubstr("one world size"))));
}

TEST(ConnectionTest, ARankThatCannotConnectNamesTheOther) {
  for (const bool is_null : {false, true}) {
    const std::vector<absl::Status> statuses = Join(
        3,
        [&](LaunchEnvironment& launch) {
          if (launch.rank != 0) return;
          launch.connect = [is_null, inner = launch.connect](int to) -> absl::StatusOr<std::unique_ptr<Connection>> {
            if (to == 1) return inner(to);
            if (is_null) return std::unique_ptr<Connection>();
            return absl::PermissionDeniedError("the store says no");
          };
        },
        kShort);
    const auto verdict = StatusIs(is_null ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kPermissionDenied,
                                  AllOf(HasSubstr("LaunchEnvironment::connect of rank 0 of 3 to rank 2"),
                                        HasSubstr(is_null ? "there is none" : "the store says no")));
    EXPECT_THAT(statuses[0], verdict);
    EXPECT_THAT(statuses[1], verdict) << "which rank 0 had reached";
    EXPECT_THAT(statuses[2], StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 of 3 did not answer")));
  }
}

TEST(ConnectionTest, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  const std::vector<absl::Status> statuses = Join(
      3,
      [](LaunchEnvironment& launch) {
        if (launch.rank == 2) launch.rank = launch.size;  // which is refused, and connects to nobody
      },
      kShort);
  EXPECT_THAT(statuses[2], StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 3 of 3")));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(statuses[rank],
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("rank 2 of 3 did not answer in an exchange (joining) within 300ms")));
  }
}

TEST(ConnectionTest, ItsErrorsAreToldWithTheRankAtItsOtherEnd) {
  const std::vector<absl::Status> received =
      JoinWith([](Wrong& wrong) { wrong.receive_error = absl::UnavailableError("was revoked"); });
  EXPECT_THAT(received[1],
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 was revoked during an exchange")));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(received[rank], StatusIs(absl::StatusCode::kUnavailable, kRank1Left)) << "rank " << rank;
  }
  const std::vector<absl::Status> sent =
      JoinWith([](Wrong& wrong) { wrong.send_error = absl::AbortedError("has no more room"); });
  EXPECT_THAT(sent[1], StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0 has no more room during an exchange")));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(sent[rank], StatusIs(absl::StatusCode::kUnavailable, kRank1Left)) << "rank " << rank;
  }
}

TEST(ConnectionTest, MoreBytesTakenThanGivenIsAnError) {
  const std::vector<absl::Status> statuses = JoinWith([](Wrong& wrong) { wrong.too_many = 1 << 20; });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kInternal, HasSubstr("took 1048592 of 16 bytes")));
}

TEST(ConnectionTest, BytesOfAnotherAreRefused) {
  const std::vector<absl::Status> statuses = JoinWith([](Wrong& wrong) { wrong.garbage = std::string(40, 'z'); });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 0 sent bytes that are no message")));
  for (const int rank : {0, 2}) EXPECT_FALSE(statuses[rank].ok()) << "rank " << rank;
}

// ---- a session over them ----

struct Trained {
  std::vector<float> parameter, losses;
};

absl::StatusOr<Trained> Train(std::shared_ptr<World> world) {
  REPRISE_ASSIGN_OR_RETURN(DotTraining training, StartTraining(world, MakeDot(), {.optimizer = Sgd{}}));
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    REPRISE_RETURN_IF_ERROR(training.session->BeginStep({.learning_rate = 0.25f}));
    for (const int rank : world->local_ranks()) {
      const std::vector<float> x(5, static_cast<float>(1 + rank + step));
      REPRISE_RETURN_IF_ERROR(training.session->CopyInput(rank, training.dot.x, x));
    }
    REPRISE_RETURN_IF_ERROR(training.session->RunMicrobatch());
    REPRISE_RETURN_IF_ERROR(training.session->EndStep());
  }
  REPRISE_RETURN_IF_ERROR(training.session->Synchronize());
  for (const StepMetrics& metrics : training.session->PollMetrics()) trained.losses.push_back(metrics.loss);
  REPRISE_ASSIGN_OR_RETURN(trained.parameter, training.parameters->Read("w"));
  return trained;
}

TEST(ConnectionTest, SessionsTrainAsOnHostRanks) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> host, CreateHostWorld({.size = 3}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained expected, Train(host));
  for (const Meeting meeting : {Meeting::kByMemory, Meeting::kByMemorySlowly}) {
    const TestJob job = {.meeting = meeting, .size = 3};
    InThreads(3, [&](int rank) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateProcessWorld(job.Rank(rank), kPatient));
      REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, Train(world));
      EXPECT_EQ(trained.parameter, expected.parameter) << "rank " << rank;
      EXPECT_EQ(trained.losses, expected.losses) << "rank " << rank;
    });
  }
}

TEST(ConnectionTest, StepValuesThatDifferAreNamedOnAllRanks) {
  const TestJob job = {.meeting = Meeting::kByMemorySlowly};
  InThreads(2, [&](int rank) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateProcessWorld(job.Rank(rank), kPatient));
    REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining training, StartTraining(world, MakeDot(), {.optimizer = Sgd{}}));
    absl::Status status = training.session->BeginStep({.learning_rate = rank == 0 ? 0.25f : 0.5f});
    if (status.ok()) status = training.session->CopyInput(rank, training.dot.x, std::vector<float>(5, 1));
    if (status.ok()) status = training.session->RunMicrobatch();
    if (status.ok()) status = training.session->EndStep();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("learning_rate 0.25 on rank 0 but 0.5 on rank 1")));
  });
}

}  // namespace
}  // namespace reprise::testing
