// Averages are exact: small whole numbers leave nothing to round.
#include "tests/graph/founding/founding.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

const PlanOptions kPlans[] = {{},
                              {.reduce_dtype = DType::kFloat32},
                              {.residency = Residency::kOff},
                              {.microbatches_per_graph = 2},
                              {.tail = Tail::kCarried},
                              {.reduce = Reduce::kOncePerStep},
                              {.reduce = Reduce::kOncePerStep, .reduce_dtype = DType::kFloat32}};

// A weight of 1 x world, rank + 1 in each input, two microbatches: the sum of all gradients is world (world + 1).
TEST_P(FoundingTest, AveragesAndSumsAreExact) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Dot dot = MakeDot({.size = ranks(), .dtype = dtype});
    for (const PlanOptions& plan : kPlans) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const DotTraining training, StartTraining(world_, dot, Options(plan)));
      for (const auto& [divisor, want] : {std::pair(ranks(), ranks() + 1), std::pair(1, ranks() * (ranks() + 1))}) {
        ASSERT_THAT(
            RunMicrobatches(training,
                            {.learning_rate = 0, .microbatches = 2, .gradient_divisor = static_cast<double>(divisor)},
                            [](int, int rank) { return rank + 1.0f; }),
            IsOk());
        REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<float> gradient, training.session->ReadGradient("w"));
        EXPECT_EQ(gradient, std::vector<float>(ranks(), static_cast<float>(want))) << Name(dtype);
        ASSERT_THAT(training.session->DiscardGradients(), IsOk());
      }
    }
  }
}

}  // namespace
}  // namespace reprise::testing
