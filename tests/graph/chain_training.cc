#include "tests/graph/chain_training.h"

#include <cmath>
#include <utility>

#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

void ExpectGradients(const ChainTraining& training, const ChainGradient& want, ChainStep& done) {
  for (size_t p = 0; p < want.parameters.size(); ++p) {
    const ParameterSpec& spec = training.chain.model.parameters()[p].spec;
    std::vector<float>& gradient = done.gradients.emplace_back(want.parameters[p].size(), 0.0f);
    if (!spec.trainable) continue;
    REPRISE_ASSERT_OK_AND_ASSIGN(gradient, training.session->ReadGradient(spec.name));
    ASSERT_EQ(gradient.size(), want.parameters[p].size()) << spec.name;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto& [value, error] = want.parameters[p][i];
      ASSERT_NEAR(gradient[i], value, error) << spec.name << " element " << i;
    }
  }
}

}  // namespace

absl::StatusOr<ChainTraining> StartTraining(std::shared_ptr<World> world, Chain chain, TrainOptions options,
                                            DType master) {
  ChainTraining training;
  training.chain = std::move(chain);
  const Model& model = training.chain.model;
  REPRISE_ASSIGN_OR_RETURN(training.parameters, ShardedParameters::Create(std::move(world), model, master));
  REPRISE_RETURN_IF_ERROR(training.parameters->Initialize(Normal(/*seed=*/3, /*stddev=*/0.25f)));
  REPRISE_ASSIGN_OR_RETURN(
      training.session, TrainSession::Create(training.parameters, model, training.chain.compute, std::move(options)));
  return training;
}

absl::Status RunMicrobatches(const ChainTraining& training, int64_t step, const StepValues& values) {
  REPRISE_RETURN_IF_ERROR(training.session->BeginStep(values));
  for (int m = 0; m < values.microbatches; ++m) {
    for (const int rank : training.parameters->world()->local_ranks()) {
      const Batch batch = MakeBatch(training.chain, step, m, rank);
      REPRISE_RETURN_IF_ERROR(CopyBatch(*training.session, training.chain, rank, batch));
    }
    REPRISE_RETURN_IF_ERROR(training.session->RunMicrobatch());
  }
  return absl::OkStatus();
}

void RunCheckedStep(const ChainTraining& training, int64_t step, const StepValues& values, ChainStep& done) {
  REPRISE_ASSERT_OK_AND_ASSIGN(done.before, ReadAll(*training.parameters));
  const ChainGradient want = MeanGradient(training.chain, WeightsOf(training.chain, done.before), step,
                                          {.world_size = training.parameters->world()->size(),
                                           .microbatches = values.microbatches,
                                           .reduce_dtype = training.session->plan().options.reduce_dtype});
  ASSERT_THAT(RunMicrobatches(training, step, values), IsOk());
  ASSERT_NO_FATAL_FAILURE(ExpectGradients(training, want, done));
  ASSERT_THAT(training.session->EndStep(), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(done.after, ReadAll(*training.parameters));
  ASSERT_THAT(training.session->Synchronize(), IsOk());
  const std::vector<StepMetrics> metrics = training.session->PollMetrics();
  ASSERT_EQ(metrics.size(), 1u);
  done.metrics = metrics[0];
  EXPECT_NEAR(done.metrics.loss, want.loss.value, want.loss.error);
  double squares = 0;
  for (const std::vector<float>& gradient : done.gradients) {
    for (const float value : gradient) squares += static_cast<double>(value) * value;
  }
  // Each gradient read is rounded once by its division, the norm once more.
  EXPECT_NEAR(done.metrics.gradient_norm, std::sqrt(squares), 2 * 0x1p-24 * std::sqrt(squares));
}

void ExpectSgdUpdate(const ChainStep& step, float learning_rate) {
  for (size_t p = 0; p < step.before.size(); ++p) {
    ASSERT_EQ(step.after[p].size(), step.before[p].size());
    for (size_t i = 0; i < step.before[p].size(); ++i) {
      const double before = step.before[p][i];
      const double update = static_cast<double>(learning_rate) * step.gradients[p][i];
      const double error = update == 0 ? 0 : 2 * 0x1p-24 * (std::abs(before) + 2 * std::abs(update));
      ASSERT_NEAR(step.after[p][i], before - update, error) << "parameter " << p << " element " << i;
    }
  }
}

}  // namespace reprise::testing
