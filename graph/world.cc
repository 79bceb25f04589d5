#include "reprise/graph/world.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "graph/agree_on_plan.h"
#include "graph/in_use.h"
#include "graph/rank_list.h"
#include "reprise/core/status_macros.h"

namespace reprise {
namespace {

template <class T>
std::string ToBytes(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
// False if there are too few bytes.
template <class T>
bool FromBytes(absl::string_view bytes, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return true;
}

// What a rank says about itself in a vote, followed on the wire by its phase and its status' text.
struct VoteHead {
  uint64_t high = 0, low = 0;  // fingerprint
  int32_t code = 0;            // of its status
  uint32_t phase_bytes = 0;
};

struct Vote {
  Fingerprint fingerprint;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string phase, text;
};

std::string Encode(absl::string_view phase, const absl::Status& status, const Fingerprint& fingerprint) {
  const VoteHead head = {fingerprint.high, fingerprint.low, status.raw_code(), static_cast<uint32_t>(phase.size())};
  return absl::StrCat(ToBytes(head), phase, std::string(status.message()));
}

absl::StatusOr<std::vector<Vote>> Decode(const std::vector<std::string>& all) {
  std::vector<Vote> votes;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    VoteHead head;
    if (!FromBytes(all[rank], head) || all[rank].size() - sizeof(head) < head.phase_bytes) {
      return absl::InternalError(
          absl::StrCat("the vote of rank ", rank, " has ", all[rank].size(),
                       " bytes and cannot be read; run one version of the library on all ranks"));
    }
    votes.push_back({{head.high, head.low},
                     static_cast<absl::StatusCode>(head.code),
                     all[rank].substr(sizeof(head), head.phase_bytes),
                     all[rank].substr(sizeof(head) + head.phase_bytes)});
  }
  return votes;
}

// Those for which `is` holds.
template <class Predicate>
std::string RanksWhere(const std::vector<Vote>& votes, const Predicate& is) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (is(votes[rank])) ranks.push_back(static_cast<int>(rank));
  }
  return internal::RankList(ranks);
}

// Of what `of` says of each vote.
template <class Of>
std::string Difference(const std::vector<Vote>& votes, absl::string_view what, const Of& of) {
  std::vector<std::string> by_rank;
  for (const Vote& vote : votes) by_rank.push_back(of(vote));
  return internal::Difference(what, by_rank);
}

absl::Status Judge(absl::string_view phase, const std::vector<Vote>& votes) {
  // First, because a rank that fails may be in an earlier phase than the others for that reason.
  const auto failed = [](const Vote& vote) { return vote.code != absl::StatusCode::kOk; };
  const auto first_failed = std::find_if(votes.begin(), votes.end(), failed);
  if (first_failed != votes.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(first_failed->phase, " failed on ", RanksWhere(votes, failed), " of ", votes.size(), ": ",
                     absl::StatusCodeToString(first_failed->code), ": ", first_failed->text,
                     "; every rank stops here, mend the cause on the ranks named"));
  }
  const std::string phases = Difference(votes, "phase", [](const Vote& vote) { return vote.phase; });
  if (!phases.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ranks disagree: ", phases, "; make the same collective calls in the same order on every rank"));
  }
  const std::string fingerprints =
      Difference(votes, "fingerprint", [](const Vote& vote) { return vote.fingerprint.ToString(); });
  if (fingerprints.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(phase, ": ranks disagree: ", fingerprints, "; give every rank the same model, options and library"));
}

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

}  // namespace

absl::Status internal::InUse::Refuse(const char* call) const {
  const char* const inside = call_.load(std::memory_order_relaxed);
  return absl::FailedPreconditionError(absl::StrCat(
      call, ": another thread is inside ", inside == nullptr ? "a call" : inside,
      " of this world or of what was made from it; let threads take turns, as by a mutex that is held for a "
      "whole step or evaluation"));
}

World::World() : in_use_(std::make_unique<internal::InUse>()) {}
World::~World() = default;

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

absl::Status World::AgreeOn(absl::string_view what, const absl::Status& mine, absl::Span<const AgreedValue> values) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t ticket, Announce(what, mine, values));
  return Announced(ticket);
}

absl::StatusOr<double> World::Sum(absl::Span<const double> one_per_local_rank, absl::string_view of) {
  REPRISE_ENTER(*this, "World::Sum");
  std::vector<std::string> mine;
  for (const double value : one_per_local_rank) mine.push_back(ToBytes(value));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, ExchangeBytes(absl::StrCat("Sum of ", of), mine));
  double sum = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    double value = 0;
    if (all[rank].size() != sizeof(value) || !FromBytes(all[rank], value)) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " gave ", all[rank].size(), " bytes where a sum expects ", sizeof(value),
                       "; make the same collective calls in the same order on every rank"));
    }
    sum += value;
  }
  return sum;
}

absl::Status World::Agree(absl::string_view phase, const absl::Status& mine, const Fingerprint& fingerprint) {
  REPRISE_ENTER(*this, "World::Agree");
  if (!mine.ok()) TellFailure(mine);
  const std::vector<std::string> votes(local_ranks().size(), Encode(phase, mine, fingerprint));
  const absl::StatusOr<std::vector<std::string>> all = ExchangeBytes(absl::StrCat("vote\non ", phase), votes);
  REPRISE_RETURN_IF_ERROR(mine);
  REPRISE_RETURN_IF_ERROR(all.status());
  REPRISE_ASSIGN_OR_RETURN(const std::vector<Vote> decoded, Decode(*all));
  return Judge(phase, decoded);
}

absl::Status World::BeginProfile(const Fingerprint&) {
  return absl::UnavailableError("this world cannot time its replays");
}

absl::StatusOr<World::LocalProfile> World::EndProfile() {
  return absl::UnavailableError("this world cannot time its replays");
}

Timeline World::Join(std::vector<LocalProfile> profiles) {
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

absl::Status World::StartProfile(const Plan& plan) {
  REPRISE_ENTER(*this, "World::StartProfile");
  if (profiles_) return absl::FailedPreconditionError("a profile is open; call StopProfile first");
  if (plan.world_size() != size()) {
    return absl::InvalidArgumentError(absl::StrCat("a plan for ", plan.world_size(), " ranks cannot replay on ", size(),
                                                   "; give the plan of a session of this world"));
  }
  absl::Status status = Synchronize();
  if (status.ok()) status = BeginProfile(plan.fingerprint);
  profiles_ = status.ok();
  absl::Status all = internal::AgreeOnPlan(*this, "starting a profile", status, plan);
  if (!all.ok() && std::exchange(profiles_, false)) EndProfile().IgnoreError();
  return all;
}

absl::StatusOr<Timeline> World::StopProfile() {
  REPRISE_ENTER(*this, "World::StopProfile");
  if (!profiles_) return absl::FailedPreconditionError("no profile is open; call StartProfile first");
  profiles_ = false;
  const absl::StatusOr<LocalProfile> mine = EndProfile();
  REPRISE_RETURN_IF_ERROR(Agree("profiling", mine.status(), {}));
  // One local rank gives the spans of all.
  std::vector<std::string> texts(local_ranks().size());
  texts[0] = absl::StrCat(mine->origin_ns, "\n", ToJson(mine->timeline));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, ExchangeBytes("StopProfile", texts));
  std::vector<LocalProfile> profiles;
  for (const std::string& text : all) {
    if (text.empty()) continue;
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('\n', 1));
    LocalProfile& profile = profiles.emplace_back();
    if (!absl::SimpleAtoi(parts.first, &profile.origin_ns)) {
      return absl::FailedPreconditionError(
          "a rank sent something else than its profile; make the same collective calls in the same order on every "
          "rank");
    }
    REPRISE_ASSIGN_OR_RETURN(profile.timeline, TimelineFromJson(parts.second));
  }
  return Join(std::move(profiles));
}

}  // namespace reprise
