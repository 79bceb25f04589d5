// Counts the allocations of a test's C++ code.
#ifndef REPRISE_TESTS_GRAPH_CUDA_ALLOCATION_COUNT_H_
#define REPRISE_TESTS_GRAPH_CUDA_ALLOCATION_COUNT_H_

#include <cstdint>

namespace reprise::testing {

// By operator new, of all threads, since the program started. Linking this in replaces operator new.
int64_t AllocationCount();

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_CUDA_ALLOCATION_COUNT_H_
