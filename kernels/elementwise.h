// Kernels that treat every element alike.
#ifndef REPRISE_KERNELS_ELEMENTWISE_H_
#define REPRISE_KERNELS_ELEMENTWISE_H_

#include <algorithm>
#include <cstdint>

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

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_ELEMENTWISE_H_
