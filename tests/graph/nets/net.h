// Nets: graphs of calls made of the public kernels and of functions written by hand, as plain data.
#ifndef REPRISE_TESTS_GRAPH_NETS_NET_H_
#define REPRISE_TESTS_GRAPH_NETS_NET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/core/model.h"

namespace reprise::testing {

// What a call computes; x is its first input, row by row, and p, q its parameters.
enum class NetOp : uint8_t {
  // Of public kernels; all floating-point operands have one dtype.
  kLinear,      // x p^T
  kLinearGelu,  // gelu(x p^T); x p^T is a private tensor
  kMlp,         // gelu(x p^T) q^T, in one call; p and q may be one parameter, then its gradient is added twice
  kRelu,
  kGelu,
  kAdd,        // x + the second input
  kRmsNorm,    // p x / sqrt(mean(x^2) + epsilon)
  kBias,       // x + p
  kEmbedding,  // rows of p by ids
  kPositions,  // x + rows of p by position
  kAttention,  // causal; x holds query, key and value
  kCrossEntropy,
  // By hand; every operand has a dtype of its own.
  kAffine,    // x p + q
  kFork,      // p[0] x and x; where there is a third output, 2 x too, which nothing reads
  kGate,      // x times the second input
  kSquares,   // mean(x^2) / 2, a scalar
  kWeighted,  // the sum over inputs i, scalars, of x_i / (i + 1)
};
inline constexpr int kNumNetOps = static_cast<int>(NetOp::kWeighted) + 1;
const char* Name(NetOp op);

struct NetParameter {
  int unit = 0;
  ParameterSpec spec = {};
  bool allow_unused = false;
  float mean = 0, deviation = 1;  // initial values lie in mean +- deviation
};

// A floating-point tensor of a row for each row of the batch, or a scalar.
struct NetValue {
  std::string name;
  TensorKind kind = TensorKind::kActivation;
  bool scalar = false;
  int64_t width = 1;
  DType dtype = DType::kFloat32;
  bool keep_gradient = false;  // inputs
  bool external = false;       // inputs
};

// An int32 input of one number per row, from 0 to bound - 1.
struct NetIntegers {
  std::string name;
  int64_t bound = 1;
};

struct NetCall {
  NetOp op = NetOp::kRelu;
  std::vector<int> inputs = {}, outputs = {}, parameters = {};  // indices into Net
  int integers = -1;
  int heads = 1;              // kAttention
  float epsilon = 0;          // kRmsNorm
  bool saves_output = false;  // kRelu: backward reads y instead of x
  bool recompute = false;
  std::vector<int> whole_units = {};  // named as units; all else by parameters
  bool forward_only = false;          // of whole_units: backward reads no weights
};

struct Net {
  uint64_t seed = 0;
  Shape lead;  // of every tensor's shape, before the width; the last extent is time
  int num_units = 0;
  std::vector<NetParameter> parameters;
  std::vector<NetValue> values;
  std::vector<NetIntegers> integers;
  std::vector<NetCall> calls;
  int loss = -1;  // index into values

  int64_t rows() const { return NumElements(lead); }
  int64_t elements(const NetValue& value) const { return value.scalar ? 1 : rows() * value.width; }
  // Most units that a call names.
  int units_of_a_call() const;
  std::string ToString() const;
};

// A function of the seed.
Net RandomNet(uint64_t seed);

// One microbatch of one rank: values of the inputs, exact in bfloat16.
struct NetBatch {
  std::vector<std::vector<float>> values;      // by index into Net::values; empty unless an input
  std::vector<std::vector<int32_t>> integers;  // by index into Net::integers
};
NetBatch MakeBatch(const Net& net, int64_t step, int microbatch, int rank);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_NET_H_
