// The verifier's sweeps against all pairs of uses and lives, on random schedules.
#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/verifier.h"
#include "tests/testing/plan_builder.h"

namespace reprise {
namespace {

using reprise::testing::PlanBuilder;

constexpr int kBlock = 256;  // bytes; everything starts and ends at multiples of it
constexpr int kBlocksPerBuffer = 3;

using Order = std::vector<std::vector<bool>>;  // [earlier][later]

// By paths over lanes and waits, one command after the other.
Order Paths(const std::vector<ScheduledCommand>& commands) {
  const size_t n = commands.size();
  Order order(n, std::vector<bool>(n, false));
  for (size_t later = 0; later < n; ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      bool direct = commands[earlier].lane == commands[later].lane;
      for (const Wait& wait : commands[later].waits) direct = direct || wait.command.value() == int(earlier);
      if (!direct) continue;
      for (size_t i = 0; i < n; ++i) {
        if (i == earlier || order[i][earlier]) order[i][later] = true;
      }
    }
  }
  return order;
}

// Random waits on the latest command of other lanes, those that others imply left out.
void AddWaits(std::vector<ScheduledCommand>& commands, int one_in, std::mt19937& random) {
  for (size_t later = 1; later < commands.size(); ++later) {
    std::array<int, kNumLanes> latest = {-1, -1, -1, -1};
    for (size_t i = 0; i < later; ++i) latest[int(commands[i].lane)] = int(i);
    std::vector<int> chosen;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      if (lane == int(commands[later].lane) || latest[lane] < 0 || random() % one_in == 0) continue;
      chosen.push_back(latest[lane]);
    }
    std::sort(chosen.begin(), chosen.end());
    const Order order = Paths(commands);
    const int tail = latest[int(commands[later].lane)];
    for (int wait : chosen) {
      bool implied = tail >= 0 && order[wait][tail];
      for (int other : chosen) implied = implied || order[wait][other];
      if (!implied) commands[later].waits.push_back(reprise::testing::Data(wait));
    }
  }
}

Plan RandomPlan(std::mt19937& random) {
  PlanBuilder b;
  const UnitId unit = b.Unit("u", 128);
  const CallId call = b.Call("c");
  std::vector<BufferId> buffers;
  const int num_buffers = 2 + int(random() % 4);
  for (int i = 0; i < num_buffers; ++i) {
    const int64_t offset = int64_t(random() % 8) * kBlock;
    buffers.push_back(b.Buffer(absl::StrCat("b", i), Storage::kCommunicating, kBlocksPerBuffer * kBlock, offset));
  }
  Schedule& schedule = b.Start("body", 1);
  if (random() % 2 == 0) schedule.start.residents = {{unit, buffers[0], 0}};
  if (random() % 2 == 0) schedule.end.residents = {{unit, buffers[1], 0}};
  b.Command(Begin{}, Lane::kCompute);
  std::vector<bool> written(buffers.size(), !schedule.start.residents.empty());
  const int num_commands = 3 + int(random() % 9);
  for (int c = 0; c < num_commands; ++c) {
    const size_t chosen = random() % buffers.size();
    const int first = int(random() % kBlocksPerBuffer);
    BufferUse use = {buffers[chosen],
                     first * kBlock,
                     (1 + int64_t(random() % (kBlocksPerBuffer - first))) * kBlock,
                     static_cast<Access>(random() % 3),
                     Role::kScratch,
                     0};
    if (!written[chosen]) use = b.Use(buffers[chosen], Access::kAssign, Role::kScratch);
    written[chosen] = true;
    if (random() % 2 == 0) use.role = Role::kOutput;
    switch (random() % 3) {
      case 0:
        use.role = Role::kGathered;
        use.access = Access::kAssign;
        b.Command(AllGather{unit, 0, Transport::kNccl, AxisId(0)}, Lane::kAllGather, {use});
        break;
      case 1:
        b.Command(SumNorm{AxisId(0)}, Lane::kReduceScatter, {use});
        break;
      default:
        b.Command(Backward{call}, Lane::kCompute, {use});
    }
  }
  b.Command(End{}, Lane::kCompute);
  AddWaits(schedule.commands, 2 + int(random() % 8), random);
  return b.Build();
}

// Each command of a random plan has at most one use.
class AllPairs {
 public:
  explicit AllPairs(const Plan& plan) : plan_(plan), schedule_(plan.schedules[0]), order_(Paths(schedule_.commands)) {}

  bool DataIsRight() const {
    for (int later = 0; later < size(); ++later) {
      for (int earlier = 0; earlier < later; ++earlier) {
        if (Conflict(earlier, later) && !order_[earlier][later]) return false;
      }
      for (int block = 0; block < kBlocksPerBuffer; ++block) {
        if (NeedsBlock(later, block) && !IsWritten(later, block)) return false;
      }
    }
    return true;
  }

  bool MemoryIsRight() const {
    struct Life {
      int buffer;
      std::vector<int> commands;
    };
    std::vector<Life> lives;
    for (int buffer = 0; buffer < int(plan_.buffers.size()); ++buffer) {
      const size_t first = lives.size();
      for (const std::vector<int>& life : LivesOf(buffer)) {
        if (lives.size() > first && !AllBefore(lives.back().commands, life)) {
          lives.back().commands.insert(lives.back().commands.end(), life.begin(), life.end());
        } else {
          lives.push_back({buffer, life});
        }
      }
    }
    for (const Life& a : lives) {
      for (const Life& b : lives) {
        const bool share =
            std::abs(plan_.buffers[a.buffer].offset - plan_.buffers[b.buffer].offset) < kBlocksPerBuffer * kBlock;
        if (a.buffer == b.buffer || !share) continue;
        if (!AllBefore(a.commands, b.commands) && !AllBefore(b.commands, a.commands)) return false;
      }
    }
    return true;
  }

 private:
  int size() const { return int(schedule_.commands.size()); }
  const BufferUse* UseOf(int command) const {
    const std::vector<BufferUse>& uses = schedule_.commands[command].uses;
    return uses.empty() ? nullptr : &uses[0];
  }
  bool Covers(int command, int block) const {
    const BufferUse* use = UseOf(command);
    return use != nullptr && use->offset <= block * kBlock && block * kBlock < use->offset + use->num_bytes;
  }
  bool Gathers(int command) const { return std::holds_alternative<AllGather>(schedule_.commands[command].command); }
  bool Conflict(int a, int b) const {
    const BufferUse *first = UseOf(a), *second = UseOf(b);
    if (first == nullptr || second == nullptr || first->buffer != second->buffer) return false;
    if (first->access == Access::kRead && second->access == Access::kRead) return false;
    for (int block = 0; block < kBlocksPerBuffer; ++block) {
      if (Covers(a, block) && Covers(b, block)) return true;
    }
    return false;
  }
  bool NeedsBlock(int command, int block) const {
    const BufferUse* use = UseOf(command);
    return Covers(command, block) && use->access != Access::kAssign && use->role != Role::kScratch;
  }
  bool HeldAtStart(BufferId buffer) const {
    return !schedule_.start.residents.empty() && schedule_.start.residents[0].buffer == buffer;
  }
  bool HeldAtEnd(BufferId buffer) const {
    return !schedule_.end.residents.empty() && schedule_.end.residents[0].buffer == buffer;
  }
  // Does the block hold a value before the command?
  bool IsWritten(int command, int block) const {
    const BufferId buffer = UseOf(command)->buffer;
    for (int c = command - 1; c >= 0; --c) {
      if (UseOf(c) == nullptr || UseOf(c)->buffer != buffer) continue;
      if (Covers(c, block) && UseOf(c)->access != Access::kRead) return true;
      if (Gathers(c)) return false;
    }
    return HeldAtStart(buffer);
  }
  // Is the block's value needed from the command on, itself included?
  bool IsNeeded(int command, BufferId buffer, int block) const {
    for (int c = command; c < size(); ++c) {
      if (UseOf(c) == nullptr || UseOf(c)->buffer != buffer) continue;
      if (NeedsBlock(c, block)) return true;
      if (Gathers(c) || (Covers(c, block) && UseOf(c)->access == Access::kAssign)) return false;
    }
    return HeldAtEnd(buffer);
  }
  std::vector<std::vector<int>> LivesOf(int id) const {
    const BufferId buffer(id);
    std::vector<std::vector<int>> lives(1);
    if (HeldAtStart(buffer)) lives.back().push_back(0);
    for (int c = 0; c < size(); ++c) {
      if (UseOf(c) == nullptr || UseOf(c)->buffer != buffer) continue;
      bool needed = false;
      for (int block = 0; block < kBlocksPerBuffer; ++block) needed = needed || IsNeeded(c, buffer, block);
      if (!needed && !lives.back().empty()) lives.emplace_back();
      lives.back().push_back(c);
    }
    if (HeldAtEnd(buffer)) lives.back().push_back(size() - 1);
    if (lives.back().empty()) lives.pop_back();
    return lives;
  }
  bool AllBefore(const std::vector<int>& earlier, const std::vector<int>& later) const {
    for (int a : earlier) {
      for (int b : later) {
        if (!order_[a][b]) return false;
      }
    }
    return true;
  }

  const Plan& plan_;
  const Schedule& schedule_;
  const Order order_;
};

bool Passes(const std::vector<Violation>& violations, Check check) {
  return std::none_of(violations.begin(), violations.end(), [&](const Violation& v) { return v.check == check; });
}

TEST(VerifierPropertyTest, AgreesWithAllPairsOnRandomSchedules) {
  constexpr int kPlans = 5000;
  int data_right = 0, memory_right = 0;
  for (int seed = 0; seed < kPlans; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = RandomPlan(random);
    const std::vector<Violation> violations = FindViolations(plan, Check::kSuccession);
    ASSERT_TRUE(Passes(violations, Check::kForm)) << "seed " << seed << ": " << violations[0].message;
    const AllPairs oracle(plan);
    EXPECT_EQ(Passes(violations, Check::kData), oracle.DataIsRight()) << "seed " << seed;
    EXPECT_EQ(Passes(violations, Check::kMemory), oracle.MemoryIsRight()) << "seed " << seed;
    data_right += oracle.DataIsRight() ? 1 : 0;
    memory_right += oracle.MemoryIsRight() ? 1 : 0;
    if (HasFailure()) break;
  }
  for (int right : {data_right, memory_right}) {
    EXPECT_GT(right, kPlans / 20);
    EXPECT_LT(right, kPlans - kPlans / 20);
  }
}

// A chain of forward calls over units in two slots.
Plan LongPlan(int units) {
  PlanBuilder b;
  b.plan().weight_slots = 2;
  std::vector<BufferId> weights;
  for (int u = 0; u < units; ++u) {
    b.Unit(absl::StrCat("u", u), 128);
    b.Call(absl::StrCat("c", u));
    weights.push_back(b.Buffer(absl::StrCat("w", u), Storage::kWeights, 128, int64_t{u} * kBlock));
  }
  b.Start("body", 1);
  b.Command(Begin{}, Lane::kCompute);
  BufferId input = b.Buffer("x", Storage::kSession, kBlock, 0);
  std::vector<CommandId> calls;
  for (int u = 0; u < units; ++u) {
    const BufferId gathered = b.Buffer("g", Storage::kCommunicating, kBlock, u % 2 * kBlock);
    const BufferId output = b.Buffer("a", Storage::kLocal, kBlock, u % 2 * kBlock);
    std::vector<Wait> waits = {reprise::testing::Fork(0)};
    if (u == 1) waits.clear();
    if (u > 1) waits = {reprise::testing::Order(calls[u - 2].value())};
    const CommandId gather = b.Command(
        AllGather{UnitId(u), u % 2, Transport::kNccl, AxisId(0)}, Lane::kAllGather,
        {b.Use(weights[u], Access::kRead, Role::kShard), b.Use(gathered, Access::kAssign, Role::kGathered)}, waits);
    calls.push_back(
        b.Command(Forward{CallId(u)}, Lane::kCompute,
                  {b.Use(gathered, Access::kRead, Role::kParameter, u), b.Use(input, Access::kRead, Role::kInput),
                   b.Use(output, Access::kAssign, Role::kOutput)},
                  {reprise::testing::Data(gather.value())}));
    input = output;
  }
  b.Command(End{}, Lane::kCompute);
  return b.Build();
}

TEST(VerifierPropertyTest, VerifiesTenThousandUnits) {
  Plan plan = LongPlan(10000);
  EXPECT_THAT(FindViolations(plan, Check::kSuccession), ::testing::IsEmpty());
  // The last activation in the bytes of the one before it, which it is computed from.
  plan.buffers.back().offset = kBlock - plan.buffers.back().offset;
  const std::vector<Violation> violations = FindViolations(plan, Check::kSuccession);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].check, Check::kMemory);
}

}  // namespace
}  // namespace reprise
