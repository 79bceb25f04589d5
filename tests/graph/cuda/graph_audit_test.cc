// What is captured orders what the schedule orders and nothing else, and holds no node that it should not.
#include <string>
#include <vector>

#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

std::vector<PlanOptions> AllOptions() {
  std::vector<PlanOptions> all;
  for (const int weight_slots : {1, 2, 5}) {
    for (const int microbatches : {1, 3}) {
      for (const Residency residency : {Residency::kKeep, Residency::kOff}) {
        for (const Reduce reduce : {Reduce::kEveryMicrobatch, Reduce::kOncePerStep}) {
          for (const Tail tail : {Tail::kInGraph, Tail::kCarried}) {
            if (reduce == Reduce::kOncePerStep && tail == Tail::kCarried) continue;
            all.push_back({.weight_slots = weight_slots,
                           .microbatches_per_graph = microbatches,
                           .residency = residency,
                           .reduce = reduce,
                           .tail = tail});
          }
        }
      }
    }
  }
  return all;
}

int64_t NumCollectives(const Schedule& schedule) {
  int64_t count = 0;
  for (const ScheduledCommand& command : schedule.commands) count += IsCollective(command.command) ? 1 : 0;
  return count;
}

TEST(GraphAuditTest, ConcurrentCommandsStayConcurrentOnWindows) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  const Classifier classifier = MakeClassifier(5, DType::kBFloat16);
  for (const Transport transport : {Transport::kSymmetric, Transport::kCopyEngine}) {
    for (const PlanOptions& options :
         {PlanOptions{.transports = EveryUnit(transport)},
          PlanOptions{.microbatches_per_graph = 3, .transports = EveryUnit(transport)},
          PlanOptions{
              .reduce = Reduce::kOncePerStep, .transports = EveryUnit(transport), .reduce_dtype = DType::kFloat32}}) {
      REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, world->size(), options));
      REPRISE_ASSERT_OK_AND_ASSIGN(const auto runner,
                                   PlanRunner::Create(world, plan, classifier.compute, ClassifierParameter));
      for (size_t s = 0; s < plan.schedules.size(); ++s) {
        SCOPED_TRACE(std::string(Name(transport)) + " " + plan.schedules[s].name);
        const GraphAudit audit = runner->audit(static_cast<int>(s));
        EXPECT_EQ(audit.added_orders, 0);
        EXPECT_EQ(audit.events, 0);
        // Copy engines wait and tell by batched memory operations.
        EXPECT_EQ(audit.others > 0,
                  transport == Transport::kCopyEngine && world->size() > 1 && static_cast<int>(s) != plan.step);
      }
    }
  }
}

TEST(GraphAuditTest, ConcurrentCommandsStayConcurrent) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  const Classifier classifier = MakeClassifier(5, DType::kBFloat16);
  for (const PlanOptions& options : AllOptions()) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, world->size(), options));
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto runner,
                                 PlanRunner::Create(world, plan, classifier.compute, ClassifierParameter));
    for (size_t s = 0; s < plan.schedules.size(); ++s) {
      SCOPED_TRACE(ToText(plan).substr(0, 400) + plan.schedules[s].name);
      const GraphAudit audit = runner->audit(static_cast<int>(s));
      EXPECT_EQ(audit.added_orders, 0);
      EXPECT_EQ(audit.events, 0);
      EXPECT_EQ(audit.others, 0);
      EXPECT_GT(audit.kernels, 0);
      // Alone a rank copies; with others each collective is at least a kernel.
      const int64_t collectives = NumCollectives(plan.schedules[s]);
      if (world->size() > 1) {
        EXPECT_GE(audit.kernels, collectives);
        EXPECT_EQ(audit.communication_ctas > 0, collectives > 0);
      }
    }
  }
}

}  // namespace
}  // namespace reprise::testing
