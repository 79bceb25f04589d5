#include "examples/reprise_plan/summary.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace reprise {
namespace {

void AddCount(absl::string_view name, int64_t count, std::string& out) {
  absl::StrAppendFormat(&out, "%-28s%20d\n", name, count);
}

}  // namespace

void AddBytes(absl::string_view name, int64_t bytes, std::string& out) {
  absl::StrAppendFormat(&out, "%-28s%20d", absl::StrCat(name, " bytes"), bytes);
  // In the largest unit of which there is at least one; bytes have been said.
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB"};
  double amount = static_cast<double>(bytes);
  int unit = -1;
  for (; amount >= 1024 && unit < 2; ++unit) amount /= 1024;
  if (unit >= 0) absl::StrAppendFormat(&out, "  %12.3f %s", amount, kUnits[unit]);
  out += "\n";
}

std::string SummaryTable(const Plan& plan, const PlanSummary& summary) {
  std::string out;
  AddCount("ranks", plan.world_size(), out);
  AddCount("microbatches", summary.microbatches, out);
  AddCount("units", static_cast<int64_t>(plan.model.units().size()), out);
  std::map<std::string, int64_t> transports;
  for (const UnitPolicy& unit : plan.unit_policies) ++transports[ToText(EveryUnit(unit.transports))];
  for (const auto& [transport, units] : transports) AddCount(absl::StrCat("  by transport ", transport), units, out);
  AddCount("parameters", static_cast<int64_t>(plan.model.parameters().size()), out);
  int64_t elements = 0, bytes = 0;
  for (const Parameter& parameter : plan.model.parameters()) {
    elements += NumElements(parameter.spec.shape);
    bytes += NumElements(parameter.spec.shape) * SizeOf(parameter.spec.dtype);
  }
  AddCount("parameter elements", elements, out);
  AddBytes("parameter", bytes, out);
  out += "\none step\n";
  AddCount("all_gathers", summary.all_gathers, out);
  AddCount("reduce_scatters", summary.reduce_scatters, out);
  AddCount("commands", summary.commands, out);
  AddCount("waits", summary.waits, out);
  out += "\nmemory per rank\n";
  for (int s = 0; s < kNumStorages; ++s) {
    const Storage storage = static_cast<Storage>(s);
    if (storage != Storage::kExternal) AddBytes(Name(storage), plan.memory.num_bytes[s], out);
  }
  AddBytes("persistent", summary.persistent_bytes, out);
  AddBytes("transient", summary.transient_bytes, out);
  AddBytes("transient lower bound", summary.transient_lower_bound_bytes, out);
  const double bound = static_cast<double>(summary.transient_lower_bound_bytes);
  const double ratio = bound == 0 ? 1.0 : static_cast<double>(summary.transient_bytes) / bound;
  absl::StrAppendFormat(&out, "%-28s%20.3f\n", "transient / lower bound", ratio);
  absl::StrAppendFormat(&out, "\nfingerprint %s\n", summary.fingerprint.ToString());
  return out;
}

}  // namespace reprise
