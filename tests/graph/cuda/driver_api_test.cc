// Functions of the driver, by the version of CUDA that introduced them. Needs no device.
#include "graph/cuda/driver_api.h"

#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

TEST(DriverApiTest, AFunctionThatIsMissingIsNamedWithItsVersion) {
  EXPECT_THAT(FindDriverFunction("cuNothingOfTheKind", 12030),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no cuNothingOfTheKind of CUDA 12.3"), HasSubstr("install a driver"))));
}

}  // namespace
}  // namespace reprise::internal
