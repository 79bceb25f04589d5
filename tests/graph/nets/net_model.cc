#include "tests/graph/nets/net_model.h"

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/graph/nets/functions.h"

namespace reprise::testing {
namespace {

class NetBuilder {
 public:
  explicit NetBuilder(const Net& net) : net_(net) {}

  BuiltNet Build() && {
    for (int unit = 0; unit < net_.num_units; ++unit) units_.push_back(builder_.AddUnit(absl::StrCat("u", unit)));
    for (const NetParameter& p : net_.parameters) {
      parameters_.push_back(builder_.AddParameter(units_[p.unit], p.spec));
      if (p.allow_unused) builder_.AllowUnused(parameters_.back());
    }
    for (const NetIntegers& integers : net_.integers) {
      built_.integers.push_back(builder_.AddInput({integers.name, net_.lead, DType::kInt32}));
    }
    for (const NetValue& value : net_.values) built_.values.push_back(AddTensor(value));
    for (size_t i = 0; i < net_.calls.size(); ++i)
      AddCall(net_.calls[i], absl::StrCat("c", i, ".", Name(net_.calls[i].op)));
    builder_.SetLoss(built_.values[net_.loss]);
    built_.model = *builder_.Build();
    return std::move(built_);
  }

 private:
  Shape WithWidth(int64_t width) const {
    Shape shape = net_.lead;
    shape.push_back(width);
    return shape;
  }

  TensorId AddTensor(const NetValue& value) {
    TensorSpec spec = {.name = value.name, .dtype = value.dtype, .external = value.external};
    if (!value.scalar) spec.shape = WithWidth(value.width);
    if (value.kind == TensorKind::kActivation) return builder_.AddActivation(std::move(spec));
    if (value.kind == TensorKind::kOutput) return builder_.AddOutput(std::move(spec));
    const TensorId id = builder_.AddInput(std::move(spec));
    if (value.keep_gradient) builder_.KeepGradient(id);
    return id;
  }

  TensorId AddPrivate(const std::string& name, Shape shape, DType dtype, CallSpec& spec, CallIds& ids) {
    ids.saved_private.push_back(builder_.AddActivation({absl::StrCat(spec.name, ".", name), std::move(shape), dtype}));
    spec.saved.push_back(ids.saved_private.back());
    return ids.saved_private.back();
  }

  // What backward reads, by operation.
  void AddSaved(const NetCall& call, CallSpec& spec, CallIds& ids) {
    switch (call.op) {
      case NetOp::kLinearGelu:
      case NetOp::kMlp: {
        const int64_t inner = net_.parameters[call.parameters[0]].spec.shape[0];
        AddPrivate("h", WithWidth(inner), ids.in_dtypes[0], spec, ids);
        if (call.op == NetOp::kMlp) AddPrivate("activated", WithWidth(inner), ids.in_dtypes[0], spec, ids);
        spec.scratch_bytes = net_.rows() * inner * SizeOf(ids.in_dtypes[0]);
        spec.saved.push_back(ids.in[0]);
        return;
      }
      case NetOp::kAttention: {
        Shape shape = net_.lead;
        shape.insert(shape.end() - 1, call.heads);
        AddPrivate("log_sum_exp", shape, DType::kFloat32, spec, ids);
        spec.saved.push_back(ids.in[0]);
        return;
      }
      case NetOp::kRelu:
        spec.saved.push_back(call.saves_output ? ids.out[0] : ids.in[0]);
        return;
      case NetOp::kEmbedding:
        spec.saved.push_back(ids.integers);
        return;
      case NetOp::kCrossEntropy:
        spec.saved = {ids.in[0], ids.integers};
        return;
      case NetOp::kLinear:
      case NetOp::kGelu:
      case NetOp::kRmsNorm:
      case NetOp::kAffine:
      case NetOp::kFork:
      case NetOp::kGate:
      case NetOp::kSquares:
        spec.saved = ids.in;
        return;
      case NetOp::kAdd:
      case NetOp::kBias:
      case NetOp::kPositions:
      case NetOp::kWeighted:
        return;
    }
  }

  void AddCall(const NetCall& call, const std::string& name) {
    CallSpec spec = {.name = name, .recompute = call.recompute};
    CallIds ids = {.call = call};
    for (const int x : call.inputs) {
      ids.in.push_back(built_.values[x]);
      ids.in_dtypes.push_back(net_.values[x].dtype);
    }
    for (const int y : call.outputs) {
      ids.out.push_back(built_.values[y]);
      ids.out_dtypes.push_back(net_.values[y].dtype);
    }
    spec.inputs = ids.in;
    spec.outputs = ids.out;
    if (call.integers >= 0) {
      ids.integers = built_.integers[call.integers];
      spec.inputs.push_back(ids.integers);
    }
    AddParameters(call, spec, ids);
    AddSaved(call, spec, ids);
    // Of the operands of kernels: all inputs and parameters, or the output of an embedding.
    const DType dtype = ids.in_dtypes.empty() ? ids.out_dtypes[0] : ids.in_dtypes[0];
    const auto shared = std::make_shared<const CallIds>(std::move(ids));
    built_.compute[builder_.AddCall(std::move(spec))] = {
        [=](ComputeContext& c) { return RunForward(c, *shared, dtype); },
        [=](ComputeContext& c) { return RunBackward(c, *shared, dtype); }};
  }

  void AddParameters(const NetCall& call, CallSpec& spec, CallIds& ids) {
    const std::set<int> whole(call.whole_units.begin(), call.whole_units.end());
    for (const int unit : whole) (call.forward_only ? spec.forward_only_units : spec.units).push_back(units_[unit]);
    std::set<int> own;
    for (const int p : call.parameters) {
      ids.p.push_back(parameters_[p]);
      ids.p_dtypes.push_back(net_.parameters[p].spec.dtype);
      const bool named = whole.count(net_.parameters[p].unit) != 0 || own.count(p) != 0;
      if (!named) spec.parameters.push_back(parameters_[p]);
      own.insert(p);
    }
    for (size_t p = 0; p < net_.parameters.size(); ++p) {
      if (whole.count(net_.parameters[p].unit) != 0 && own.count(static_cast<int>(p)) == 0) {
        ids.idle.push_back(parameters_[p]);
      }
    }
  }

  const Net& net_;
  ModelBuilder builder_;
  BuiltNet built_;
  std::vector<UnitId> units_;
  std::vector<ParameterId> parameters_;
};

}  // namespace

BuiltNet Build(const Net& net) { return NetBuilder(net).Build(); }

}  // namespace reprise::testing
