// Small classifiers described as chains of calls, and their oracle: a plain loop on one rank, in double, that carries
// a bound on the rounding error of every value it computes.
#ifndef REPRISE_TESTS_GRAPH_CHAIN_ORACLE_H_
#define REPRISE_TESTS_GRAPH_CHAIN_ORACLE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "reprise/core/compute.h"
#include "reprise/core/model.h"
#include "tests/graph/approximate.h"
#include "tests/graph/session_testing.h"

namespace reprise::testing {

struct ChainParameter {
  std::string name;
  std::string unit;
  Shape shape;
  std::optional<DType> dtype = {};  // unset: the chain's
  bool trainable = true;
  bool unused = false;
};

// One call, from [rows, in] to [rows, out].
//   kLinear: y = x w^T.   kRelu: y = max(x, 0); no unit.   kLinearRelu: both in one call; x w^T is a private tensor.
//   kAffine: y = x scale + shift; `weight` is the scale, [in] in float32, `shift` is [in] in bfloat16. On host ranks
//   only; the others run on devices too.
struct ChainCall {
  enum class Kind { kLinear, kRelu, kLinearRelu, kAffine };
  Kind kind = Kind::kRelu;
  std::string weight = {};
  std::string shift = {};
  bool whole_unit = false;  // names the weight's unit instead of the parameters
  bool recompute = false;
};

// Ends with the cross-entropy of what the last call writes.
struct ChainSpec {
  std::string name;
  std::vector<ChainParameter> parameters = {};
  std::vector<ChainCall> calls = {};
  int64_t rows = 3;
  int64_t width = 7;  // of the features
};
// For GoogleTest's messages.
inline void PrintTo(const ChainSpec& spec, std::ostream* out) { *out << spec.name; }

// One chain for each way in which a model can use its parameters.
std::vector<ChainSpec> AllKindsOfChains();

struct Chain {
  ChainSpec spec;
  DType dtype = DType::kFloat32;  // of tensors, and of parameters that name none
  Model model;
  ComputeTable compute;
  TensorId features, labels, loss;
  int64_t classes = 0;
};
Chain MakeChain(const ChainSpec& spec, DType dtype);

// A function of the arguments; exact in bfloat16.
Batch MakeBatch(const Chain& chain, int64_t step, int microbatch, int rank);
absl::Status CopyBatch(TrainSession& session, const Chain& chain, int rank, const Batch& batch);

struct ChainGradient {
  Approximate loss;
  std::vector<std::vector<Approximate>> parameters;  // of every parameter; 0 where it has no gradient
};
// Of every parameter, in the model's order.
using ChainWeights = std::vector<std::vector<Approximate>>;
// What compute reads: these masters, exactly known, in the dtypes of their parameters.
ChainWeights WeightsOf(const Chain& chain, const std::vector<std::vector<float>>& masters);
// Of one batch.
ChainGradient Differentiate(const Chain& chain, const ChainWeights& weights, const Batch& batch);

// What a step takes the mean over, and the dtype in which ranks reduce.
struct Averaging {
  int world_size = 1;
  int microbatches = 1;
  DType reduce_dtype = DType::kFloat32;
};
// Loss and gradients of a whole step: a plain loop over microbatches and ranks.
ChainGradient MeanGradient(const Chain& chain, const ChainWeights& weights, int64_t step, const Averaging& averaging);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_CHAIN_ORACLE_H_
