#include "reprise/graph/world.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "graph/machine.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/host_world.h"
#include "tests/testing/sanitizers.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::IsOk;
using ::reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// One rank of several. Keeps what it would send, and gets `all`.
class OneRank : public internal::Machine {
 public:
  OneRank(int rank, int size) : ranks_({rank}), size_(size) {}

  int size() const override { return size_; }
  absl::Span<const int> local_ranks() const override { return ranks_; }
  absl::StatusOr<std::shared_ptr<internal::MemoryBlock>> Allocate(internal::MemoryKind, int64_t) override {
    return Unused();
  }
  internal::AutoTransports auto_transports() const override { return {}; }
  absl::Status CopyToRank(int, void*, const void*, int64_t) override { return Unused(); }
  absl::Status CopyToHost(int, void*, const void*, int64_t) override { return Unused(); }
  absl::Status FillBytes(int, void*, uint8_t, int64_t) override { return Unused(); }
  absl::Status Synchronize() override { return Unused(); }
  absl::StatusOr<std::unique_ptr<internal::Recorder>> NewRecorder(Execution,
                                                                  std::shared_ptr<const internal::Bindings>) override {
    return Unused();
  }
  absl::StatusOr<std::vector<std::string>> ExchangeBytes(absl::string_view,
                                                         absl::Span<const std::string> mine) override {
    sent = mine.front();
    if (all.empty()) return absl::UnavailableError("peer gone");
    return all;
  }

  std::string sent;
  std::vector<std::string> all;

 private:
  static absl::Status Unused() { return absl::UnimplementedError("not part of the test"); }

  const std::vector<int> ranks_;
  const int size_;
};

struct Ballot {
  std::string phase = "planning";
  absl::Status status = {};
  Fingerprint fingerprint = {1, 2};
};

// What each rank gets from a vote.
std::vector<absl::Status> Vote(const std::vector<Ballot>& ballots) {
  const int size = static_cast<int>(ballots.size());
  std::vector<std::string> all;
  for (int rank = 0; rank < size; ++rank) {
    OneRank world(rank, size);
    world.Agree(ballots[rank].phase, ballots[rank].status, ballots[rank].fingerprint).IgnoreError();
    all.push_back(world.sent);
  }
  std::vector<absl::Status> results;
  for (int rank = 0; rank < size; ++rank) {
    OneRank world(rank, size);
    world.all = all;
    results.push_back(world.Agree(ballots[rank].phase, ballots[rank].status, ballots[rank].fingerprint));
  }
  return results;
}

TEST(WorldTest, RanksThatAgreeGoOn) {
  for (const absl::Status& status : Vote({{}, {}, {}})) EXPECT_THAT(status, IsOk());
}

TEST(WorldTest, AFailureOfOneRankStopsAllAndItKeepsItsOwnError) {
  const absl::Status own = absl::ResourceExhaustedError("3 GiB missing");
  const std::vector<absl::Status> results = Vote({{}, {.status = own}, {}});
  EXPECT_EQ(results[1], own);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("planning failed on rank 1 of 3"), HasSubstr("RESOURCE_EXHAUSTED"),
                                         HasSubstr("3 GiB missing"))));
}

TEST(WorldTest, DifferentFingerprintsAreRefusedWithBothSides) {
  const std::vector<absl::Status> results = Vote({{}, {.fingerprint = {1, 3}}, {}, {.fingerprint = {1, 3}}});
  for (const absl::Status& status : results) EXPECT_EQ(status, results[0]);
  EXPECT_THAT(results[0],
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("planning: ranks disagree: second half of the fingerprint 0000000000000002 on "
                                       "ranks 0, 2 but 0000000000000003 on ranks 1, 3"),
                             Not(HasSubstr("first half")))));
}

TEST(WorldTest, AFailureInAnEarlierPhaseIsToldRatherThanThePhases) {
  const std::vector<absl::Status> results =
      Vote({{.phase = "recording"}, {.phase = "recording"}, {.phase = "warm-up", .status = absl::AbortedError("no")}});
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("warm-up failed on rank 2 of 3: ABORTED: no; every rank stops here")));
  EXPECT_EQ(results[1], results[0]);
}

TEST(WorldTest, DifferentPhasesAreRefusedWithBothSides) {
  const std::vector<absl::Status> results = Vote({{}, {.phase = "recording"}});
  EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("ranks disagree: planning on rank 0 but recording on rank 1")));
}

TEST(WorldTest, AnUnreadableVoteIsAnError) {
  OneRank world(0, 2);
  world.all = {"short", "short"};
  EXPECT_THAT(world.Agree("planning", absl::OkStatus(), {}),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("rank 0 gave 5 bytes to an exchange that do not say what they are")));
}

TEST(WorldTest, AFailedExchangeIsReturned) {
  OneRank world(0, 2);
  EXPECT_THAT(world.Agree("planning", absl::OkStatus(), {}), StatusIs(absl::StatusCode::kUnavailable, "peer gone"));
  EXPECT_THAT(world.Sum({1.0}), StatusIs(absl::StatusCode::kUnavailable, "peer gone"));
}

TEST(WorldTest, SumAddsInRankOrder) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, CreateHostWorld({.size = 3}));
  // (1e300 - 1e300) + 1 is 1, and 1e300 + (1 - 1e300) is 0.
  EXPECT_EQ(world->Sum({1e300, -1e300, 1.0}).value(), 1.0);
  EXPECT_EQ(world->Sum({1.0, 1e300, -1e300}).value(), 0.0);
}

TEST(WorldTest, SumRefusesBytesOfAnotherCall) {
  OneRank world(0, 2);
  world.all = {std::string(8, '\0'), std::string(20, '\0')};
  EXPECT_THAT(world.Sum({1.0}), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1 gave 20 bytes")));
}

// A host world as sessions see it.
absl::StatusOr<std::shared_ptr<internal::Machine>> NewHostMachine(const HostWorldOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, CreateHostWorld(options));
  return internal::MachineOf(std::move(world));
}

TEST(HostWorldTest, RefusesSizesOutOfRange) {
  for (const int size : {-1, 0, 1025}) {
    EXPECT_THAT(
        CreateHostWorld({.size = size}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("the number of host ranks is ", size, " but must be between 1 and 1024"))));
  }
  EXPECT_THAT(CreateHostWorld({.size = 1024}), IsOk());
}

TEST(HostWorldTest, RefusesOrdersAndExecutionsThatAreNone) {
  EXPECT_THAT(CreateHostWorld({.order = static_cast<ReplayOrder>(9)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HostWorldOptions::order is 9")));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewHostMachine({}));
  auto bindings = std::make_shared<internal::Bindings>();
  Plan plan;
  plan.layout.world_size = 1;
  bindings->plan = std::make_shared<const Plan>(plan);
  bindings->ranks = {0};
  bindings->addresses = {{}};
  EXPECT_THAT(world->NewRecorder(Execution::kEager, bindings), IsOk());
  EXPECT_THAT(world->NewRecorder(static_cast<Execution>(9), bindings),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("execution is 9, which does not exist; use graph or eager")));
}

TEST(HostWorldTest, RefusesANegativeNumberOfThreads) {
  EXPECT_THAT(CreateHostWorld({.threads = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the number of threads of host ranks is -1")));
}

TEST(HostWorldTest, DrivesAllRanks) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewHostMachine({.size = 3}));
  EXPECT_EQ(world->size(), 3);
  EXPECT_THAT(world->local_ranks(), ElementsAre(0, 1, 2));
  EXPECT_THAT(world->ExchangeBytes("letters", {"a", "", "c"}).value(), ElementsAre("a", "", "c"));
  EXPECT_THAT(world->ExchangeBytes("letters", {"a"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 are local")));
}

TEST(HostWorldTest, MemoryIsAlignedAndHoldsNaN) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewHostMachine({.size = 2}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::MemoryBlock> block,
                               world->Allocate(internal::MemoryKind::kLocal, 100));
  EXPECT_EQ(block->num_bytes(), 100);
  EXPECT_NE(block->address(0), block->address(1));
  for (const int local : {-1, 2, 9}) EXPECT_EQ(block->address(local), nullptr);
  for (const int local : {0, 1}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->address(local)) % kBufferAlignment, 0u);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(block->address(local)), 100), std::string(100, '\xff'));
  }
}

TEST(HostWorldTest, RefusesMemoryThatThereIsNot) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewHostMachine({}));
  EXPECT_EQ(world->Allocate(internal::MemoryKind::kLocal, 0).value()->address(0), nullptr);
  EXPECT_THAT(world->Allocate(internal::MemoryKind::kLocal, -1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
#ifndef REPRISE_SANITIZED
  EXPECT_THAT(world->Allocate(internal::MemoryKind::kLocal, int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1152921504606846976 bytes of rank 0")));
#endif
}

TEST(HostWorldTest, CopiesBothWays) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewHostMachine({.size = 2}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::MemoryBlock> block,
                               world->Allocate(internal::MemoryKind::kLocal, 4));
  ASSERT_THAT(world->FillBytes(1, block->address(1), 7, 4), IsOk());
  ASSERT_THAT(world->CopyToRank(1, block->address(1), "ab", 2), IsOk());
  char bytes[4];
  ASSERT_THAT(world->CopyToHost(1, bytes, block->address(1), 4), IsOk());
  EXPECT_THAT(bytes, ElementsAre('a', 'b', 7, 7));
  EXPECT_THAT(world->FillBytes(2, block->address(1), 0, 4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local rank 2 of 2")));
  EXPECT_THAT(world->CopyToHost(0, bytes, block->address(0), -1), Not(IsOk()));
}

TEST(HostWorldTest, RefusesNullUnlessThereAreNoBytes) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewHostMachine({}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::MemoryBlock> block,
                               world->Allocate(internal::MemoryKind::kLocal, 16));
  char bytes[16] = {};
  const auto is_refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("16 bytes at a null address on local rank 0 of 1"));
  EXPECT_THAT(world->CopyToRank(0, nullptr, bytes, 16), is_refused);
  EXPECT_THAT(world->CopyToRank(0, block->address(0), nullptr, 16), is_refused);
  EXPECT_THAT(world->CopyToHost(0, nullptr, block->address(0), 16), is_refused);
  EXPECT_THAT(world->CopyToHost(0, bytes, nullptr, 16), is_refused);
  EXPECT_THAT(world->FillBytes(0, nullptr, 0, 16), is_refused);
  EXPECT_THAT(world->CopyToRank(0, nullptr, nullptr, 0), IsOk());
  EXPECT_THAT(world->CopyToHost(0, nullptr, nullptr, 0), IsOk());
  EXPECT_THAT(world->FillBytes(0, nullptr, 0, 0), IsOk());
}

TEST(HostWorldTest, RefusesBindingsOfAnotherWorld) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewHostMachine({.size = 2}));
  EXPECT_THAT(world->NewRecorder(Execution::kGraph, nullptr), Not(IsOk()));
  auto bindings = std::make_shared<internal::Bindings>();
  bindings->plan = std::make_shared<const Plan>();
  bindings->ranks = {0};
  bindings->addresses = {{}};
  EXPECT_THAT(world->NewRecorder(Execution::kGraph, bindings),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("this world has 2")));
}

TEST(HostWorldTest, RefusesBindingsWithoutAddresses) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewHostMachine({.size = 2}));
  Plan plan;
  plan.layout.world_size = 2;
  plan.buffers = {{.name = "b", .num_bytes = 16}, {.name = "empty"}};
  auto bindings = std::make_shared<internal::Bindings>();
  bindings->plan = std::make_shared<const Plan>(plan);
  bindings->ranks = {0, 1};
  std::byte memory[16];
  const auto expect = [&](std::vector<std::vector<std::byte*>> addresses, const char* words) {
    bindings->addresses = std::move(addresses);
    EXPECT_THAT(world->NewRecorder(Execution::kGraph, bindings),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
  };
  expect({}, "there are addresses for 0 ranks of 2");
  expect({{memory, nullptr}, {}}, "rank 1 has 0 addresses for 2 buffers");
  expect({{memory, nullptr}, {nullptr, memory}}, "buffer \"b\" has no address on rank 1");
  bindings->addresses = {{memory, nullptr}, {memory, nullptr}};
  EXPECT_THAT(world->NewRecorder(Execution::kGraph, bindings), IsOk());
}

}  // namespace
}  // namespace reprise
