// A small plan made by hand, with every kind of command and a value in every list. Not one that Verify accepts: it is
// for what reads plans without judging them.
#ifndef REPRISE_TESTS_CORE_SAMPLE_PLAN_H_
#define REPRISE_TESTS_CORE_SAMPLE_PLAN_H_

#include "reprise/core/plan.h"

namespace reprise::testing {

Model SampleModel(const char* unit_name = "u0");
Plan SamplePlan();

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_CORE_SAMPLE_PLAN_H_
