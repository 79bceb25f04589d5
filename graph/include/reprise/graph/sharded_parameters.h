// This process's shards of a model's parameters, shared by every session on them.
#ifndef REPRISE_GRAPH_SHARDED_PARAMETERS_H_
#define REPRISE_GRAPH_SHARDED_PARAMETERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "reprise/core/model.h"
#include "reprise/core/plan.h"
#include "reprise/graph/world.h"

namespace reprise {
namespace internal {
class MemoryBlock;
}

// Each rank holds its part of the master weights, and of the weights in the dtype that compute reads where the two
// differ. Padding is zero. A parameter has no values until Initialize or Write sets them; until then Read, steps and
// replays are refused (FailedPrecondition, naming it; parameters of no elements need no values). Threads: as for the
// World. Parameters change only between the steps of every session that shares them: Initialize and Write are refused
// in a step (FailedPrecondition, naming it), and a session whose parameters another one's step, or
// MarkParametersChanged, has changed in its own step refuses to go on with it.
//
// Functions marked (c) are collective. Where ranks are in several processes, what they give is compared first: where it
// differs, or some rank's arguments are wrong, all ranks refuse, and nothing was changed.
class ShardedParameters {
 public:
  // `master` is kFloat32 or kBFloat16.
  static absl::StatusOr<std::shared_ptr<ShardedParameters>> Create(std::shared_ptr<World> world, const Model& model,
                                                                   DType master = DType::kFloat32);

  // Called for each run of elements that a local rank owns, so values must not depend on how the runs are cut; and for
  // the first elements of each parameter, which are compared. An exception that leaves it becomes Internal; some
  // parameters then have new values, and others have not.
  using Initializer = std::function<void(const ParameterSpec& spec, int64_t first_element, absl::Span<float> values)>;
  // (c) Sets every parameter, frozen ones too.
  absl::Status Initialize(const Initializer& initializer);
  // (c) Sets one. `whole` is the parameter in row-major order, the same on all ranks. NotFound; InvalidArgument for a
  // wrong size.
  absl::Status Write(absl::string_view name, absl::Span<const float> whole);
  // (c) The whole parameter from the masters.
  absl::StatusOr<std::vector<float>> Read(absl::string_view name) const;
  // Grows with every change of any parameter; weights gathered from an older version are never used.
  int64_t version() const { return version_.load(std::memory_order_relaxed); }  // from any thread

  std::shared_ptr<World> world() const;
  const Model& model() const { return model_; }
  DType master() const { return master_; }
  // Which of the ShardedParameters that were made in this world, from 1: calls of ranks that use different ones are
  // refused.
  int64_t number() const { return number_; }

  // For sessions. Storage is kWeights or kMasters of a plan on an equal list of units and parameters, whose buffers
  // have the same offsets in every such plan; null for any other.
  std::shared_ptr<internal::MemoryBlock> memory(Storage storage) const;
  internal::Machine& machine() const { return *world_; }
  // InvalidArgument, naming the first difference, if the model's units and parameters are not these.
  absl::Status CheckSameParameters(const Model& model) const;
  // FailedPrecondition, beginning with `what`, names the first parameter that was never set.
  absl::Status CheckSet(absl::string_view what) const;
  // Memory of parameters was changed by other means than Initialize and Write. Inside a call of a session.
  void MarkChanged() { ++version_; }
  // While it lives, `open_step` is the number of a session's step that is open, or negative.
  void WatchStep(const std::shared_ptr<const int64_t>& open_step);

 private:
  ShardedParameters() = default;
  // Writes masters and weights of the elements that local ranks own; `values_at` is called as an Initializer is.
  absl::Status Fill(ParameterId parameter, const std::function<void(int64_t, absl::Span<float>)>& values_at);
  absl::Status FillAll(const Initializer& initializer);
  absl::StatusOr<ParameterId> CheckWrite(absl::string_view name, absl::Span<const float> whole) const;
  absl::Status CheckSet(absl::string_view what, ParameterId parameter) const;
  absl::Status CheckNoStep(absl::string_view what) const;
  std::byte* address(BufferId buffer, int local) const;

  std::shared_ptr<internal::Machine> world_;
  Model model_;
  ModelLayout layout_;
  DType master_ = DType::kFloat32;
  int64_t number_ = 0;
  std::atomic<int64_t> version_ = 0;
  std::vector<bool> is_set_;  // by parameter
  std::vector<std::weak_ptr<const int64_t>> open_steps_;
  std::vector<Buffer> buffers_;
  std::vector<UnitBuffers> unit_buffers_;
  std::shared_ptr<internal::MemoryBlock> weights_, masters_;
};

// Normally distributed values, a function of seed, parameter name and element alone, so that every world size starts
// from the same values. One-dimensional parameters named "*.gain" or "*.bias" are not special: use Constant for them.
ShardedParameters::Initializer Normal(uint64_t seed, float stddev);
ShardedParameters::Initializer Constant(float value);

}  // namespace reprise

#endif  // REPRISE_GRAPH_SHARDED_PARAMETERS_H_
