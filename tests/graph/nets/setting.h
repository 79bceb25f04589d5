// Random settings in which nets train.
#ifndef REPRISE_TESTS_GRAPH_NETS_SETTING_H_
#define REPRISE_TESTS_GRAPH_NETS_SETTING_H_

#include <string>
#include <vector>

#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "tests/graph/nets/net.h"
#include "tests/testing/random_model.h"

namespace reprise::testing {

struct NetStep {
  StepValues values = {};
  int discard_after = -1;       // DiscardGradients after that many microbatches instead of EndStep
  bool reads_gradients = true;  // before EndStep
  int evaluations = 0;          // after the step, by a forward session
  int writes_between = -1;      // a parameter to be written after the first evaluation
  int writes = -1;              // a parameter to be written before the step
  bool infinite = false;        // one element of one rank's inputs is infinite
  int session = 0;              // 1: the other training session on the same parameters makes it
};

struct NetSetting {
  HostWorldOptions world = {};
  TrainOptions train = {};
  PlanOptions other_plan = {};  // of the other session, if a step names it
  bool marks_changed = false;   // MarkParametersChanged before each step
  bool asks = false;            // FindNonFinite after steps with infinite inputs
  DType master = DType::kFloat32;
  bool shares_arena = false;  // by the forward session
  bool forward_session = false;
  RunOptions forward = {};
  std::vector<NetStep> steps;

  std::string ToString() const;
};
NetSetting RandomNetSetting(const Net& net, Random& random);
// Other settings that a training's bits do not depend on: the order of replay, slots, prefetch, residency, tail,
// microbatches per graph, execution, MarkParametersChanged, FindNonFinite, and which of the transports that exchange
// parts.
NetSetting WithTheSameBits(const Net& net, const NetSetting& setting, Random& random);

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_NETS_SETTING_H_
