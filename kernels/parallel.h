// Work shared by the cores of this machine. Private to the library.
#ifndef REPRISE_KERNELS_PARALLEL_H_
#define REPRISE_KERNELS_PARALLEL_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace reprise::kernels {

// Calls body(0) to body(count - 1), each once, on this thread and on those of a pool that lives as long as the
// process (fewer than cores, even none, where the system gives no more), and returns when all are done. The calls may
// run in any order and must not throw. A call from inside a body, or while another thread has the pool, runs serially
// on the calling thread; so callers split work by its shape alone, and no result depends on who ran what.
void ParallelFor(int64_t count, absl::FunctionRef<void(int64_t)> body);

// While it lives, a ParallelFor on the thread that made it uses at most `threads` threads, that one among them; 0: all.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

  // That of this thread; 0 without one.
  static int Current();

 private:
  const int outer_;
};

// Splits [0, size) into consecutive ranges of `grain` (the last may be shorter) and calls body(begin, end) for each.
template <class Body>
void ParallelForRanges(int64_t size, int64_t grain, const Body& body) {
  ParallelFor((size + grain - 1) / grain, [&](int64_t i) { body(i * grain, std::min(size, (i + 1) * grain)); });
}

// A range of about this many elements of cheap arithmetic outweighs waking a thread (some 10 microseconds).
inline constexpr int64_t kGrain = 32768;
// The same for rows of `columns` elements: rows per range.
inline int64_t RowGrain(int64_t columns) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, columns)); }

}  // namespace reprise::kernels

#endif  // REPRISE_KERNELS_PARALLEL_H_
