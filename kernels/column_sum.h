// The gradient of a vector that was used for every row.
#ifndef REPRISE_KERNELS_COLUMN_SUM_H_
#define REPRISE_KERNELS_COLUMN_SUM_H_

#include <algorithm>
#include <cstdint>

#include "kernels/numeric.h"
#include "kernels/parallel.h"

namespace reprise::kernels {

// out[c] gets the sum over rows of row r's values: add_row(r, sums) adds those of one row to `columns` float sums. Rows
// are summed in ranges of fixed size, and the ranges in order.
template <class G, class AddRow>
void ColumnSum(int64_t rows, int64_t columns, WriteMode mode, G* out, const AddRow& add_row) {
  // At most 64 ranges: their sums are kept, `columns` floats each.
  const int64_t grain = std::max(RowGrain(columns), (rows + 63) / 64);
  const int64_t ranges = (rows + grain - 1) / grain;
  const std::unique_ptr<float[]> sums = Floats(std::max<int64_t>(1, ranges) * columns);
  std::fill_n(sums.get(), std::max<int64_t>(1, ranges) * columns, 0.0f);
  ParallelForRanges(rows, grain, [&](int64_t begin, int64_t end) {
    float* range_sums = sums.get() + begin / grain * columns;
    for (int64_t r = begin; r < end; ++r) add_row(r, range_sums);
  });
  for (int64_t range = 1; range < ranges; ++range) {
    for (int64_t c = 0; c < columns; ++c) sums[c] += sums[range * columns + c];
  }
  Store(sums.get(), columns, mode, out);
}

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_COLUMN_SUM_H_
