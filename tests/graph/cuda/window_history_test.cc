// Equal histories of windows are equal places in NCCL's space. Needs no device.
#include "graph/cuda/window_history.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// As NCCL does it: the first hole that is large enough.
class FirstFit {
 public:
  int64_t Take(int64_t num_bytes) {
    int64_t offset = 0;
    for (const auto& [begin, size] : taken_) {
      if (begin - offset >= num_bytes) break;
      offset = begin + size;
    }
    taken_[offset] = num_bytes;
    return offset;
  }
  void Give(int64_t offset) { taken_.erase(offset); }

 private:
  std::map<int64_t, int64_t> taken_;
};

// A rank; what it opens gets a place on the communicator of the lane.
class Rank {
 public:
  int64_t Open(Lane lane, int64_t num_bytes) {
    const int64_t offset = spaces_[lane].Take(num_bytes);
    windows_[history_.Add(lane, num_bytes)] = {lane, offset};
    return offset;
  }
  void Close(int64_t number) {
    const auto& [lane, offset] = windows_.at(number);
    spaces_[lane].Give(offset);
    windows_.erase(number);
    history_.Remove(number);
  }
  std::vector<int64_t> Numbers() const {
    std::vector<int64_t> numbers;
    for (const auto& [number, window] : windows_) numbers.push_back(number);
    return numbers;
  }
  std::string Text() const { return history_.Text(); }

 private:
  WindowHistory history_;
  std::map<Lane, FirstFit> spaces_;
  std::map<int64_t, std::pair<Lane, int64_t>> windows_;
};

// Two ranks close windows, each in an order of its own and not always the same ones. Where their texts are equal the
// next window has the same place on both.
TEST(WindowHistoryTest, EqualTextsAreEqualPlaces) {
  int refused = 0, would_differ = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Rank a, b;
    for (int round = 0; round < 60; ++round) {
      const Lane lane = random() % 2 == 0 ? Lane::kAllGather : Lane::kReduceScatter;
      const int64_t num_bytes = 1 + static_cast<int64_t>(random() % 2);
      if (a.Text() == b.Text()) {
        ASSERT_THAT(CheckSameWindows({a.Text(), b.Text()}), IsOk());
        ASSERT_EQ(a.Open(lane, num_bytes), b.Open(lane, num_bytes)) << "seed " << seed << ", round " << round;
      } else {
        ASSERT_NE(a.Numbers(), b.Numbers()) << "the order of closing does not matter";
        ASSERT_THAT(CheckSameWindows({a.Text(), b.Text()}), StatusIs(absl::StatusCode::kFailedPrecondition, _));
        ++refused;
        Rank a_goes_on = a, b_goes_on = b;
        would_differ += a_goes_on.Open(lane, num_bytes) != b_goes_on.Open(lane, num_bytes);
      }
      for (Rank* rank : {&a, &b}) {
        std::vector<int64_t> numbers = rank->Numbers();
        std::shuffle(numbers.begin(), numbers.end(), random);
        for (const int64_t number : numbers) {
          // Both close those that a hash of number and round picks; seldom one does not.
          if ((number * 7 + round) % 3 == 0 && random() % 8 != 0) rank->Close(number);
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(would_differ, 100);
}

TEST(WindowHistoryTest, BothSidesAreNamed) {
  Rank a, b;
  for (Rank* rank : {&a, &b}) {
    rank->Open(Lane::kAllGather, 4096);
    rank->Open(Lane::kReduceScatter, 512);
  }
  EXPECT_THAT(CheckSameWindows({a.Text(), b.Text()}), IsOk());
  EXPECT_THAT(CheckSameWindows({}), IsOk());
  b.Close(0);
  EXPECT_THAT(
      CheckSameWindows({a.Text(), a.Text(), b.Text()}),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("rank 0 has 2 of 2 windows open: #0 of 4096 bytes for all_gather, #1 of 512 bytes for "
                               "reduce_scatter, but rank 2 has 1 of 2 windows open: #1 of 512 bytes for"),
                     HasSubstr("destroy the same sessions and parameters on every rank"))));
  a.Close(0);
  EXPECT_THAT(CheckSameWindows({a.Text(), a.Text(), b.Text()}), IsOk());
  // An attempt that failed counts: the others may have succeeded.
  a.Open(Lane::kAllGather, 1);
  a.Close(2);
  EXPECT_NE(a.Text(), b.Text());
}

}  // namespace
}  // namespace reprise::internal
