// Kernels that treat every element alike.
#ifndef REPRISE_KERNELS_ELEMENTWISE_H_
#define REPRISE_KERNELS_ELEMENTWISE_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device_kernels.h"
#include "kernels/numeric.h"
#include "kernels/parallel.h"

namespace reprise::kernels {

// out = or += body of `a`: body(a, values, count) on blocks of floats, which writes `values`. out may be an input.
template <class T, class G, class Body>
void MapElements(int64_t count, const T* a, WriteMode mode, G* out, const Body& body) {
  ParallelForRanges(count, kGrain, [&](int64_t begin, int64_t end) {
    float a_buffer[kBlock], values[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      body(Load(a + i, n, a_buffer), values, n);
      Store(values, n, mode, out + i);
    }
  });
}

// The same of two arrays: body(a, b, values, count).
template <class T, class G, class Body>
void MapElements(int64_t count, const T* a, const T* b, WriteMode mode, G* out, const Body& body) {
  ParallelForRanges(count, kGrain, [&](int64_t begin, int64_t end) {
    float a_buffer[kBlock], b_buffer[kBlock], values[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      body(Load(a + i, n, a_buffer), Load(b + i, n, b_buffer), values, n);
      Store(values, n, mode, out + i);
    }
  });
}

// out = or += a.
template <class T, class G>
void CopyElements(int64_t count, const T* a, WriteMode mode, G* out) {
  ParallelForRanges(count, kGrain, [&](int64_t begin, int64_t end) {
    float buffer[kBlock];
    for (int64_t i = begin; i < end; i += kBlock) {
      const int64_t n = std::min(kBlock, end - i);
      Store(Load(a + i, n, buffer), n, mode, out + i);
    }
  });
}

// y = a + b, where b repeats every b_count elements.
template <class T>
void AddRepeated(const AddArguments& a) {
  const T *in = a.a.as<T>(), *repeated = a.b.as<T>();
  T* out = a.y.as<T>();
  ParallelForRanges(a.count, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t first = i % a.b_count, n = std::min(end - i, a.b_count - first);
      for (int64_t j = 0; j < n; ++j) {
        out[i + j] = static_cast<T>(static_cast<float>(in[i + j]) + static_cast<float>(repeated[first + j]));
      }
      i += n;
    }
  });
}

// gradient = or += dy, of T and of G.
template <class T, class G>
absl::Status EnqueueCopy(Stream stream, const TensorView<const T>& dy, const Gradient<G>& gradient) {
  return Enqueue(stream, &DeviceKernels::Copy, {dy.num_elements(), InputOf(dy), OutputOf(gradient)},
                 [](const CopyArguments& a) { CopyElements(a.count, a.from.as<T>(), a.to.mode, a.to.as<G>()); });
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ELEMENTWISE_H_
