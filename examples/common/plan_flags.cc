#include "examples/common/plan_flags.h"

#include <string>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"

namespace reprise::examples {
namespace {

std::string Help(absl::string_view name) {
  for (const PlanOptionText& option : PlanOptionTexts()) {
    if (option.name != name) continue;
    const std::string words = option.words();
    return absl::StrCat(words, words.empty() ? "" : ": ", option.help, "; not given: the program's choice");
  }
  return "";
}

}  // namespace
}  // namespace reprise::examples

#define REPRISE_PLAN_FLAG(name) ABSL_FLAG(std::string, name, "", reprise::examples::Help(#name))
REPRISE_PLAN_FLAG(prefetch_depth);
REPRISE_PLAN_FLAG(weight_slots);
REPRISE_PLAN_FLAG(gradient_slots);
REPRISE_PLAN_FLAG(microbatches_per_graph);
REPRISE_PLAN_FLAG(residency);
REPRISE_PLAN_FLAG(reduce);
REPRISE_PLAN_FLAG(tail);
REPRISE_PLAN_FLAG(transports);
REPRISE_PLAN_FLAG(sum);
REPRISE_PLAN_FLAG(reduce_dtype);
REPRISE_PLAN_FLAG(master_dtype);

namespace reprise::examples {

absl::StatusOr<PlanOptions> ReadPlanFlags(PlanOptions options) {
  for (const PlanOptionText& option : PlanOptionTexts()) {
    absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(option.name);
    const std::string text = flag == nullptr ? "" : flag->CurrentValue();
    if (text.empty()) continue;
    if (const absl::Status status = option.set(options, text); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", option.name, " ", std::string(status.message())));
    }
  }
  return options;
}

}  // namespace reprise::examples
