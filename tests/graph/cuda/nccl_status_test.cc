// What messages say of NCCL's versions. Needs no device.
#include "graph/cuda/nccl_status.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NcclStatusTest, HangsOfGraphsBetweenHostsAreNamedForVersionsThatHaveThem) {
  EXPECT_THAT(GraphHangRemedy(22809), AllOf(HasSubstr("NCCL 2.28.9 between hosts"), HasSubstr("NCCL 2.30.4 or later"),
                                            HasSubstr("or replay eagerly (RunOptions::execution)")));
  EXPECT_THAT(GraphHangRemedy(23003), HasSubstr("2.30.3"));
  EXPECT_EQ(GraphHangRemedy(23004), "");
  EXPECT_EQ(GraphHangRemedy(23007), "");
}

}  // namespace
}  // namespace reprise::internal
