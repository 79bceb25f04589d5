#include "reprise/core/status_macros.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using reprise::testing::StatusIs;

template <class A, class B>
absl::StatusOr<std::pair<A, B>> Pair(A a, B b) {
  if (a < 0) return absl::OutOfRangeError("a negative number");
  return std::pair<A, B>(a, b);
}
template <class A, class B>
absl::Status Check(A a) {
  return Pair<A, B>(a, B()).status();
}

absl::StatusOr<int> WithCommas(int a) {
  REPRISE_RETURN_IF_ERROR(Check<int, int>(a + 10));
  REPRISE_ASSIGN_OR_RETURN(const auto first, Pair<int, int>(a, 1));
  REPRISE_ASSIGN_OR_RETURN((const std::pair<int, std::map<int, int>> second),
                           Pair<int, std::map<int, int>>(a, {{1, 2}, {3, 4}}));
  REPRISE_ASSIGN_OR_RETURN((const auto [x, y]), Pair<int, int>(a, 100));
  int sum = first.first + first.second + static_cast<int>(second.second.size()) + x + y;
  std::pair<int, int> assigned;
  REPRISE_ASSIGN_OR_RETURN(assigned, Pair<int, int>(a, 1000));
  std::map<std::pair<int, int>, std::pair<int, int>> map;
  REPRISE_ASSIGN_OR_RETURN((map[{1, 2}]), Pair<int, int>(a, 10000));
  sum += assigned.second + map[{1, 2}].second;
  return sum;
}

TEST(StatusMacrosTest, ArgumentsMayHoldCommas) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const int sum, WithCommas(0));
  EXPECT_EQ(sum, 11103);
  EXPECT_THAT(WithCommas(-1), StatusIs(absl::StatusCode::kOutOfRange, "a negative number"));
  EXPECT_THAT(WithCommas(-11), StatusIs(absl::StatusCode::kOutOfRange, "a negative number"));
}

// The target is what it is without parentheses, and the expression is evaluated once.
TEST(StatusMacrosTest, AssignsToWhatItIsGiven) {
  int calls = 0;
  std::vector<int> values = {1, 2};
  const auto next = [&]() -> absl::StatusOr<int> { return ++calls; };
  const auto run = [&]() -> absl::Status {
    int* const pointer = &values[0];
    REPRISE_ASSIGN_OR_RETURN(*pointer, next());
    REPRISE_ASSIGN_OR_RETURN((values[1]), next());
    REPRISE_ASSIGN_OR_RETURN(values.emplace_back(), next());
    return absl::OkStatus();
  };
  EXPECT_THAT(run(), IsOk());
  EXPECT_THAT(values, ::testing::ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace reprise
