// What a plan's fingerprint stands for, piece by piece and for people: where two ranks' fingerprints differ, the first
// fact that differs says what.
#ifndef REPRISE_CORE_PLAN_PLAN_FACTS_H_
#define REPRISE_CORE_PLAN_PLAN_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "reprise/core/plan.h"

namespace reprise::internal {

struct Fact {
  // Ascends in a list. Of two lists that are equal up to a place, the one whose section is higher there lacks what the
  // other one has; in the same section both speak of the same subject.
  int64_t section = 0;
  std::string subject;  // "parameter 3", "command 17 of schedule "body""
  std::string name;     // where the subject has one
  std::string value;    // "f32[64,64] of linear2"
};

// Every field of the plan but its fingerprint; what tells most comes first. No text has a line break.
std::vector<Fact> FactsOf(const Plan& plan);

// One line of Model::ToString: the three texts one after the other, with a space between the first two.
struct ModelLine {
  absl::string_view kind;  // "unit", "parameter", a tensor's kind, "call" or "loss"
  std::string name, rest;
};
std::vector<ModelLine> LinesOf(const Model& model);

}  // namespace reprise::internal

#endif  // REPRISE_CORE_PLAN_PLAN_FACTS_H_
