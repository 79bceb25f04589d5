// Sessions on a dot product of 5 elements, on two ranks that can break.
#ifndef REPRISE_TESTS_GRAPH_DOT_SESSION_TEST_H_
#define REPRISE_TESTS_GRAPH_DOT_SESSION_TEST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/graph/forward_session.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/breakable_world.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {

class DotSessionTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TrainSession>> Train(const Dot& dot, TrainOptions options) {
    REPRISE_ASSIGN_OR_RETURN(parameters_, ShardedParameters::Create(world_, dot.model));
    REPRISE_RETURN_IF_ERROR(parameters_->Initialize(Constant(1)));
    return TrainSession::Create(parameters_, dot.model, dot.compute, std::move(options));
  }
  void Start(TrainOptions options = {}, const DotOptions& dot_options = {}) {
    dot_ = MakeDot(dot_options);
    absl::StatusOr<std::unique_ptr<TrainSession>> session = Train(dot_, std::move(options));
    ASSERT_THAT(session, IsOk());
    session_ = *std::move(session);
  }
  absl::Status Copy(int rank, size_t size = 5) {
    return session_->CopyInput(rank, dot_.x, std::vector<float>(size, 1.0f));
  }
  void RunMicrobatch() {
    for (int rank = 0; rank < 2; ++rank) ASSERT_THAT(Copy(rank), IsOk());
    ASSERT_THAT(session_->RunMicrobatch(), IsOk());
  }
  // The refusals before it have changed nothing.
  void ExpectStepWorks() {
    ASSERT_THAT(session_->BeginStep({.learning_rate = 0}), IsOk());
    RunMicrobatch();
    ASSERT_THAT(session_->EndStep(), IsOk());
  }
  absl::StatusOr<std::unique_ptr<ForwardSession>> Forward(const Dot& dot, std::vector<std::string> names,
                                                          RunOptions run = {}, TrainSession* share = nullptr) {
    std::vector<ForwardVariant> variants;
    for (const std::string& name : names) variants.push_back({name, dot.model, dot.compute});
    return ForwardSession::Create(parameters_, std::move(variants), std::move(run), share);
  }
  absl::Status CopyForward(int rank, int variant = 0) {
    return forward_->CopyInput(rank, variant, dot_.x, std::vector<float>(5, 1.0f));
  }
  void StartForward(TrainSession* share = nullptr) {
    absl::StatusOr<std::unique_ptr<ForwardSession>> forward = Forward(dot_, {"one", "two"}, {}, share);
    ASSERT_THAT(forward, IsOk());
    forward_ = *std::move(forward);
  }

  std::shared_ptr<BreakableWorld> world_ = std::make_shared<BreakableWorld>(2);
  std::shared_ptr<ShardedParameters> parameters_;
  Dot dot_;
  std::unique_ptr<TrainSession> session_;
  std::unique_ptr<ForwardSession> forward_;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_DOT_SESSION_TEST_H_
