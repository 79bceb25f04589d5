// The model of a net and its compute functions.
#ifndef REPRISE_TESTS_GRAPH_NETS_NET_MODEL_H_
#define REPRISE_TESTS_GRAPH_NETS_NET_MODEL_H_

#include <vector>

#include "reprise/core/compute.h"
#include "reprise/core/model.h"
#include "tests/graph/nets/net.h"

namespace reprise::testing {

struct BuiltNet {
  Model model;  // parameters have the indices of Net
  ComputeTable compute;
  std::vector<TensorId> values, integers;  // by index into Net
};
BuiltNet Build(const Net& net);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_NET_MODEL_H_
