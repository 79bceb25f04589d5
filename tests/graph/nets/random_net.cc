// RandomNet, and what a net says of itself.
#include "tests/graph/nets/net.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/random_model.h"

namespace reprise::testing {
namespace {

constexpr int kMaxHeads = 3;

// Draws stand in statements of their own: the order in which arguments are evaluated depends on the compiler.
class NetGenerator {
 public:
  explicit NetGenerator(uint64_t seed) : random_(seed) { net_.seed = seed; }

  Net Generate() && {
    ChooseSizes();
    AddSource();
    const int64_t calls = Chance(5) ? 10 + random_.Below(20) : 1 + random_.Below(9);
    for (int64_t i = 0; i < calls; ++i) AddSomething();
    AddHeads();
    AddIdleParameters();
    ShuffleParametersAndUnits();
    NameUnits();
    MarkOutputs();
    return std::move(net_);
  }

 private:
  void ChooseSizes() {
    const int64_t time = 1 + random_.Below(5);
    net_.lead = {time};
    if (random_.Chance(50)) net_.lead.insert(net_.lead.begin(), 1 + random_.Below(3));
    const int64_t widths = 1 + random_.Below(3);
    for (int64_t i = 0; i < widths; ++i)
      widths_.push_back(random_.Chance(15) ? random_.Size(40) : 1 + random_.Below(9));
    const int64_t dtypes = random_.Below(100);
    mixed_ = dtypes >= 80;
    dtype_ = dtypes < 45 ? DType::kFloat32 : DType::kBFloat16;
    max_units_ = static_cast<int>(1 + random_.Below(6));
  }

  DType DrawDType() { return !mixed_ ? dtype_ : random_.Chance(50) ? DType::kFloat32 : DType::kBFloat16; }
  int64_t DrawWidth() { return widths_[random_.Below(static_cast<int64_t>(widths_.size()))]; }
  bool Chance(int percent) { return random_.Chance(percent); }

  int AddValue(NetValue value) {
    const int id = static_cast<int>(net_.values.size());
    value.name = absl::StrCat("v", id);
    net_.values.push_back(std::move(value));
    readers_.push_back(0);
    return id;
  }

  int AddIntegers(int64_t bound) {
    for (size_t i = 0; i < net_.integers.size(); ++i) {
      if (net_.integers[i].bound == bound && Chance(50)) return static_cast<int>(i);
    }
    net_.integers.push_back({absl::StrCat("ids", net_.integers.size()), bound});
    return static_cast<int>(net_.integers.size()) - 1;
  }

  int DrawUnit() {
    if (net_.num_units == 0 || (net_.num_units < max_units_ && Chance(55))) return net_.num_units++;
    return static_cast<int>(random_.Below(net_.num_units));
  }

  // Perhaps one that there is: parameters of equal shape and dtype may be tied.
  int AddParameter(Shape shape, DType dtype, float mean, float deviation) {
    for (size_t p = 0; p < net_.parameters.size(); ++p) {
      const NetParameter& other = net_.parameters[p];
      if (other.spec.shape == shape && other.spec.dtype == dtype && other.mean == mean && Chance(30)) {
        return static_cast<int>(p);
      }
    }
    NetParameter parameter;
    parameter.unit = DrawUnit();
    parameter.spec = {.name = "", .shape = std::move(shape), .dtype = dtype, .trainable = !Chance(15)};
    if (Chance(15)) parameter.spec.reduce_dtype = Chance(50) ? DType::kFloat32 : DType::kBFloat16;
    parameter.mean = mean;
    parameter.deviation = deviation;
    net_.parameters.push_back(std::move(parameter));
    return static_cast<int>(net_.parameters.size()) - 1;
  }
  int AddWeight(int64_t out, int64_t in, DType dtype) {
    return AddParameter({out, in}, dtype, 0, 1.5f / std::sqrt(static_cast<float>(in)));
  }

  // Adds the call with one output of this width and dtype, and gives that.
  int AddCall(NetCall call, int64_t width, DType dtype, bool scalar = false) {
    const int y = AddValue({.name = "", .scalar = scalar, .width = width, .dtype = dtype});
    call.outputs = {y};
    AddCall(std::move(call));
    return y;
  }
  void AddCall(NetCall call) {
    for (const int x : call.inputs) ++readers_[x];
    call.recompute = Chance(12);
    net_.calls.push_back(std::move(call));
  }

  int AddSource() {
    const int64_t width = DrawWidth();
    const DType dtype = DrawDType();
    if (Chance(70)) {
      NetValue input = {.name = "", .kind = TensorKind::kInput, .width = width, .dtype = dtype};
      input.keep_gradient = Chance(40);
      input.external = Chance(7);
      return AddValue(std::move(input));
    }
    const int64_t entries = Chance(50) ? width : 1 + random_.Below(12);
    const int ids = AddIntegers(entries);
    return AddCall({.op = NetOp::kEmbedding, .parameters = {AddWeight(entries, width, dtype)}, .integers = ids}, width,
                   dtype);
  }

  std::vector<int> Unread() const {
    std::vector<int> unread;
    for (size_t v = 0; v < readers_.size(); ++v) {
      if (readers_[v] == 0 && !net_.values[v].scalar && net_.values[v].kind != TensorKind::kOutput) {
        unread.push_back(static_cast<int>(v));
      }
    }
    return unread;
  }

  // Mostly one that nothing reads yet, often another, so that branches part and meet.
  int DrawValue() {
    const std::vector<int> unread = Unread();
    if (!unread.empty() && Chance(70)) return unread[random_.Below(static_cast<int64_t>(unread.size()))];
    while (true) {
      const int v = static_cast<int>(random_.Below(static_cast<int64_t>(net_.values.size())));
      if (!net_.values[v].scalar && net_.values[v].kind != TensorKind::kOutput) return v;
    }
  }

  void AddSomething() {
    if (Chance(12)) AddSource();
    const int x = DrawValue();
    const NetValue value = net_.values[x];
    const int64_t width = value.width;
    const DType dtype = value.dtype;
    const int64_t out = DrawWidth();
    switch (random_.Below(14)) {
      case 0:
      case 1:
        AddLinear(x, out);
        return;
      case 2:
        AddCall({.op = NetOp::kLinearGelu, .inputs = {x}, .parameters = {AddWeight(out, width, dtype)}}, out, dtype);
        return;
      case 3: {
        const int up = AddWeight(out, width, dtype);
        const int down = AddWeight(width, out, dtype);
        AddCall({.op = NetOp::kMlp, .inputs = {x}, .parameters = {up, down}}, width, dtype);
        return;
      }
      case 4: {
        const bool saves_output = Chance(50);
        AddCall({.op = NetOp::kRelu, .inputs = {x}, .saves_output = saves_output}, width, dtype);
        return;
      }
      case 5:
        AddCall({.op = NetOp::kGelu, .inputs = {x}}, width, dtype);
        return;
      case 6:
      case 7:
        AddMeeting(x, DrawValue());
        return;
      case 8: {
        const int gain = AddParameter({width}, dtype, 1, 0.25f);
        const float epsilon = Chance(50) ? 1e-5f : 0.1f;
        AddCall({.op = NetOp::kRmsNorm, .inputs = {x}, .parameters = {gain}, .epsilon = epsilon}, width, dtype);
        return;
      }
      case 9:
        AddCall({.op = NetOp::kBias, .inputs = {x}, .parameters = {AddParameter({width}, dtype, 0, 0.5f)}}, width,
                dtype);
        return;
      case 10: {
        const int64_t context = net_.lead.back() + random_.Below(3);
        AddCall({.op = NetOp::kPositions, .inputs = {x}, .parameters = {AddWeight(context, width, dtype)}}, width,
                dtype);
        return;
      }
      case 11: {
        const int heads = static_cast<int>(1 + random_.Below(2));
        const int64_t inner = heads * (1 + random_.Below(4));
        const int qkv = AddLinear(x, 3 * inner);
        AddCall({.op = NetOp::kAttention, .inputs = {qkv}, .heads = heads}, inner, dtype);
        return;
      }
      case 12:
        AddAffine(x, DrawDType());
        return;
      case 13:
        AddFork(x);
        return;
    }
  }

  int AddLinear(int x, int64_t out) {
    const NetValue value = net_.values[x];
    const int w = AddWeight(out, value.width, value.dtype);
    return AddCall({.op = NetOp::kLinear, .inputs = {x}, .parameters = {w}}, out, value.dtype);
  }
  int AddAffine(int x, DType dtype) {
    const int64_t width = net_.values[x].width;
    const DType scale_dtype = DrawDType(), shift_dtype = DrawDType();
    const int scale = AddParameter({width}, scale_dtype, 1, 0.25f);
    const int shift = AddParameter({width}, shift_dtype, 0, 0.5f);
    return AddCall({.op = NetOp::kAffine, .inputs = {x}, .parameters = {scale, shift}}, width, dtype);
  }
  void AddFork(int x) {
    const int64_t width = net_.values[x].width;
    const DType first = DrawDType(), second = DrawDType(), factor = DrawDType();
    NetCall call = {.op = NetOp::kFork, .inputs = {x}};
    call.parameters = {AddParameter(Chance(50) ? Shape{} : Shape{1}, factor, 1, 0.25f)};
    call.outputs = {AddValue({.name = "", .width = width, .dtype = first})};
    call.outputs.push_back(AddValue({.name = "", .width = width, .dtype = second}));
    if (Chance(30)) {
      call.outputs.push_back(AddValue({.name = "", .kind = TensorKind::kOutput, .width = width, .dtype = second}));
    }
    AddCall(std::move(call));
  }

  // Adds or multiplies two values, the second brought to the first's width.
  int AddMeeting(int a, int b) {
    const int64_t width = net_.values[a].width;
    const DType dtype = net_.values[a].dtype;
    if (a == b || net_.values[b].width != width) b = AddLinear(b, width);
    if (net_.values[b].dtype != dtype || gates_ == 0) {
      if (gates_ < 2 && Chance(50)) {
        ++gates_;
        return AddCall({.op = NetOp::kGate, .inputs = {a, b}}, width, DrawDType());
      }
      if (net_.values[b].dtype != dtype) b = AddAffine(b, dtype);
    }
    return AddCall({.op = NetOp::kAdd, .inputs = {a, b}}, width, dtype);
  }

  // Joins what nothing reads until few are left, each of which gets a loss; the loss is their weighted sum.
  void AddHeads() {
    std::vector<int> unread = Unread();
    if (unread.empty()) unread.push_back(DrawValue());
    const size_t wanted = static_cast<size_t>(1 + random_.Below(kMaxHeads));
    while (unread.size() > wanted) {
      const int b = unread.back();
      unread.pop_back();
      const int a = unread.back();
      unread.pop_back();
      unread.push_back(AddMeeting(a, b));
    }
    std::vector<int> losses;
    for (const int x : unread) losses.push_back(AddHead(x));
    if (losses.size() == 1) {
      net_.loss = losses[0];
    } else {
      NetCall call = {.op = NetOp::kWeighted, .inputs = losses};
      net_.loss = AddCall(std::move(call), 1, DType::kFloat32, /*scalar=*/true);
    }
    net_.values[net_.loss].kind = TensorKind::kOutput;
    TrainSomething();
  }

  int AddHead(int x) {
    if (net_.parameters.empty()) x = AddLinear(x, DrawWidth());
    if (Chance(25)) return AddCall({.op = NetOp::kSquares, .inputs = {x}}, 1, DType::kFloat32, /*scalar=*/true);
    if (net_.values[x].width == 1 || Chance(60)) x = AddLinear(x, 2 + random_.Below(6));
    const int labels = AddIntegers(net_.values[x].width);
    return AddCall({.op = NetOp::kCrossEntropy, .inputs = {x}, .integers = labels}, 1, DType::kFloat32,
                   /*scalar=*/true);
  }

  void TrainSomething() {
    const auto trainable = [](const NetParameter& p) { return p.spec.trainable; };
    if (std::any_of(net_.parameters.begin(), net_.parameters.end(), trainable)) return;
    net_.parameters[random_.Below(static_cast<int64_t>(net_.parameters.size()))].spec.trainable = true;
  }

  // Without elements, or read by nothing.
  void AddIdleParameters() {
    for (int64_t i = Chance(60) ? 0 : 1 + random_.Below(2); i > 0; --i) {
      NetParameter parameter;
      parameter.unit = DrawUnit();
      const Shape shape = Chance(50) ? Shape{0, 3} : Shape{1 + random_.Below(90)};
      const DType dtype = DrawDType();
      parameter.spec = {.name = "", .shape = shape, .dtype = dtype, .trainable = !Chance(20)};
      parameter.allow_unused = true;
      net_.parameters.push_back(std::move(parameter));
    }
  }

  std::vector<int> Permutation(size_t size) {
    std::vector<int> order(size);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = size; i > 1; --i) std::swap(order[i - 1], order[random_.Below(static_cast<int64_t>(i))]);
    return order;
  }

  void ShuffleParametersAndUnits() {
    if (Chance(50)) {
      const std::vector<int> unit = Permutation(net_.num_units);
      for (NetParameter& parameter : net_.parameters) parameter.unit = unit[parameter.unit];
    }
    if (Chance(50)) {
      const std::vector<int> place = Permutation(net_.parameters.size());
      std::vector<NetParameter> shuffled(place.size());
      for (size_t p = 0; p < place.size(); ++p) shuffled[place[p]] = std::move(net_.parameters[p]);
      net_.parameters = std::move(shuffled);
      for (NetCall& call : net_.calls) {
        for (int& p : call.parameters) p = place[p];
      }
    }
    for (size_t p = 0; p < net_.parameters.size(); ++p) {
      net_.parameters[p].spec.name = absl::StrCat("p", p);
    }
  }

  void NameUnits() {
    for (NetCall& call : net_.calls) {
      std::set<int> units;
      for (const int p : call.parameters) units.insert(net_.parameters[p].unit);
      for (const int unit : units) {
        if (Chance(40)) call.whole_units.push_back(unit);
      }
      const bool reads_none = call.op == NetOp::kEmbedding || call.op == NetOp::kBias || call.op == NetOp::kPositions;
      call.forward_only = reads_none && Chance(60);
    }
  }

  void MarkOutputs() {
    for (NetValue& value : net_.values) {
      if (value.kind == TensorKind::kActivation && Chance(12)) value.kind = TensorKind::kOutput;
    }
  }

  Random random_;
  Net net_;
  std::vector<int64_t> widths_;
  std::vector<int> readers_;  // by value: calls that read it
  DType dtype_ = DType::kFloat32;
  bool mixed_ = false;
  int max_units_ = 1;
  int gates_ = 0;
};

}  // namespace

const char* Name(NetOp op) {
  switch (op) {
    case NetOp::kLinear:
      return "linear";
    case NetOp::kLinearGelu:
      return "linear_gelu";
    case NetOp::kMlp:
      return "mlp";
    case NetOp::kRelu:
      return "relu";
    case NetOp::kGelu:
      return "gelu";
    case NetOp::kAdd:
      return "add";
    case NetOp::kRmsNorm:
      return "rms_norm";
    case NetOp::kBias:
      return "bias";
    case NetOp::kEmbedding:
      return "embedding";
    case NetOp::kPositions:
      return "positions";
    case NetOp::kAttention:
      return "attention";
    case NetOp::kCrossEntropy:
      return "cross_entropy";
    case NetOp::kAffine:
      return "affine";
    case NetOp::kFork:
      return "fork";
    case NetOp::kGate:
      return "gate";
    case NetOp::kSquares:
      return "squares";
    case NetOp::kWeighted:
      return "weighted";
  }
  return "";
}

Net RandomNet(uint64_t seed) { return NetGenerator(seed).Generate(); }

int Net::units_of_a_call() const {
  size_t most = 1;
  for (const NetCall& call : calls) {
    std::set<int> units;
    for (const int p : call.parameters) units.insert(parameters[p].unit);
    most = std::max(most, units.size());
  }
  return static_cast<int>(most);
}

std::string Net::ToString() const {
  std::string text = absl::StrCat("net ", seed, ", rows [", absl::StrJoin(lead, ", "), "]\n");
  for (const NetParameter& p : parameters) {
    absl::StrAppend(
        &text, "  ", p.spec.name, " unit ", p.unit, " [", absl::StrJoin(p.spec.shape, ", "), "] ",
        std::string(Name(p.spec.dtype)), p.spec.trainable ? "" : " frozen", p.allow_unused ? " unused" : "",
        p.spec.reduce_dtype.has_value() ? absl::StrCat(" reduce_dtype ", std::string(Name(*p.spec.reduce_dtype))) : "",
        "\n");
  }
  for (const NetCall& call : calls) {
    const auto name = [&](std::string* out, int v) {
      absl::StrAppend(out, values[v].name, ":", std::string(Name(values[v].dtype)), "x", values[v].width,
                      values[v].kind == TensorKind::kActivation ? "" : " ",
                      values[v].kind == TensorKind::kActivation ? "" : std::string(Name(values[v].kind)));
    };
    absl::StrAppend(&text, "  ", absl::StrJoin(call.outputs, ", ", name), " = ", Name(call.op), "(",
                    absl::StrJoin(call.inputs, ", ", name), ")");
    for (const int p : call.parameters) absl::StrAppend(&text, " ", parameters[p].spec.name);
    if (call.integers >= 0) absl::StrAppend(&text, " ", integers[call.integers].name);
    for (const int unit : call.whole_units) {
      absl::StrAppend(&text, " unit ", unit, call.forward_only ? " forward only" : "");
    }
    absl::StrAppend(&text, call.recompute ? " recompute" : "", "\n");
  }
  return text;
}

NetBatch MakeBatch(const Net& net, int64_t step, int microbatch, int rank) {
  Random random(net.seed * 1000003 + static_cast<uint64_t>((step * 64 + microbatch) * 64 + rank));
  NetBatch batch;
  for (const NetValue& value : net.values) {
    std::vector<float>& values = batch.values.emplace_back();
    if (value.kind != TensorKind::kInput) continue;
    for (int64_t i = 0; i < net.elements(value); ++i) {
      values.push_back(static_cast<float>(random.Below(257) - 128) / 128);
    }
  }
  for (const NetIntegers& integers : net.integers) {
    std::vector<int32_t>& ids = batch.integers.emplace_back();
    for (int64_t i = 0; i < net.rows(); ++i) ids.push_back(static_cast<int32_t>(random.Below(integers.bound)));
  }
  return batch;
}

}  // namespace reprise::testing
