// What one microbatch computes, as plain data: units of parameters, tensors, and calls that execute user code on them.
// A model holds no code, no address and no rank. Build one with ModelBuilder, or read one with Model::FromJson.
#ifndef REPRISE_CORE_MODEL_H_
#define REPRISE_CORE_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "reprise/core/dtype.h"
#include "reprise/core/ids.h"

namespace reprise {

// Most units, most parameters, most tensors and most calls of a model.
inline constexpr int kMaxModelItems = 1 << 20;

// Extents, outermost first; {} is a scalar. No extent is negative; a zero extent makes an empty tensor.
using Shape = std::vector<int64_t>;
// Product of the extents. The shapes inside a Model never overflow it.
int64_t NumElements(absl::Span<const int64_t> shape);

struct ParameterSpec {
  std::string name = {};  // unique in the model
  Shape shape = {};
  DType dtype = DType::kBFloat16;  // floating-point; the dtype that compute reads
  bool trainable = true;           // false: gathered, never reduced or updated
  std::optional<DType> reduce_dtype =
      {};  // of this parameter's gradient in a reduce-scatter; unset: PlanOptions::reduce_dtype

  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

struct TensorSpec {
  std::string name = {};  // unique in the model
  Shape shape = {};
  DType dtype = DType::kBFloat16;
  bool external = false;  // bound to an address of the user's instead of being placed by the memory plan

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// One execution of user compute. No tensor may be both input and output of one call. A private tensor of a call is an
// activation that this call alone names, in `saved`: its forward writes it and its backward reads it.
struct CallSpec {
  std::string name = {};           // unique in the model
  std::vector<UnitId> units = {};  // all their parameters: read in forward and backward, gradients written
  std::vector<ParameterId> parameters =
      {};                              // instead of a whole unit, just these (tied weights: named by several calls)
  std::vector<TensorId> inputs = {};   // read in forward
  std::vector<TensorId> outputs = {};  // written in forward; every activation is written by exactly one call
  std::vector<TensorId> saved = {};    // all that backward reads: inputs, outputs or private tensors
  std::vector<TensorId> state = {};    // read and written in place, kept across replays (a KV cache)
  std::vector<UnitId> forward_only_units = {};  // like `units`, but backward does not read their weights (an embedding)
  int64_t scratch_bytes = 0;                    // of working memory, in forward and again in backward
  bool recompute =
      false;  // run forward again before backward instead of keeping outputs and private tensors in `saved`

  friend bool operator==(const CallSpec&, const CallSpec&) = default;
};

enum class TensorKind : uint8_t { kInput, kActivation, kOutput, kState };
// "input", "activation", "output", "state": the words of model files and messages.
absl::string_view Name(TensorKind kind);

struct Parameter {
  ParameterSpec spec;
  UnitId unit;
  bool allow_unused = false;

  friend bool operator==(const Parameter&, const Parameter&) = default;
};
struct Unit {
  std::string name;
  std::vector<ParameterId> parameters;

  friend bool operator==(const Unit&, const Unit&) = default;
};
struct Tensor {
  TensorSpec spec;
  TensorKind kind = TensorKind::kActivation;
  bool keep_gradient = false;

  friend bool operator==(const Tensor&, const Tensor&) = default;
};

// A valid model; immutable. Every id inside is in range, and everything that ModelBuilder::Build checks holds.
class Model {
 public:
  absl::Span<const Unit> units() const { return units_; }
  absl::Span<const Parameter> parameters() const { return parameters_; }
  absl::Span<const Tensor> tensors() const { return tensors_; }
  absl::Span<const CallSpec> calls() const { return calls_; }
  // Ids of this model, as its builder or Find* returned them; any other id is undefined behaviour, as for std::vector.
  const Unit& unit(UnitId id) const { return units_[id.value()]; }
  const Parameter& parameter(ParameterId id) const { return parameters_[id.value()]; }
  const Tensor& tensor(TensorId id) const { return tensors_[id.value()]; }
  const CallSpec& call(CallId id) const { return calls_[id.value()]; }
  // Invalid unless SetLoss was called; then a float32 scalar output.
  TensorId loss() const { return loss_; }

  // By name, as for a ComputeTable of a model that was read from a file. NotFound, naming the model's closest offer, if
  // there is no such name.
  absl::StatusOr<UnitId> FindUnit(absl::string_view name) const;
  absl::StatusOr<CallId> FindCall(absl::string_view name) const;
  absl::StatusOr<ParameterId> FindParameter(absl::string_view name) const;
  absl::StatusOr<TensorId> FindTensor(absl::string_view name) const;

  friend bool operator==(const Model&, const Model&) = default;
  // For people: one line per unit, parameter, tensor and call.
  std::string ToString() const;
  // The model file format of core/README.md; FromJson(ToJson()) gives an equal model.
  std::string ToJson() const;
  // InvalidArgument, naming the place in the file, for anything malformed.
  static absl::StatusOr<Model> FromJson(absl::string_view json);

 private:
  friend class ModelBuilder;
  std::vector<Unit> units_;
  std::vector<Parameter> parameters_;
  std::vector<Tensor> tensors_;
  std::vector<CallSpec> calls_;
  TensorId loss_;
};

// Collects a model. Add* cannot fail: Build reports the first mistake by name. Not thread-safe.
class ModelBuilder {
 public:
  UnitId AddUnit(std::string name);
  ParameterId AddParameter(UnitId unit, ParameterSpec spec);
  TensorId AddInput(TensorSpec spec);
  TensorId AddActivation(TensorSpec spec);
  TensorId AddOutput(TensorSpec spec);
  TensorId AddState(TensorSpec spec);
  // Forward order is the order of these calls; backward is its reverse.
  CallId AddCall(CallSpec spec);
  // Backward starts at this float32 scalar output; its gradient is the loss scale.
  void SetLoss(TensorId scalar_output);
  // Keeps the gradient of a floating-point input, to be read by name.
  void KeepGradient(TensorId input);
  // The trainable parameter may be left without a gradient writer; its gradient is then zero.
  void AllowUnused(ParameterId parameter);

  // InvalidArgument, with the names and numbers, for: more than kMaxModelItems of a kind, an empty or repeated name or
  // one that is not printable, an unknown id or dtype, a negative or overflowing size, a parameter that is not
  // floating-point, a tensor read before it is written, written twice or both input and output of a call, something
  // saved that the call neither reads nor writes, a loss that is not a float32 scalar output, a unit named twice by a
  // call.
  absl::StatusOr<Model> Build() const;

 private:
  TensorId AddTensor(TensorSpec spec, TensorKind kind);

  Model model_;
  std::vector<std::string> mistakes_;
};

}  // namespace reprise

#endif  // REPRISE_CORE_MODEL_H_
