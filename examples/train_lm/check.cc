#include "examples/train_lm/check.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"

namespace reprise::examples {
namespace {

constexpr double kRoundoff = 0x1p-24;  // of fp32

// OK if |actual - expected| <= bound; keeps the largest fraction of a bound in `worst`.
absl::Status Compare(const std::string& what, size_t element, double actual, double expected, double bound,
                     double& worst) {
  const double difference = std::abs(actual - expected);
  if (!(difference <= bound)) {
    return absl::InternalError(absl::StrCat("check failed: element ", element, " of the ", what, " is ", actual,
                                            " sharded and ", expected, " unsharded; they differ by ", difference,
                                            " where rounding explains ", bound));
  }
  if (bound > 0) worst = std::max(worst, difference / bound);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReferenceCheck>> ReferenceCheck::Create(std::shared_ptr<World> world,
                                                                       const LanguageModel& model,
                                                                       const AdamW& optimizer, DType reduce_dtype) {
  auto check = std::make_unique<ReferenceCheck>();
  REPRISE_ASSIGN_OR_RETURN(check->parameters_, ShardedParameters::Create(std::move(world), model.model));
  TrainOptions options;
  options.run.plan.reduce_dtype = DType::kFloat32;
  REPRISE_ASSIGN_OR_RETURN(check->session_,
                           TrainSession::Create(check->parameters_, model.model, model.compute, options));
  check->tokens_ = model.tokens;
  check->labels_ = model.labels;
  check->optimizer_ = optimizer;
  check->reduce_roundoff_ = reduce_dtype == DType::kBFloat16 ? 0x1p-9 : kRoundoff;
  for (const Parameter& parameter : model.model.parameters()) {
    Reference& reference = check->references_[parameter.spec.name];
    const size_t elements = static_cast<size_t>(NumElements(parameter.spec.shape));
    reference.mean.assign(elements, 0);
    reference.absolute_mean.assign(elements, 0);
    reference.square.assign(elements, 0);
  }
  return check;
}

absl::Status ReferenceCheck::Start(const ShardedParameters& parameters) {
  microbatches_ = 0;
  for (auto& [name, reference] : references_) {
    REPRISE_ASSIGN_OR_RETURN(reference.weights, parameters.Read(name));
    REPRISE_RETURN_IF_ERROR(parameters_->Write(name, reference.weights));
    reference.sum.assign(reference.weights.size(), 0);
    reference.absolute_sum.assign(reference.weights.size(), 0);
  }
  return absl::OkStatus();
}

absl::Status ReferenceCheck::AddMicrobatch(const Batch& batch) {
  REPRISE_RETURN_IF_ERROR(session_->BeginStep({.learning_rate = 0, .microbatches = 1, .gradient_divisor = 1}));
  REPRISE_RETURN_IF_ERROR(session_->CopyInput(0, tokens_, batch.tokens));
  REPRISE_RETURN_IF_ERROR(session_->CopyInput(0, labels_, batch.labels));
  REPRISE_RETURN_IF_ERROR(session_->RunMicrobatch());
  for (auto& [name, reference] : references_) {
    REPRISE_ASSIGN_OR_RETURN(const std::vector<float> gradient, session_->ReadGradient(name));
    for (size_t i = 0; i < gradient.size(); ++i) {
      reference.sum[i] += gradient[i];
      reference.absolute_sum[i] += std::abs(gradient[i]);
    }
  }
  ++microbatches_;
  return session_->DiscardGradients();
}

absl::Status ReferenceCheck::CompareGradients(TrainSession& session) {
  ++steps_;
  const double bound = (microbatches_ + 1) * kRoundoff + 2 * reduce_roundoff_;
  for (auto& [name, reference] : references_) {
    REPRISE_ASSIGN_OR_RETURN(const std::vector<float> gradient, session.ReadGradient(name));
    for (size_t i = 0; i < gradient.size(); ++i) {
      REPRISE_RETURN_IF_ERROR(Compare(absl::StrCat("gradient of ", name), i, gradient[i],
                                      reference.sum[i] / microbatches_,
                                      bound * reference.absolute_sum[i] / microbatches_, worst_gradient_));
      const double g = gradient[i];
      reference.mean[i] += (1.0 - optimizer_.beta1) * (g - reference.mean[i]);
      reference.absolute_mean[i] += (1.0 - optimizer_.beta1) * (std::abs(g) - reference.absolute_mean[i]);
      reference.square[i] += (1.0 - optimizer_.beta2) * (g * g - reference.square[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status ReferenceCheck::CompareUpdate(const ShardedParameters& parameters, float learning_rate) {
  const double t = static_cast<double>(steps_);
  const double beta1 = optimizer_.beta1, beta2 = optimizer_.beta2;
  const double correction1 = 1 - std::pow(beta1, t), correction2 = 1 - std::pow(beta2, t);
  const double factor =
      kRoundoff * (3 * std::min(t, 1 / (1 - beta1)) + 2 * std::min(t, 1 / (1 - beta2)) + 8) * learning_rate;
  for (const auto& [name, reference] : references_) {
    REPRISE_ASSIGN_OR_RETURN(const std::vector<float> weights, parameters.Read(name));
    for (size_t i = 0; i < weights.size(); ++i) {
      const double old = reference.weights[i];
      const double scale = std::sqrt(reference.square[i] / correction2) + optimizer_.epsilon;
      const double expected =
          old - learning_rate * (reference.mean[i] / correction1 / scale + optimizer_.weight_decay * old);
      const double bound = factor * reference.absolute_mean[i] / correction1 / scale + 2 * kRoundoff * std::abs(old);
      REPRISE_RETURN_IF_ERROR(Compare(absl::StrCat("updated ", name), i, weights[i], expected, bound, worst_update_));
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise::examples
