// However a plan overlaps its commands, the numbers are the same.
#include "tests/conformance/conformance.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

struct Variant {
  const char* name;
  PlanOptions options;
};

TEST_P(ConformanceTest, OrderingOfCommandsDoesNotChangeResults) {
  const Classifier classifier = MakeClassifier(4, DType::kBFloat16);
  const PlanOptions serial = {
      .prefetch_depth = 0, .weight_slots = 1, .gradient_slots = 1, .residency = Residency::kOff};
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string expected, Train(classifier, serial, 4, 2));
  const Variant variants[] = {
      {"default", {}},
      {"no residency", {.residency = Residency::kOff}},
      {"many slots", {.prefetch_depth = 3, .weight_slots = 4, .gradient_slots = 4}},
      {"two microbatches per graph", {.microbatches_per_graph = 2}},
      {"four microbatches per graph", {.weight_slots = 3, .microbatches_per_graph = 4}},
      {"carried tail", {.tail = Tail::kCarried}},
  };
  for (const Variant& variant : variants) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::string bytes, Train(classifier, variant.options, 4, 2));
    EXPECT_TRUE(bytes == expected) << variant.name;
  }
}

TEST_P(ConformanceTest, OrderingOfReductionsOncePerStepDoesNotChangeResults) {
  const Classifier classifier = MakeClassifier(3, DType::kBFloat16);
  PlanOptions options = {.reduce = Reduce::kOncePerStep};
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string expected, Train(classifier, options, 2, 2));
  options.microbatches_per_graph = 2;
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::string bytes, Train(classifier, options, 2, 2));
  EXPECT_TRUE(bytes == expected);
}

}  // namespace
}  // namespace reprise::testing
