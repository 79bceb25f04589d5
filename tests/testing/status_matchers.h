// GoogleTest matchers for absl::Status and absl::StatusOr; Debian 12's Abseil has none.
//
//   EXPECT_THAT(builder.Build(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"x\"")));
//   REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, builder.Build());
#ifndef REPRISE_TESTS_TESTING_STATUS_MATCHERS_H_
#define REPRISE_TESTS_TESTING_STATUS_MATCHERS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/status_macros.h"

namespace reprise::testing {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <class T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  *result_listener << "whose status is " << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// `message` is a matcher for std::string, or the whole text.
MATCHER_P2(StatusIs, code, message,
           "has the code " + absl::StatusCodeToString(code) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(message, negation)) {
  *result_listener << "whose status is " << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code &&
         ::testing::Matches(::testing::MatcherCast<const std::string&>(message))(std::string(StatusOf(arg).message()));
}

}  // namespace reprise::testing

// Ends the test unless `expression`, an absl::StatusOr<T>, is OK; assigns its value to `target`, which may declare a
// variable.
#define REPRISE_ASSERT_OK_AND_ASSIGN(target, expression) \
  REPRISE_ASSERT_OK_AND_ASSIGN_INNER(REPRISE_STATUS_CONCAT(reprise_result_, __LINE__), target, expression)

#define REPRISE_ASSERT_OK_AND_ASSIGN_INNER(temporary, target, expression) \
  auto temporary = (expression);                                          \
  ASSERT_TRUE(temporary.ok()) << temporary.status();                      \
  target = *std::move(temporary)

#endif  // REPRISE_TESTS_TESTING_STATUS_MATCHERS_H_
