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

bool IsValid(int32_t label, int64_t classes) { return label >= 0 && label < classes; }

// exponentials = exp(row - max); their sum is `sum`.
struct Softmax {
  float max, sum;
};
Softmax Exponentials(const float* row, int64_t classes, float* exponentials) {
  const float max = Math().max(row, classes);
  return {max, Math().exp_and_sum(row, max, exponentials, classes)};
}

template <class T>
float MeanLoss(const CrossEntropyArguments& d) {
  const int64_t grain = RowGrain(d.classes);
  std::vector<double> sums((d.rows + grain - 1) / grain, 0.0);
  ParallelForRanges(d.rows, grain, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> buffer = Floats(d.classes), exponentials = Floats(d.classes);
    double sum = 0;
    for (int64_t r = begin; r < end; ++r) {
      const float* row = Load(d.logits.as<T>() + r * d.classes, d.classes, buffer.get());
      const Softmax softmax = Exponentials(row, d.classes, exponentials.get());
      sum += IsValid(d.labels[r], d.classes) ? std::log(softmax.sum) + (softmax.max - row[d.labels[r]]) : kNan;
    }
    sums[begin / grain] = sum;
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return static_cast<float>(total / static_cast<double>(d.rows));
}

template <class T>
void LogitsGradient(const CrossEntropyBackwardArguments& d) {
  const float scale = *d.dloss / static_cast<float>(d.rows);
  ParallelForRanges(d.rows, RowGrain(d.classes), [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> buffer = Floats(d.classes), out = Floats(d.classes);
    for (int64_t r = begin; r < end; ++r) {
      const float* row = Load(d.logits.as<T>() + r * d.classes, d.classes, buffer.get());
      const Softmax softmax = Exponentials(row, d.classes, out.get());
      const bool valid = IsValid(d.labels[r], d.classes);
      const float factor = valid ? scale / softmax.sum : kNan;
      for (int64_t c = 0; c < d.classes; ++c) out[c] *= factor;
      if (valid) out[d.labels[r]] -= scale;
      Store(out.get(), d.classes, d.dlogits.mode, d.dlogits.as<T>() + r * d.classes);
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
  return Enqueue(stream, &DeviceKernels::CrossEntropy,
                 {Rows(logits), Columns(logits), InputOf(logits), labels.data, loss.data},
                 [](const CrossEntropyArguments& a) { *a.loss = MeanLoss<T>(a); });
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
  return Enqueue(stream, &DeviceKernels::CrossEntropyBackward,
                 {Rows(logits), Columns(logits), dloss.data, InputOf(logits), labels.data, OutputOf(dlogits)},
                 LogitsGradient<T>);
}

#define REPRISE_INSTANTIATE(T)                                                                                     \
  template absl::Status CrossEntropy(Stream, TensorView<const T>, TensorView<const int32_t>, TensorView<float>);   \
  template absl::Status CrossEntropyBackward(Stream, TensorView<const float>, Input<T>, TensorView<const int32_t>, \
                                             Gradient<T>);
REPRISE_INSTANTIATE(float)
REPRISE_INSTANTIATE(BFloat16)
#undef REPRISE_INSTANTIATE

}  // namespace reprise::kernels
