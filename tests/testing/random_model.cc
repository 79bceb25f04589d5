#include "tests/testing/random_model.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace reprise::testing {
namespace {

// Draws stand in statements of their own: the order in which arguments are evaluated depends on the compiler.
class RandomModelBuilder {
 public:
  RandomModelBuilder(uint64_t seed, const RandomModelOptions& options) : random_(seed), options_(options) {}

  Model Build() && {
    AddUnits();
    std::vector<UnitId> unused = units_;
    while (!unused.empty()) AddCall(TakeSome(unused));
    for (int64_t extra = random_.Below(3); extra > 0; --extra) AddCall({});
    AddLoss();
    return *builder_.Build();
  }

 private:
  void AddUnits() {
    const int64_t num_units = 1 + random_.Below(options_.max_units);
    std::vector<int64_t> left;  // parameters still to be added, by unit
    for (int64_t u = 0; u < num_units; ++u) {
      units_.push_back(builder_.AddUnit(absl::StrCat("u", u)));
      left.push_back(1 + random_.Below(4));
    }
    parameters_.resize(num_units);
    const bool interleaved = random_.Chance(30);
    for (int64_t u = 0; std::any_of(left.begin(), left.end(), [](int64_t n) { return n > 0; });) {
      if (left[u] > 0) {
        AddParameter(u);
        --left[u];
      }
      if (interleaved || left[u] == 0) u = (u + 1) % num_units;
    }
  }

  void AddParameter(int64_t u) {
    ParameterSpec spec;
    spec.name = absl::StrCat("u", u, ".p", parameters_[u].size());
    const bool first = u == 0 && parameters_[u].empty();  // keeps something to train in every model
    spec.dtype = RandomDType();
    if (first || !random_.Chance(5)) {
      spec.shape = RandomShape(spec.dtype);
    } else {
      spec.shape = {3, 0};
    }
    spec.trainable = first || !random_.Chance(20);
    if (random_.Chance(15)) spec.reduce_dtype = RandomDType();
    parameters_[u].push_back(builder_.AddParameter(units_[u], std::move(spec)));
  }

  DType RandomDType() { return random_.Chance(50) ? DType::kFloat32 : DType::kBFloat16; }

  Shape RandomShape(DType dtype) {
    const int64_t num_elements = random_.Size(std::max<int64_t>(1, options_.max_bytes / SizeOf(dtype)));
    switch (random_.Below(4)) {
      case 0:
        return random_.Chance(50) ? Shape{} : Shape{1};
      case 1:
        return {num_elements};
      case 2: {
        const int64_t columns = random_.Size(num_elements);
        return {num_elements / columns, columns};
      }
      default: {
        const int64_t columns = random_.Size(num_elements);
        const int64_t rows = random_.Size(num_elements / columns);
        return {num_elements / columns / rows, rows, columns};
      }
    }
  }

  // None, one or a few of the units that no call names yet.
  std::vector<UnitId> TakeSome(std::vector<UnitId>& unused) {
    const int64_t draw = random_.Below(100);
    const size_t wanted = draw < 15 ? 0 : draw < 80 ? 1 : draw < 93 ? 2 : 3;
    std::vector<UnitId> taken;
    while (taken.size() < wanted && !unused.empty()) {
      const auto at = unused.begin() + random_.Below(static_cast<int64_t>(unused.size()));
      taken.push_back(*at);
      unused.erase(at);
    }
    return taken;
  }

  // A call that names these units for the first time, and perhaps some that others name.
  void AddCall(const std::vector<UnitId>& units) {
    CallSpec call;
    call.name = absl::StrCat("c", num_calls_++);
    NameUnits(units, call);
    ReadSome(call);
    const int64_t num_outputs = random_.Chance(80) ? 1 : 2;
    for (int64_t i = 0; i < num_outputs; ++i) {
      const TensorId id = builder_.AddActivation(RandomTensor(absl::StrCat(call.name, ".y", i)));
      call.outputs.push_back(id);
      unread_.push_back(id);
    }
    if (random_.Chance(15)) call.outputs.push_back(builder_.AddOutput(RandomTensor(absl::StrCat(call.name, ".out"))));
    for (TensorId id : call.inputs) MaybeSave(id, 60, call);
    for (TensorId id : call.outputs) MaybeSave(id, 30, call);
    if (random_.Chance(25)) {
      call.saved.push_back(builder_.AddActivation(RandomTensor(absl::StrCat(call.name, ".private"))));
    }
    if (random_.Chance(25)) call.scratch_bytes = random_.Size(options_.max_bytes);
    call.recompute = random_.Chance(20);
    builder_.AddCall(std::move(call));
  }

  void MaybeSave(TensorId id, int percent, CallSpec& call) {
    if (random_.Chance(percent)) call.saved.push_back(id);
  }

  void NameUnits(const std::vector<UnitId>& units, CallSpec& call) {
    for (UnitId unit : units) {
      (random_.Chance(15) ? call.forward_only_units : call.units).push_back(unit);
    }
    const auto named_here = [&](UnitId unit) {
      return std::count(call.units.begin(), call.units.end(), unit) +
                 std::count(call.forward_only_units.begin(), call.forward_only_units.end(), unit) >
             0;
    };
    if (!named_.empty() && random_.Chance(20)) {
      const UnitId again = Pick(named_);
      if (!named_here(again)) call.units.push_back(again);
    }
    if (!named_.empty() && random_.Chance(15)) {
      const UnitId tied = Pick(named_);
      if (!named_here(tied)) call.parameters.push_back(Pick(parameters_[tied.value()]));
    }
    named_.insert(named_.end(), units.begin(), units.end());
  }

  // The newest activation mostly, some that nothing has read, some that others read too, and some inputs.
  void ReadSome(CallSpec& call) {
    if (!read_.empty() && random_.Chance(25)) call.inputs.push_back(Pick(read_));
    if (unread_.empty() || random_.Chance(10)) call.inputs.push_back(AddFloatInput(call.name));
    if (random_.Chance(10)) call.inputs.push_back(AddIntegerInput(call.name));
    std::vector<TensorId> still_unread;
    for (size_t i = 0; i < unread_.size(); ++i) {
      const bool newest = i + 1 == unread_.size();
      const bool read = random_.Chance(newest ? 90 : 35);
      (read ? call.inputs : still_unread).push_back(unread_[i]);
      if (read) read_.push_back(unread_[i]);
    }
    unread_ = std::move(still_unread);
  }

  TensorId AddFloatInput(const std::string& call) {
    const TensorId id = builder_.AddInput(RandomTensor(absl::StrCat(call, ".x")));
    if (random_.Chance(30)) builder_.KeepGradient(id);
    if (random_.Chance(50)) read_.push_back(id);
    return id;
  }

  TensorId AddIntegerInput(const std::string& call) {
    return builder_.AddInput(
        {.name = absl::StrCat(call, ".labels"), .shape = RandomShape(DType::kInt32), .dtype = DType::kInt32});
  }

  TensorSpec RandomTensor(std::string name) {
    TensorSpec spec;
    spec.name = std::move(name);
    spec.dtype = RandomDType();
    spec.shape = RandomShape(spec.dtype);
    return spec;
  }

  // Reads everything that is left, so that all of it counts.
  void AddLoss() {
    CallSpec call;
    call.name = "loss";
    call.inputs = unread_;
    if (random_.Chance(40)) call.inputs.push_back(AddIntegerInput(call.name));
    for (TensorId id : call.inputs) MaybeSave(id, 80, call);
    const TensorId loss = builder_.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
    call.outputs.push_back(loss);
    builder_.AddCall(std::move(call));
    builder_.SetLoss(loss);
  }

  template <class T>
  const T& Pick(const std::vector<T>& list) {
    return list[random_.Below(static_cast<int64_t>(list.size()))];
  }

  Random random_;
  const RandomModelOptions options_;
  ModelBuilder builder_;
  std::vector<UnitId> units_;
  std::vector<std::vector<ParameterId>> parameters_;  // by unit
  std::vector<UnitId> named_;                         // by the calls so far
  std::vector<TensorId> unread_, read_;               // floating-point values by whether a call has read them
  int num_calls_ = 0;
};

}  // namespace

int64_t Random::Size(int64_t bound) {
  int64_t limit = 1;
  while (limit < bound && Chance(85)) limit *= 2;
  return 1 + Below(std::min(limit, bound));
}

Model RandomModel(uint64_t seed, const RandomModelOptions& options) {
  return RandomModelBuilder(seed, options).Build();
}

PlanOptions RandomPlanOptions(Random& random) {
  PlanOptions options;
  options.prefetch_depth = static_cast<int>(random.Below(3));
  options.gradient_slots = 4;
  options.microbatches_per_graph = 1 + static_cast<int>(random.Below(2));
  options.residency = random.Chance(50) ? Residency::kKeep : Residency::kOff;
  options.reduce = random.Chance(30) ? Reduce::kOncePerStep : Reduce::kEveryMicrobatch;
  options.tail = options.reduce == Reduce::kEveryMicrobatch && random.Chance(50) ? Tail::kCarried : Tail::kInGraph;
  options.transports = EveryUnit(random.Chance(50) ? Transport::kNccl : Transport::kSymmetric);
  if (options.transports == EveryUnit(Transport::kNccl) && random.Chance(50)) options.sum = Sum::kNccl;
  if (!options.sum.has_value() && random.Chance(30)) {
    options.transports = {{random.Below(2000), Transport::kCopyEngine}, {3000, Transport::kSymmetric}};
  }
  options.reduce_dtype = random.Chance(50) ? DType::kBFloat16 : DType::kFloat32;
  return options;
}

}  // namespace reprise::testing
