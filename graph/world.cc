#include "graph/machine.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/model/quoted.h"
#include "graph/agree_on_plan.h"
#include "graph/comm/bootstrap.h"
#include "graph/in_use.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

void Shift(double microseconds, Timeline& timeline) {
  for (CommandSpan& span : timeline.spans) {
    span.start_us += microseconds;
    span.end_us += microseconds;
    for (Activity& activity : span.activities) {
      activity.start_us += microseconds;
      activity.end_us += microseconds;
    }
  }
}

absl::Status CheckExecution(Execution execution) {
  switch (execution) {
    case Execution::kGraph:
    case Execution::kEager:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("execution is ", static_cast<int>(execution), ", which does not exist; use graph or eager"));
}

// There must be a plan, and an address for each of its buffers that has bytes on each rank.
absl::Status CheckBindings(const Bindings* bindings) {
  if (bindings == nullptr || bindings->plan == nullptr) {
    return absl::InvalidArgumentError("a recorder needs bindings with a plan");
  }
  const std::vector<Buffer>& buffers = bindings->plan->buffers;
  const size_t ranks = bindings->ranks.size();
  if (bindings->addresses.size() != ranks) {
    return absl::InvalidArgumentError(absl::StrCat("there are addresses for ", bindings->addresses.size(), " ranks of ",
                                                   ranks, "; bind every local rank"));
  }
  for (size_t local = 0; local < ranks; ++local) {
    const std::vector<std::byte*>& addresses = bindings->addresses[local];
    if (addresses.size() != buffers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", bindings->ranks[local], " has ", addresses.size(),
                                                     " addresses for ", buffers.size(),
                                                     " buffers; bind every buffer of the plan"));
    }
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (addresses[b] != nullptr || buffers[b].num_bytes == 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("buffer ", Quoted(buffers[b].name), " has no address on rank ",
                                                     bindings->ranks[local], "; bind every buffer before recording"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status InUse::Refuse(const char* call) const {
  const char* const inside = call_.load(std::memory_order_relaxed);
  return absl::FailedPreconditionError(absl::StrCat(
      call, ": another thread is inside ", inside == nullptr ? "a call" : inside,
      " of this world or of what was made from it; let threads take turns, as by a mutex that is held for a "
      "whole step or evaluation"));
}

Machine::Machine(std::shared_ptr<Bootstrap> ranks) : ranks_(std::move(ranks)), in_use_(std::make_unique<InUse>()) {}
Machine::~Machine() = default;

MemoryKind MemoryKindOf(Storage storage) {
  switch (storage) {
    case Storage::kWeights:
    case Storage::kGradients:
    case Storage::kCommunicating:
      return MemoryKind::kCommunicating;
    case Storage::kHostVisible:
      return MemoryKind::kHostVisible;
    case Storage::kMasters:
    case Storage::kSession:
    case Storage::kLocal:
    case Storage::kExternal:
      return MemoryKind::kLocal;
  }
  return MemoryKind::kLocal;
}

absl::StatusOr<CostFile> Machine::Measure(const MeasureOptions&) {
  return absl::UnavailableError(
      "host ranks cannot be measured: all transports and kernels are alike there; measure in a CUDA world");
}

absl::StatusOr<std::vector<std::string>> Machine::ExchangeBytes(absl::string_view what,
                                                                absl::Span<const std::string> one_per_local_rank) {
  if (one_per_local_rank.size() != local_ranks().size()) {
    return absl::InvalidArgumentError(absl::StrCat(one_per_local_rank.size(), " ranks give bytes, but ",
                                                   local_ranks().size(), " are local; give one string for each"));
  }
  if (ranks_ != nullptr) return ranks_->Exchange(what, one_per_local_rank[0]);
  return std::vector<std::string>(one_per_local_rank.begin(), one_per_local_rank.end());
}
absl::Status Machine::AgreeOn(absl::string_view what, const absl::Status& mine, absl::Span<const AgreedValue> values) {
  return ranks_ == nullptr ? mine : ranks_->AgreeOn(what, mine, values);
}
absl::StatusOr<int64_t> Machine::Announce(absl::string_view what, const absl::Status& mine,
                                          absl::Span<const AgreedValue> values) {
  if (ranks_ != nullptr) return ranks_->Announce(what, mine, values);
  return mine.ok() ? absl::StatusOr<int64_t>(0) : mine;
}
absl::Status Machine::Announced(int64_t ticket) {
  return ranks_ == nullptr ? absl::OkStatus() : ranks_->Announced(ticket);
}
absl::Status Machine::Progress(int64_t ticket) {
  return ranks_ == nullptr ? absl::OkStatus() : ranks_->Progress(ticket);
}
absl::Status Machine::NoteLaunch(uint64_t key, absl::string_view name) {
  return ranks_ == nullptr ? absl::OkStatus() : ranks_->NoteLaunch(key, name);
}
int64_t Machine::num_exchanges() const { return ranks_ == nullptr ? 0 : ranks_->num_exchanges(); }
void Machine::TellFailure(const absl::Status& status) {
  if (ranks_ != nullptr) ranks_->TellFailure(status);
}

absl::Status Machine::Agree(absl::string_view phase, const absl::Status& mine, const Fingerprint& fingerprint) {
  if (!mine.ok()) TellFailure(mine);
  const AgreedValue values[] = {AgreedValue::Hash("first half of the fingerprint", fingerprint.high),
                                AgreedValue::Hash("second half of the fingerprint", fingerprint.low)};
  const std::vector<std::string> votes(local_ranks().size(), EncodePart(phase, {}, EncodeValues(mine, values)));
  const absl::StatusOr<std::vector<std::string>> all = ExchangeBytes(absl::StrCat("vote\non ", phase), votes);
  REPRISE_RETURN_IF_ERROR(mine);
  REPRISE_RETURN_IF_ERROR(all.status());
  std::vector<CallPart> parts;
  for (size_t rank = 0; rank < all->size(); ++rank) {
    REPRISE_ASSIGN_OR_RETURN(parts.emplace_back(), DecodePart(static_cast<int>(rank), (*all)[rank]));
  }
  bool same_launches = true;
  absl::Status verdict = CheckValues(parts, values, same_launches);
  // First, because a rank that fails may be in an earlier phase than the others for that reason.
  if (!same_launches) return verdict;
  REPRISE_RETURN_IF_ERROR(CheckSameCall(parts));
  return verdict;
}

absl::Status Machine::CheckRecordable(Execution execution, const Bindings* bindings) const {
  REPRISE_RETURN_IF_ERROR(CheckExecution(execution));
  REPRISE_RETURN_IF_ERROR(CheckBindings(bindings));
  const absl::Span<const int> here = local_ranks();
  if (bindings->plan->world_size() == size() && absl::MakeConstSpan(bindings->ranks) == here) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the bindings are of ranks [", absl::StrJoin(bindings->ranks, ","),
                                                 "] and a plan for ", bindings->plan->world_size(),
                                                 ", but this world has ", size(), ", of which ranks [",
                                                 absl::StrJoin(here, ","), "] are local; bind World::local_ranks()"));
}

absl::StatusOr<std::unique_ptr<Executable>> Machine::Record(Execution execution,
                                                            std::shared_ptr<const Bindings> bindings, int schedule) {
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Recorder> recorder, NewRecorder(execution, std::move(bindings)));
  return RecordSchedule(schedule, *recorder);
}

absl::Status Machine::CheckAccess(int local, const void* a, const void* b, int64_t num_bytes) const {
  const int num_local = static_cast<int>(local_ranks().size());
  const bool is_null = num_bytes > 0 && (a == nullptr || b == nullptr);
  if (local >= 0 && local < num_local && num_bytes >= 0 && !is_null) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(num_bytes, " bytes", is_null ? " at a null address" : "",
                                                 " on local rank ", local, " of ", num_local, " cannot be accessed"));
}

absl::Status Machine::BeginProfile(const Fingerprint&) {
  return absl::UnavailableError("this world cannot time its replays");
}

absl::StatusOr<Machine::LocalProfile> Machine::EndProfile() {
  return absl::UnavailableError("this world cannot time its replays");
}

Timeline Machine::Join(std::vector<LocalProfile> profiles) {
  Timeline joined;
  for (LocalProfile& profile : profiles) {
    Shift(static_cast<double>(profile.origin_ns - profiles[0].origin_ns) / 1000, profile.timeline);
    std::move(profile.timeline.spans.begin(), profile.timeline.spans.end(), std::back_inserter(joined.spans));
  }
  std::sort(joined.spans.begin(), joined.spans.end(), [](const CommandSpan& a, const CommandSpan& b) {
    return std::tie(a.rank, a.replay, a.command) < std::tie(b.rank, b.replay, b.command);
  });
  double start = std::numeric_limits<double>::infinity();
  for (const CommandSpan& span : joined.spans) start = std::min(start, span.start_us);
  Shift(-start, joined);
  return joined;
}

}  // namespace reprise::internal

namespace reprise {

using internal::Machine;
using internal::MachineOf;

absl::StatusOr<double> World::Sum(absl::Span<const double> one_per_local_rank, absl::string_view of) {
  REPRISE_ENTER(*this, "World::Sum");
  std::vector<std::string> mine;
  for (const double value : one_per_local_rank) mine.emplace_back(reinterpret_cast<const char*>(&value), sizeof(value));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           MachineOf(*this).ExchangeBytes(absl::StrCat("Sum of ", of), mine));
  double sum = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    double value = 0;
    if (all[rank].size() != sizeof(value)) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " gave ", all[rank].size(), " bytes where a sum expects ", sizeof(value),
                       "; make the same collective calls in the same order on every rank"));
    }
    std::memcpy(&value, all[rank].data(), sizeof(value));
    sum += value;
  }
  return sum;
}

absl::Status World::StartProfile(const Plan& plan) {
  REPRISE_ENTER(*this, "World::StartProfile");
  Machine& machine = MachineOf(*this);
  if (profiles_) return absl::FailedPreconditionError("a profile is open; call StopProfile first");
  if (plan.world_size() != size()) {
    return absl::InvalidArgumentError(absl::StrCat("a plan for ", plan.world_size(), " ranks cannot replay on ", size(),
                                                   "; give the plan of a session of this world"));
  }
  absl::Status status = Synchronize();
  if (status.ok()) status = machine.BeginProfile(plan.fingerprint);
  profiles_ = status.ok();
  absl::Status all = internal::AgreeOnPlan(machine, "starting a profile", status, plan);
  if (!all.ok() && std::exchange(profiles_, false)) machine.EndProfile().IgnoreError();
  return all;
}

absl::StatusOr<Timeline> World::StopProfile() {
  REPRISE_ENTER(*this, "World::StopProfile");
  Machine& machine = MachineOf(*this);
  if (!profiles_) return absl::FailedPreconditionError("no profile is open; call StartProfile first");
  profiles_ = false;
  const absl::StatusOr<Machine::LocalProfile> mine = machine.EndProfile();
  REPRISE_RETURN_IF_ERROR(machine.Agree("profiling", mine.status(), {}));
  // One local rank gives the spans of all.
  std::vector<std::string> texts(local_ranks().size());
  texts[0] = absl::StrCat(mine->origin_ns, "\n", ToJson(mine->timeline));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, machine.ExchangeBytes("StopProfile", texts));
  std::vector<Machine::LocalProfile> profiles;
  for (const std::string& text : all) {
    if (text.empty()) continue;
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('\n', 1));
    Machine::LocalProfile& profile = profiles.emplace_back();
    if (!absl::SimpleAtoi(parts.first, &profile.origin_ns)) {
      return absl::FailedPreconditionError(
          "a rank sent something else than its profile; make the same collective calls in the same order on every "
          "rank");
    }
    REPRISE_ASSIGN_OR_RETURN(profile.timeline, TimelineFromJson(parts.second));
  }
  return Machine::Join(std::move(profiles));
}

}  // namespace reprise
