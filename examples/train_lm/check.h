// Compares sharded training with the same training unsharded on one rank, in a plain loop over the same microbatches.
#ifndef REPRISE_EXAMPLES_TRAIN_LM_CHECK_H_
#define REPRISE_EXAMPLES_TRAIN_LM_CHECK_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/common/language_model.h"
#include "examples/train_lm/text_data.h"
#include "reprise/graph/train_session.h"

namespace reprise::examples {

// One per training run. Every step restarts from the sharded weights, so errors do not pile up.
//
// Gradient: the reference runs each of the n microbatches of all ranks by itself and adds their gradients g in fp64.
// The sharded sum rounds each g once to the reduce dtype (unit roundoff w) and makes at most n - 1 additions, one
// division and, for the default transport, one rounding of the reduced part, in fp32 (u = 2^-24) or reduce dtype:
//   |difference| <= ((n + 1) u + 2 w) sum |g| / divisor.
// Update: AdamW in fp64 from the sharded gradients. Each moment is an exponential mean whose rounding is at most
// 3 u min(t, 1 / (1 - beta)) of the mean of |g| or g^2, and the quotient adds 8 u:
//   |difference| <= rate * u * (3 min(t, 1 / (1 - beta1)) + 2 min(t, 1 / (1 - beta2)) + 8) * mean|g| / (sqrt(v) +
//   epsilon)
//                   + 2 u |w|.
class ReferenceCheck {
 public:
  // `world` has one rank, and the kernels of the training that is checked: what other kernels would round is no part of
  // the bounds.
  static absl::StatusOr<std::unique_ptr<ReferenceCheck>> Create(std::shared_ptr<World> world,
                                                                const LanguageModel& model, const AdamW& optimizer,
                                                                DType reduce_dtype);

  // Before a step's first microbatch: takes over the sharded weights.
  absl::Status Start(const ShardedParameters& parameters);
  // A microbatch of some rank.
  absl::Status AddMicrobatch(const Batch& batch);
  // Between the last microbatch and EndStep. Internal, naming the parameter, element and numbers, if a gradient is
  // outside its bound.
  absl::Status CompareGradients(TrainSession& session);
  // After EndStep. The same for the updated weights.
  absl::Status CompareUpdate(const ShardedParameters& parameters, float learning_rate);

  // The largest difference so far, as a fraction of its bound.
  double worst_gradient() const { return worst_gradient_; }
  double worst_update() const { return worst_update_; }

 private:
  struct Reference {  // of one parameter, by element
    std::vector<float> weights;
    std::vector<double> sum, absolute_sum;            // of this step's gradients
    std::vector<double> mean, absolute_mean, square;  // moments over the steps
  };

  std::shared_ptr<ShardedParameters> parameters_;
  std::unique_ptr<TrainSession> session_;
  TensorId tokens_, labels_;
  AdamW optimizer_;
  double reduce_roundoff_ = 0;
  std::map<std::string, Reference> references_;
  int microbatches_ = 0;
  int64_t steps_ = 0;
  double worst_gradient_ = 0, worst_update_ = 0;
};

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_TRAIN_LM_CHECK_H_
