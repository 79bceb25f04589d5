// Which transports are chosen from the times that a trial measured.
#include "graph/cuda/transport_trial.h"

#include <string>

#include "gtest/gtest.h"

namespace reprise::internal {
namespace {

constexpr Transport kNccl = Transport::kNccl, kSymmetric = Transport::kSymmetric, kCopyEngine = Transport::kCopyEngine;

// Milliseconds of default, symmetric and copy engine.
std::map<Transport, double> Times(double by_nccl, double symmetric, double copy_engine) {
  return {{kNccl, by_nccl}, {kSymmetric, symmetric}, {kCopyEngine, copy_engine}};
}

std::string Chosen(const TransportTimes& times) { return ToText(ChooseTransports(times)); }

TEST(ChooseTransportsTest, TakesTheQuickestOfEachSize) {
  EXPECT_EQ(Chosen({{100, Times(3, 2, 1)}}), "copy_engine");
  EXPECT_EQ(Chosen({{100, Times(3, 1, 2)}, {400, Times(9, 8, 7)}}), "symmetric,200:copy_engine");
  EXPECT_EQ(Chosen({{100, Times(3, 1, 2)}, {400, Times(9, 7, 8)}, {1600, Times(9, 8, 7)}}),
            "symmetric,800:copy_engine");
  EXPECT_EQ(Chosen({{100, Times(3, 1, 2)}, {400, Times(9, 8, 7)}, {1600, Times(9, 7, 8)}}),
            "symmetric,200:copy_engine,800:symmetric");
  EXPECT_EQ(Chosen({{100, Times(1, 2, 3)}, {400, Times(9, 8, 7)}}), "nccl,200:copy_engine");
}

TEST(ChooseTransportsTest, KeepsWhatItHasWhereNothingIsClearlyQuicker) {
  EXPECT_EQ(Chosen({{100, Times(1, 2, 3)}, {400, Times(7, 8, 9)}}), "nccl");
  EXPECT_EQ(Chosen({{100, Times(100, 99, 97.5)}}), "nccl");
  EXPECT_EQ(Chosen({{100, Times(100, 99, 96.5)}}), "copy_engine");
  EXPECT_EQ(Chosen({{100, Times(100, 96, 97)}}), "symmetric");
  EXPECT_EQ(Chosen({{100, Times(100, 90, 99)}, {400, Times(200, 100, 98)}, {1600, Times(200, 100, 96)}}),
            "symmetric,800:copy_engine");
}

TEST(ChooseTransportsTest, ChoosesNothingWhereNothingWasMeasured) { EXPECT_EQ(Chosen({}), "auto"); }

}  // namespace
}  // namespace reprise::internal
