// Which objects stand for transports, and what a plan does by each. Needs no device.
#include <set>

#include "absl/strings/str_cat.h"
#include "graph/cuda/transports/transport.h"
#include "gtest/gtest.h"
#include "reprise/core/planner.h"
#include "reprise/core/stack_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

TEST(FindTransportTest, EachHasOneOfItsOwn) {
  std::set<const DeviceTransport*> found;
  for (const TransportTraits& traits : kTransports) found.insert(FindTransport(traits.transport));
  EXPECT_EQ(found.size(), kTransports.size());
  EXPECT_FALSE(found.contains(nullptr));
  EXPECT_EQ(FindTransport(static_cast<Transport>(kTransports.size())), nullptr);
}

// "nccl gathers, symmetric exchanges"
std::string Uses(const Plan& plan) {
  std::string text;
  for (const TransportTraits& traits : kTransports) {
    const TransportUse use = UseOf(plan, traits.transport);
    EXPECT_EQ(use.any(), use.gathers || use.exchanges);
    EXPECT_FALSE(use.beside_windows);
    if (use.gathers) absl::StrAppend(&text, text.empty() ? "" : ", ", std::string(traits.name), " gathers");
    if (use.exchanges) absl::StrAppend(&text, text.empty() ? "" : ", ", std::string(traits.name), " exchanges");
  }
  return text;
}

TEST(UseOfTest, IsWhatUnitsTravelBy) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, StackModel(2, {8, 8}, DType::kBFloat16, 4));
  const UnitTransports apart(Transport::kCopyEngine, Transport::kSymmetric);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan trains, PlanTraining(model, 2, {.transports = EveryUnit(apart)}));
  EXPECT_EQ(Uses(trains), "symmetric exchanges, copy_engine gathers");
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan nccl, PlanTraining(model, 2, {}));
  EXPECT_EQ(Uses(nccl), "nccl gathers, nccl exchanges");
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan forward, PlanForward(model, 2, {.transports = EveryUnit(apart)}));
  EXPECT_EQ(Uses(forward), "copy_engine gathers");
}

TEST(UseOfTest, FrozenAndEmptyUnitsNeedNoMore) {
  ModelBuilder b;
  const UnitId large = b.AddUnit("frozen"), small = b.AddUnit("trained"), empty = b.AddUnit("empty");
  b.AddParameter(large, {.name = "f", .shape = {64, 64}, .dtype = DType::kFloat32, .trainable = false});
  b.AddParameter(small, {.name = "t", .shape = {8}, .dtype = DType::kFloat32});
  b.AddParameter(empty, {.name = "e", .shape = {0}, .dtype = DType::kFloat32});
  const TensorId x = b.AddInput({.name = "x", .shape = {8}, .dtype = DType::kFloat32});
  const TensorId loss = b.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  b.AddCall({.name = "c", .units = {large, small, empty}, .inputs = {x}, .outputs = {loss}, .saved = {x}});
  b.SetLoss(loss);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, b.Build());
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan,
                               PlanTraining(model, 2,
                                            {.transports = {{1, {Transport::kNccl, Transport::kCopyEngine}},
                                                            {4096, {Transport::kNccl, Transport::kSymmetric}}}}));
  EXPECT_EQ(Uses(plan), "nccl gathers, copy_engine exchanges");
}

}  // namespace
}  // namespace reprise::internal
