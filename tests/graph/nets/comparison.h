// A training of a net against a plain program in double precision: one rank, no shards, the whole batch.
#ifndef REPRISE_TESTS_GRAPH_NETS_COMPARISON_H_
#define REPRISE_TESTS_GRAPH_NETS_COMPARISON_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/graph/nets/training.h"

namespace reprise::testing {

// What comparisons found, by what was compared.
struct NetComparison {
  struct Kind {
    int64_t numbers = 0;
    double largest = 0;             // of abs(difference) / bound
    double bounds = 0, values = 0;  // sums of the finite bounds and of the absolute values that they belong to
    int64_t unbounded = 0;          // numbers that have no bound
  };
  std::map<std::string, Kind> kinds;
  std::vector<std::string> failures;

  void Add(const NetComparison& other);
};

// Compares every step with what the program makes of the parameters that the training had before it, so that bounds do
// not grow over steps; the optimizer's state is the program's own over all steps.
//
//   gradient   the mean of the batches' g_i, within e_i of it, by ranks and microbatches, each stored in the reduce
//   dtype's
//              dtype, summed there (default transport) or in float32, and divided in float32:
//              (sum(e_i) + ((1 + ranks) u_reduce + (ranks + microbatches + 3) 2^-24) sum(|g_i| + e_i)) / divisor
//   norm       sqrt(sum(e^2)) + 2 2^-24 norm, over gradients g within e; where they were read e is 2 2^-24 |g|
//   parameter  rate e_update + 2^-24 (n |w| + 8 rate (|update| + decay |w|)), stored in the master's dtype, where
//              e_update carries the errors of gradient, clipping and state through the optimizer's formula; n is 2, and
//              4 with AdamW's decay, which may scale the master before the update is added
void CompareWithProgram(const Net& net, const NetSetting& setting, const NetTrace& trace, NetComparison& result);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_COMPARISON_H_
