// Functions by hand, on elements of any dtype.
#include <vector>

#include "reprise/core/status_macros.h"
#include "tests/graph/nets/functions.h"

namespace reprise::testing {
namespace {

struct Elements {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t count = 0;

  float operator[](int64_t i) const {
    return dtype == DType::kFloat32 ? static_cast<const float*>(data)[i] : float(static_cast<const BFloat16*>(data)[i]);
  }
};
struct Target {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t count = 0;
  WriteMode mode = WriteMode::kAssign;

  explicit operator bool() const { return data != nullptr; }
  void Write(int64_t i, float value) const {
    if (dtype == DType::kFloat32) {
      float& to = static_cast<float*>(data)[i];
      to = mode == WriteMode::kAdd ? to + value : value;
    } else {
      BFloat16& to = static_cast<BFloat16*>(data)[i];
      to = BFloat16(mode == WriteMode::kAdd ? float(to) + value : value);
    }
  }
};

template <class Body>
auto ByDType(DType dtype, const Body& body) {
  return dtype == DType::kFloat32 ? body(float()) : body(BFloat16());
}
template <class T>
Elements ElementsOf(TensorView<const T> view) {
  return {view.data, DTypeOf<T>::value, view.num_elements()};
}
template <class T>
Target TargetOf(const Gradient<T>& gradient) {
  return {gradient.data, DTypeOf<T>::value, gradient.num_elements(), gradient.mode};
}
Elements InputOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return ElementsOf<decltype(t)>(c.input<decltype(t)>(id)); });
}
Elements SavedOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return ElementsOf<decltype(t)>(c.saved<const decltype(t)>(id)); });
}
Elements ParameterOf(ComputeContext& c, ParameterId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return ElementsOf<decltype(t)>(c.parameter<decltype(t)>(id)); });
}
Elements OutputGradientOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return ElementsOf<decltype(t)>(c.output_gradient<decltype(t)>(id)); });
}
Target OutputOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) {
    const auto view = c.output<decltype(t)>(id);
    return Target{view.data, dtype, view.num_elements()};
  });
}
Target InputGradientOf(ComputeContext& c, TensorId id, DType dtype) {
  return ByDType(dtype, [&](auto t) { return TargetOf(c.input_gradient<decltype(t)>(id)); });
}
Target ParameterGradientOf(ComputeContext& c, ParameterId id) {
  return ByDType(c.parameter_gradient_dtype(id),
                 [&](auto t) { return TargetOf(c.parameter_gradient<decltype(t)>(id)); });
}

}  // namespace

absl::Status AffineForward(ComputeContext& c, const CallIds& ids) {
  const Elements x = InputOf(c, ids.in[0], ids.in_dtypes[0]);
  const Elements scale = ParameterOf(c, ids.p[0], ids.p_dtypes[0]), shift = ParameterOf(c, ids.p[1], ids.p_dtypes[1]);
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; i < x.count; ++i) y.Write(i, x[i] * scale[i % scale.count] + shift[i % scale.count]);
  });
  return absl::OkStatus();
}
absl::Status AffineBackward(ComputeContext& c, const CallIds& ids) {
  const Elements x = SavedOf(c, ids.in[0], ids.in_dtypes[0]), scale = ParameterOf(c, ids.p[0], ids.p_dtypes[0]);
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  const Target dx = InputGradientOf(c, ids.in[0], ids.in_dtypes[0]);
  const Target dscale = ParameterGradientOf(c, ids.p[0]), dshift = ParameterGradientOf(c, ids.p[1]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t j = 0; j < scale.count; ++j) {
      float scale_sum = 0, shift_sum = 0;
      for (int64_t i = j; i < x.count; i += scale.count) {
        scale_sum += dy[i] * x[i];
        shift_sum += dy[i];
        if (dx) dx.Write(i, dy[i] * scale[j]);
      }
      if (dscale) dscale.Write(j, scale_sum);
      if (dshift) dshift.Write(j, shift_sum);
    }
  });
  return absl::OkStatus();
}

absl::Status ForkForward(ComputeContext& c, const CallIds& ids) {
  const Elements x = InputOf(c, ids.in[0], ids.in_dtypes[0]), factor = ParameterOf(c, ids.p[0], ids.p_dtypes[0]);
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]), copy = OutputOf(c, ids.out[1], ids.out_dtypes[1]);
  const Target twice = ids.out.size() > 2 ? OutputOf(c, ids.out[2], ids.out_dtypes[2]) : Target();
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; i < x.count; ++i) {
      y.Write(i, x[i] * factor[0]);
      copy.Write(i, x[i]);
      if (twice) twice.Write(i, 2 * x[i]);
    }
  });
  return absl::OkStatus();
}
absl::Status ForkBackward(ComputeContext& c, const CallIds& ids) {
  const Elements x = SavedOf(c, ids.in[0], ids.in_dtypes[0]), factor = ParameterOf(c, ids.p[0], ids.p_dtypes[0]);
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  const Elements dcopy = OutputGradientOf(c, ids.out[1], ids.out_dtypes[1]);
  const Target dx = InputGradientOf(c, ids.in[0], ids.in_dtypes[0]), dfactor = ParameterGradientOf(c, ids.p[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    float sum = 0;
    for (int64_t i = 0; i < x.count; ++i) {
      sum += dy[i] * x[i];
      if (dx) dx.Write(i, dy[i] * factor[0] + dcopy[i]);
    }
    if (dfactor) dfactor.Write(0, sum);
  });
  return absl::OkStatus();
}

absl::Status GateForward(ComputeContext& c, const CallIds& ids) {
  const Elements a = InputOf(c, ids.in[0], ids.in_dtypes[0]), b = InputOf(c, ids.in[1], ids.in_dtypes[1]);
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; i < a.count; ++i) y.Write(i, a[i] * b[i]);
  });
  return absl::OkStatus();
}
absl::Status GateBackward(ComputeContext& c, const CallIds& ids) {
  const Elements a = SavedOf(c, ids.in[0], ids.in_dtypes[0]), b = SavedOf(c, ids.in[1], ids.in_dtypes[1]);
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  const Target da = InputGradientOf(c, ids.in[0], ids.in_dtypes[0]);
  const Target db = InputGradientOf(c, ids.in[1], ids.in_dtypes[1]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; i < a.count; ++i) {
      if (da) da.Write(i, dy[i] * b[i]);
      if (db) db.Write(i, dy[i] * a[i]);
    }
  });
  return absl::OkStatus();
}

absl::Status SquaresForward(ComputeContext& c, const CallIds& ids) {
  const Elements x = InputOf(c, ids.in[0], ids.in_dtypes[0]);
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    float sum = 0;
    for (int64_t i = 0; i < x.count; ++i) sum += x[i] * x[i];
    y.Write(0, sum / static_cast<float>(2 * x.count));
  });
  return absl::OkStatus();
}
absl::Status SquaresBackward(ComputeContext& c, const CallIds& ids) {
  const Elements x = SavedOf(c, ids.in[0], ids.in_dtypes[0]);
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  const Target dx = InputGradientOf(c, ids.in[0], ids.in_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (int64_t i = 0; dx && i < x.count; ++i) dx.Write(i, dy[0] * x[i] / static_cast<float>(x.count));
  });
  return absl::OkStatus();
}

absl::Status WeightedForward(ComputeContext& c, const CallIds& ids) {
  std::vector<Elements> x;
  for (const TensorId id : ids.in) x.push_back(InputOf(c, id, DType::kFloat32));
  const Target y = OutputOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    float sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i][0] / static_cast<float>(i + 1);
    y.Write(0, sum);
  });
  return absl::OkStatus();
}
absl::Status WeightedBackward(ComputeContext& c, const CallIds& ids) {
  std::vector<Target> dx;
  for (const TensorId id : ids.in) dx.push_back(InputGradientOf(c, id, DType::kFloat32));
  const Elements dy = OutputGradientOf(c, ids.out[0], ids.out_dtypes[0]);
  REPRISE_RETURN_IF_ERROR(c.status());
  c.stream().host_queue().Enqueue([=] {
    for (size_t i = 0; i < dx.size(); ++i) {
      if (dx[i]) dx[i].Write(0, dy[0] / static_cast<float>(i + 1));
    }
  });
  return absl::OkStatus();
}

absl::Status WriteIdleGradients(ComputeContext& c, const CallIds& ids) {
  for (const ParameterId p : ids.idle) {
    const Target gradient = ParameterGradientOf(c, p);
    REPRISE_RETURN_IF_ERROR(c.status());
    if (!gradient || gradient.mode == WriteMode::kAdd) continue;
    c.stream().host_queue().Enqueue([=] {
      for (int64_t i = 0; i < gradient.count; ++i) gradient.Write(i, 0);
    });
  }
  return absl::OkStatus();
}

}  // namespace reprise::testing
