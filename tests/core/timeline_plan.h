// A plan made by hand, and timelines of it, for tests of what reads timelines.
#ifndef REPRISE_TESTS_CORE_TIMELINE_PLAN_H_
#define REPRISE_TESTS_CORE_TIMELINE_PLAN_H_

#include <string>

#include "reprise/core/timeline.h"
#include "tests/testing/plan_builder.h"

namespace reprise::testing {

// "body" on units u0 and u1, of 256 and 512 elements, whose collectives move 256 and 512 bytes:
//   #1 gathers u0, #2 gathers u1, #3 and #4 are forward of c0 and c1, #5 is backward of c1 and #6 reduces u1, #7 is
//   backward of c0 and #8 reduces u0.
// `first_waits_for` is the gather that #3 waits for; #4 waits for #2. Then "finish", of which #1 reduces u0.
inline Plan TimelinePlan(const std::string& first_unit = "u0", int first_waits_for = 1) {
  PlanBuilder b;
  const UnitId u0 = b.Unit(first_unit, 256), u1 = b.Unit("u1", 512);
  const CallId c0 = b.Call("c0"), c1 = b.Call("c1");
  b.Start("body", 1);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(AllGather{u0, 0, Transport::kNccl, AxisId(0)}, Lane::kAllGather, {}, {Fork(0)});
  b.Command(AllGather{u1, 1, Transport::kNccl, AxisId(0)}, Lane::kAllGather);
  b.Command(Forward{c0}, Lane::kCompute, {}, {Data(first_waits_for)});
  b.Command(Forward{c1}, Lane::kCompute, {}, {Data(2)});
  b.Command(Backward{c1}, Lane::kCompute);
  b.Command(ReduceScatter{u1, 0, 0, Transport::kNccl, Sum::kNccl, AxisId(0)}, Lane::kReduceScatter, {}, {Data(5)});
  b.Command(Backward{c0}, Lane::kCompute);
  b.Command(ReduceScatter{u0, 0, 1, Transport::kNccl, Sum::kNccl, AxisId(0)}, Lane::kReduceScatter, {}, {Data(7)});
  b.Command(End{}, Lane::kCompute, {}, {Join(8)});
  b.Start("finish", 0);
  b.Command(Begin{}, Lane::kCompute);
  b.Command(ReduceScatter{u0, -1, 0, Transport::kNccl, Sum::kNccl, AxisId(0)}, Lane::kReduceScatter, {}, {Fork(0)});
  b.Command(End{}, Lane::kCompute, {}, {Join(1)});
  return b.Build();
}

// Of the first schedule, on rank 0.
inline CommandSpan Span(int command, double start_us, double end_us) {
  return {.command = CommandId(command), .start_us = start_us, .end_us = end_us};
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_CORE_TIMELINE_PLAN_H_
