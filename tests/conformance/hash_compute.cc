#include "tests/conformance/hash_compute.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "core/planner/model_uses.h"
#include "reprise/core/status_macros.h"

namespace reprise::testing {
namespace {

using internal::CallUses;

// Calls `visit` with a value of the element type.
template <class Visit>
void WithType(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float());
    case DType::kBFloat16:
      return visit(BFloat16());
    case DType::kInt32:
      return visit(int32_t());
    case DType::kUInt8:
      return visit(uint8_t());
  }
}

double Fraction(double value) { return value - std::floor(value); }

struct Places {
  std::vector<std::function<double()>> reads;       // digests
  std::vector<std::function<void(double)>> writes;  // of values made from a digest
};

template <class T>
void AddRead(TensorView<const T> view, Places& places) {
  const int64_t count = view.num_elements();
  places.reads.push_back([data = view.data, count] {
    double digest = 0;
    for (int64_t i = 0; i < count; ++i) {
      digest += static_cast<double>(static_cast<float>(data[i])) * (1.0 + 0.618 * static_cast<double>(i % 89));
    }
    return digest;
  });
}

template <class T>
void AddWrite(TensorView<T> view, WriteMode mode, Places& places) {
  const int64_t count = view.num_elements();
  const double salt = 0.137 * static_cast<double>(places.writes.size());
  const bool adds = mode == WriteMode::kAdd;
  places.writes.push_back([=, data = view.data](double digest) {
    for (int64_t i = 0; i < count; ++i) {
      const double value = Fraction(digest * (1.0 + 0.01 * static_cast<double>(i % 61)) + salt) - 0.5;
      if constexpr (std::is_integral_v<T>) {
        data[i] = std::isnan(value) ? T(99) : T(10 * (value + 0.5));
      } else {
        const float old = adds ? static_cast<float>(data[i]) : 0.0f;
        data[i] = T(old + static_cast<float>(value));
      }
    }
  });
}

// Adds the call's state, then enqueues the call.
absl::Status Run(ComputeContext& context, const CallSpec& call, const Model& model, Places places) {
  for (TensorId t : call.state) {
    WithType(model.tensor(t).spec.dtype, [&](auto type) {
      using T = decltype(type);
      AddRead<T>(context.state<T>(t), places);
      AddWrite<T>(context.state<T>(t), WriteMode::kAssign, places);
    });
  }
  REPRISE_RETURN_IF_ERROR(context.status());
  context.stream().host_queue().Enqueue([places = std::move(places), control = context.control(),
                                         position = context.position(),
                                         scratch = call.scratch_bytes > 0 ? context.scratch() : nullptr,
                                         scratch_bytes = static_cast<size_t>(call.scratch_bytes)] {
    if (scratch != nullptr) std::memset(scratch, 0x5a, scratch_bytes);
    double digest = 0.001 * static_cast<double>(control->earlier_microbatches + control->microbatch) +
                    0.002 * position + control->loss_scale;
    for (size_t r = 0; r < places.reads.size(); ++r) digest += places.reads[r]() * (1.0 + 0.3 * static_cast<double>(r));
    for (const std::function<void(double)>& write : places.writes) write(Fraction(digest));
  });
  return absl::OkStatus();
}

absl::Status Forward(ComputeContext& context, const Model& model, const CallSpec& call, const CallUses& uses) {
  Places places;
  for (ParameterId p : uses.forward_parameters) {
    WithType(model.parameter(p).spec.dtype, [&](auto type) { AddRead(context.parameter<decltype(type)>(p), places); });
  }
  for (TensorId t : uses.inputs) {
    WithType(model.tensor(t).spec.dtype, [&](auto type) { AddRead(context.input<decltype(type)>(t), places); });
  }
  for (TensorId t : call.outputs) {
    WithType(model.tensor(t).spec.dtype,
             [&](auto type) { AddWrite(context.output<decltype(type)>(t), WriteMode::kAssign, places); });
  }
  for (TensorId t : uses.private_tensors) {
    WithType(model.tensor(t).spec.dtype,
             [&](auto type) { AddWrite(context.saved<decltype(type)>(t), WriteMode::kAssign, places); });
  }
  return Run(context, call, model, std::move(places));
}

absl::Status Backward(ComputeContext& context, const Model& model, const CallSpec& call, const CallUses& uses) {
  Places places;
  for (ParameterId p : uses.backward_parameters) {
    WithType(model.parameter(p).spec.dtype, [&](auto type) { AddRead(context.parameter<decltype(type)>(p), places); });
  }
  for (TensorId t : call.saved) {
    WithType(model.tensor(t).spec.dtype, [&](auto type) { AddRead(context.saved<const decltype(type)>(t), places); });
  }
  for (TensorId t : uses.output_gradients) {
    WithType(model.tensor(t).spec.dtype,
             [&](auto type) { AddRead(context.output_gradient<decltype(type)>(t), places); });
  }
  for (TensorId t : uses.input_gradients) {
    WithType(model.tensor(t).spec.dtype, [&](auto type) {
      const auto gradient = context.input_gradient<decltype(type)>(t);
      AddWrite<decltype(type)>(gradient, gradient.mode, places);
    });
  }
  for (ParameterId p : uses.parameter_gradients) {
    WithType(context.parameter_gradient_dtype(p), [&](auto type) {
      const auto gradient = context.parameter_gradient<decltype(type)>(p);
      AddWrite<decltype(type)>(gradient, gradient.mode, places);
    });
  }
  return Run(context, call, model, std::move(places));
}

}  // namespace

absl::StatusOr<ComputeTable> HashCompute(const Model& model) {
  internal::ModelUses uses = internal::ForwardUses(model);
  if (model.loss().valid()) {
    REPRISE_ASSIGN_OR_RETURN(uses, internal::TrainingUses(model));
  }
  ComputeTable table;
  for (size_t c = 0; c < model.calls().size(); ++c) {
    const CallId id(static_cast<int64_t>(c));
    table[id].forward = [&model, id, call = uses.calls[c]](ComputeContext& context) {
      return Forward(context, model, model.call(id), call);
    };
    table[id].backward = [&model, id, call = uses.calls[c]](ComputeContext& context) {
      return Backward(context, model, model.call(id), call);
    };
  }
  return table;
}

float HashParameter(ParameterId parameter, int64_t element) {
  return static_cast<float>(Fraction(0.754877 * static_cast<double>(element + 1) + 0.31 * parameter.value()) - 0.5);
}

double HashInput(int rank, int64_t microbatch, TensorId tensor, int64_t element) {
  return 1 + 9 * Fraction(0.618034 * static_cast<double>(element + 1) + 0.23 * rank +
                          0.71 * static_cast<double>(microbatch) + 0.13 * tensor.value());
}

}  // namespace reprise::testing
