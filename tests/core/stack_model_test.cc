#include "reprise/core/stack_model.h"

#include <limits>

#include "core/planner/model_uses.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using reprise::testing::IsOk;
using reprise::testing::StatusIs;
using ::testing::HasSubstr;

TEST(StackModelTest, IsAChainOfCallsWithOneUnitEachAndALoss) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, StackModel(2, {3, 5}, DType::kBFloat16, 7));
  EXPECT_EQ(model.ToString(),
            "unit u0; parameters: u0.weight\n"
            "unit u1; parameters: u1.weight\n"
            "parameter u0.weight bf16[3,5] of u0\n"
            "parameter u1.weight bf16[3,5] of u1\n"
            "input x bf16[7,5]\n"
            "activation y0 bf16[7,3]\n"
            "activation y1 bf16[7,3]\n"
            "output loss f32[]\n"
            "call c0; units: u0; inputs: x; outputs: y0; saved: x\n"
            "call c1; units: u1; inputs: y0; outputs: y1; saved: y0\n"
            "call loss; inputs: y1; outputs: loss; saved: y1\n"
            "loss loss\n");
  EXPECT_THAT(internal::TrainingUses(model), IsOk());
}

TEST(StackModelTest, NoTokensGiveEmptyTensors) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const Model model, StackModel(1, {4, 4}, DType::kFloat32, 0));
  EXPECT_EQ(NumElements(model.tensors()[0].spec.shape), 0);
}

TEST(StackModelTest, RefusesBadSizes) {
  constexpr absl::StatusCode kCode = absl::StatusCode::kInvalidArgument;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(StackModel(0, {4, 4}, DType::kFloat32, 1), StatusIs(kCode, HasSubstr("a stack of 0 units")));
  EXPECT_THAT(StackModel(std::numeric_limits<int>::max(), {4, 4}, DType::kFloat32, 1),
              StatusIs(kCode, "a stack of 2147483647 units; give at least 1 and at most 1048575"));
  EXPECT_THAT(StackModel(1, {4}, DType::kFloat32, 1), StatusIs(kCode, HasSubstr("parameters of rank 1")));
  EXPECT_THAT(StackModel(1, {4, -4}, DType::kFloat32, 1), StatusIs(kCode, HasSubstr("negative extent -4")));
  EXPECT_THAT(StackModel(1, {4, 4}, DType::kFloat32, -1), StatusIs(kCode, HasSubstr("negative extent -1")));
  EXPECT_THAT(StackModel(1, {kMax, 4}, DType::kFloat32, 1), StatusIs(kCode, HasSubstr("too large")));
  EXPECT_THAT(StackModel(1, {4, 4}, DType::kFloat32, kMax), StatusIs(kCode, HasSubstr("too large")));
  EXPECT_THAT(StackModel(1, {4, 4}, DType::kInt32, 1), StatusIs(kCode, HasSubstr("must be floating-point")));
}

}  // namespace
}  // namespace reprise
