// What goes wrong in a compute function is reported by name.
#include <stdexcept>

#include "tests/conformance/conformance.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_P(ConformanceTest, ErrorsOfComputeFunctionsNameCommandPhaseAndCall) {
  Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  classifier.compute[*classifier.model.FindCall("c1")].backward = [](ComputeContext&) {
    return absl::OutOfRangeError("too far");
  };
  EXPECT_THAT(RunOnce(classifier), StatusIs(absl::StatusCode::kOutOfRange,
                                            AllOf(StartsWith("command #"), HasSubstr("(backward c1 microbatch 0)"),
                                                  HasSubstr("backward of call \"c1\""), HasSubstr("too far"))));
}

TEST_P(ConformanceTest, ErrorsFromExceptionsAreInternal) {
  Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  classifier.compute[*classifier.model.FindCall("c1")].forward = [](ComputeContext&) -> absl::Status {
    throw std::logic_error("thrown");
  };
  EXPECT_THAT(RunOnce(classifier),
              StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("forward of call \"c1\""), HasSubstr("thrown"))));
}

TEST_P(ConformanceTest, ErrorsOfUndeclaredRequestsNameThem) {
  Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  classifier.compute[*classifier.model.FindCall("c1")].forward = [labels = classifier.labels](ComputeContext& context) {
    context.input<int32_t>(labels);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOnce(classifier), StatusIs(absl::StatusCode::kInvalidArgument,
                                            AllOf(HasSubstr("forward of call \"c1\""), HasSubstr("\"labels\""))));
}

TEST_P(ConformanceTest, ErrorsOfMissingFunctionsNameTheCall) {
  Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  classifier.compute[*classifier.model.FindCall("c1")].backward = nullptr;
  EXPECT_THAT(RunOnce(classifier),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no function for backward of call \"c1\"")));
}

TEST_P(ConformanceTest, ErrorsOfOneRunDoNotReachTheNext) {
  Classifier classifier = MakeClassifier(2, DType::kBFloat16);
  const Compute good = classifier.compute[*classifier.model.FindCall("c1")];
  classifier.compute[*classifier.model.FindCall("c1")].forward = [](ComputeContext&) {
    return absl::AbortedError("once");
  };
  EXPECT_THAT(RunOnce(classifier), StatusIs(absl::StatusCode::kAborted, HasSubstr("once")));
  EXPECT_THAT(world_->Synchronize(), IsOk()) << "what Replay returned is not repeated";
  classifier.compute[*classifier.model.FindCall("c1")] = good;
  EXPECT_THAT(RunOnce(classifier), IsOk());
}

}  // namespace
}  // namespace reprise::testing
