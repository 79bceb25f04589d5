// Which transports are chosen from the times that a trial measured.
#include "graph/cuda/transport_trial.h"

#include <string>

#include "gtest/gtest.h"

namespace reprise::internal {
namespace {

constexpr Transport kDefault = Transport::kDefault, kSymmetric = Transport::kSymmetric,
                    kCopyEngine = Transport::kCopyEngine;

// Milliseconds of default, symmetric and copy engine.
std::map<Transport, double> Times(double by_default, double symmetric, double copy_engine) {
  return {{kDefault, by_default}, {kSymmetric, symmetric}, {kCopyEngine, copy_engine}};
}

std::string Chosen(const TransportTimes& times) { return ToText(ChooseTransports(times)); }

TEST(ChooseTransportsTest, TakesTheQuickestOfEachSize) {
  EXPECT_EQ(Chosen({{100, Times(3, 2, 1)}}), "copy_engine");
  EXPECT_EQ(Chosen({{100, Times(3, 1, 2)}, {400, Times(9, 8, 7)}}), "symmetric,200:copy_engine");
  EXPECT_EQ(Chosen({{100, Times(3, 1, 2)}, {400, Times(9, 7, 8)}, {1600, Times(9, 8, 7)}}),
            "symmetric,800:copy_engine");
  EXPECT_EQ(Chosen({{100, Times(3, 1, 2)}, {400, Times(9, 8, 7)}, {1600, Times(9, 7, 8)}}),
            "symmetric,200:copy_engine,800:symmetric");
  EXPECT_EQ(Chosen({{100, Times(1, 2, 3)}, {400, Times(9, 8, 7)}}), "default,200:copy_engine");
}

TEST(ChooseTransportsTest, KeepsWhatItHasWhereNothingIsClearlyQuicker) {
  EXPECT_EQ(Chosen({{100, Times(1, 2, 3)}, {400, Times(7, 8, 9)}}), "default");
  EXPECT_EQ(Chosen({{100, Times(100, 99, 97.5)}}), "default");
  EXPECT_EQ(Chosen({{100, Times(100, 99, 96.5)}}), "copy_engine");
  EXPECT_EQ(Chosen({{100, Times(100, 96, 97)}}), "symmetric");
  EXPECT_EQ(Chosen({{100, Times(100, 90, 99)}, {400, Times(200, 100, 98)}, {1600, Times(200, 100, 96)}}),
            "symmetric,800:copy_engine");
}

TEST(ChooseTransportsTest, ChoosesNothingWhereNothingWasMeasured) { EXPECT_EQ(Chosen({}), ""); }

}  // namespace
}  // namespace reprise::internal
