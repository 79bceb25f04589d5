#include "reprise/kernels/cross_entropy.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/checks.h"
#include "kernels/device_kernels.h"
#include "kernels/host_math.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"
#include "reprise/core/status_macros.h"

namespace reprise::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct LogitsShape {
  int64_t rows, classes;
  bool Valid(int32_t label) const { return label >= 0 && label < classes; }
};

// exponentials = exp(row - max); their sum is `sum`.
struct Softmax {
  float max, sum;
};
Softmax Exponentials(const float* row, int64_t classes, float* exponentials) {
  const float max = Math().max(row, classes);
  return {max, Math().exp_and_sum(row, max, exponentials, classes)};
}

template <class T>
float MeanLoss(LogitsShape d, const T* logits, const int32_t* labels) {
  const int64_t grain = RowGrain(d.classes);
  std::vector<double> sums((d.rows + grain - 1) / grain, 0.0);
  ParallelForRanges(d.rows, grain, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> buffer = Floats(d.classes), exponentials = Floats(d.classes);
    double sum = 0;
    for (int64_t r = begin; r < end; ++r) {
      const float* row = Load(logits + r * d.classes, d.classes, buffer.get());
      const Softmax softmax = Exponentials(row, d.classes, exponentials.get());
      sum += d.Valid(labels[r]) ? std::log(softmax.sum) + (softmax.max - row[labels[r]]) : kNan;
    }
    sums[begin / grain] = sum;
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return static_cast<float>(total / static_cast<double>(d.rows));
}

template <class T>
void LogitsGradient(LogitsShape d, float dloss, const T* logits, const int32_t* labels, WriteMode mode, T* dlogits) {
  const float scale = dloss / static_cast<float>(d.rows);
  ParallelForRanges(d.rows, RowGrain(d.classes), [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> buffer = Floats(d.classes), out = Floats(d.classes);
    for (int64_t r = begin; r < end; ++r) {
      const float* row = Load(logits + r * d.classes, d.classes, buffer.get());
      const Softmax softmax = Exponentials(row, d.classes, out.get());
      const bool valid = d.Valid(labels[r]);
      const float factor = valid ? scale / softmax.sum : kNan;
      for (int64_t c = 0; c < d.classes; ++c) out[c] *= factor;
      if (valid) out[labels[r]] -= scale;
      Store(out.get(), d.classes, mode, dlogits + r * d.classes);
    }
  });
}

Checks& Check(Checks& checks, absl::Span<const int64_t> logits, absl::Span<const int64_t> labels) {
  return checks.Equal("number of labels", NumElements(labels), "rows of logits", Rows(logits))
      .AtLeast("rows of logits", Rows(logits), 1)
      .AtLeast("columns of logits", Columns(logits), 1);
}

}  // namespace

template <KernelElement T>
absl::Status CrossEntropy(Stream stream, TensorView<const T> logits, TensorView<const int32_t> labels,
                          TensorView<float> loss) {
  Checks checks("CrossEntropy");
  checks.Present("logits", logits).Present("labels", labels).Present("loss", loss);
  REPRISE_RETURN_IF_ERROR(
      Check(checks, logits.shape, labels.shape).Equal("elements of loss", NumElements(loss.shape), "scalar", 1).Done());
  const LogitsShape d = {Rows(logits), Columns(logits)};
  if (!stream.is_host()) {
    return stream.device_kernels().CrossEntropy(d.rows, d.classes, InputOf(logits), labels.data, loss.data);
  }
  stream.host_queue().Enqueue(
      [d, logits = logits.data, labels = labels.data, loss = loss.data] { *loss = MeanLoss(d, logits, labels); });
  return absl::OkStatus();
}

template <KernelElement T>
absl::Status CrossEntropyBackward(Stream stream, TensorView<const float> dloss, Input<T> logits,
                                  TensorView<const int32_t> labels, Gradient<T> dlogits) {
  Checks checks("CrossEntropyBackward");
  checks.Present("dloss", dloss).Present("logits", logits).Present("labels", labels);
  REPRISE_RETURN_IF_ERROR(Check(checks, logits.shape, labels.shape)
                              .Equal("elements of dloss", NumElements(dloss.shape), "scalar", 1)
                              .Wanted("dlogits", dlogits, "logits", logits)
                              .Done());
  if (!dlogits) return absl::OkStatus();
  const LogitsShape d = {Rows(logits), Columns(logits)};
  if (!stream.is_host()) {
    return stream.device_kernels().CrossEntropyBackward(d.rows, d.classes, dloss.data, InputOf(logits), labels.data,
                                                        OutputOf(dlogits));
  }
  stream.host_queue().Enqueue([d, dloss = dloss.data, logits = logits.data, labels = labels.data, mode = dlogits.mode,
                               dlogits = dlogits.data] { LogitsGradient(d, *dloss, logits, labels, mode, dlogits); });
  return absl::OkStatus();
}

#define REPRISE_INSTANTIATE(T)                                                                                     \
  template absl::Status CrossEntropy(Stream, TensorView<const T>, TensorView<const int32_t>, TensorView<float>);   \
  template absl::Status CrossEntropyBackward(Stream, TensorView<const float>, Input<T>, TensorView<const int32_t>, \
                                             Gradient<T>);
REPRISE_INSTANTIATE(float)
REPRISE_INSTANTIATE(BFloat16)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
