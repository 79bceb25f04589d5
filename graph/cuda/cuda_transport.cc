#include "graph/cuda/cuda_transport.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/agree_on_plan.h"
#include "graph/comm/shared_word.h"
#include "graph/cuda/nccl_status.h"
#include "graph/cuda/transports/transport.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// Symmetric kernels of earlier versions corrupt data of some sizes, and addresses of other ranks are new in 2.28.
constexpr int kFirstVersion = 22807;

absl::Status CheckLibraryAndHosts(const CudaRank& rank) {
  int version = 0;
  REPRISE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version), "asking for NCCL's version"));
  if (version < kFirstVersion) {
    return absl::UnavailableError(
        absl::StrCat("NCCL ", NcclVersionName(kFirstVersion), " is needed, but this is ", NcclVersionName(version)));
  }
  if (!rank.one_host()) return absl::UnavailableError("all ranks must be on one host");
  if (rank.queue().has_gave_up_word()) return absl::OkStatus();
  return absl::UnavailableError("the ranks share no memory of their host, see /dev/shm");
}

std::string NameOf(Transport transport) { return absl::StrCat("the transport ", std::string(Name(transport))); }

// (c) Where a rank cannot, its reason, on every rank; other errors are errors.
absl::StatusOr<std::string> FirstReason(Machine& world, absl::string_view phase, const absl::Status& mine) {
  REPRISE_RETURN_IF_ERROR(world.Agree(phase, absl::IsUnavailable(mine) ? absl::OkStatus() : mine, {}));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           world.ExchangeBytes(phase, {std::string(mine.message())}));
  for (const std::string& why : all) {
    if (!why.empty()) return why;
  }
  return std::string();
}

// (c) By rank.
absl::StatusOr<std::vector<uint32_t>> PeerTokens(Machine& world, const CudaRank& rank) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           world.ExchangeBytes("tokens", {absl::StrCat(rank.communicators().peer_token())}));
  std::vector<uint32_t> tokens(texts.size());
  for (size_t r = 0; r < texts.size(); ++r) {
    if (!absl::SimpleAtoi(texts[r], &tokens[r])) return absl::InternalError(absl::StrCat(texts[r], " is no token"));
  }
  return tokens;
}

}  // namespace

absl::Status MakeCommunicators(Machine& world, CudaRank& rank) {
  for (const Lane lane : kCommunicatingLanes) {
    ncclUniqueId id = {};
    absl::Status status;
    if (rank.rank() == 0) status = NcclStatus(ncclGetUniqueId(&id), "making an id for a communicator");
    REPRISE_ASSIGN_OR_RETURN(
        const std::vector<std::string> ids,
        world.ExchangeBytes("id of a communicator", {std::string(id.internal, status.ok() ? sizeof(id.internal) : 0)}));
    if (ids[0].size() == sizeof(id.internal)) {
      ids[0].copy(id.internal, sizeof(id.internal));
      status = rank.communicators().New(lane, id);
    }
    REPRISE_RETURN_IF_ERROR(world.Agree(absl::StrCat("making the communicator of lane ", Name(lane)), status, {}));
  }
  return absl::OkStatus();
}

absl::Status SplitCommunicators(Machine& world, CudaRank& rank, ncclComm_t parent) {
  for (const Lane lane : kCommunicatingLanes) {
    const absl::Status status = rank.communicators().Split(lane, parent);
    REPRISE_RETURN_IF_ERROR(world.Agree(absl::StrCat("making the communicator of lane ", Name(lane)), status, {}));
  }
  return absl::OkStatus();
}

absl::Status ShareGaveUpWord(Machine& world, CudaRank& rank) {
  if (rank.size() == 1 || !rank.one_host()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<SharedWord>> word = absl::UnavailableError("rank 0 has no shared memory");
  if (rank.rank() == 0) word = SharedWord::Create();
  REPRISE_ASSIGN_OR_RETURN(
      const std::vector<std::string> names,
      world.ExchangeBytes("names of shared memory", {word.ok() ? (*word)->name() : std::string()}));
  if (rank.rank() != 0 && !names[0].empty()) word = SharedWord::Open(names[0]);
  REPRISE_ASSIGN_OR_RETURN(const std::string why, FirstReason(world, "sharing a word of memory", word.status()));
  if (!why.empty()) return absl::OkStatus();
  (*word)->RemoveName();
  rank.queue().SetGaveUpWord(*std::move(word));
  return absl::OkStatus();
}

absl::Status CheckWindows(Machine& world, const CudaRank& rank) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> by_rank,
                           world.ExchangeBytes("windows", {rank.communicators().windows().Text()}));
  return CheckSameWindows(by_rank);
}

absl::StatusOr<std::string> WhyNoWindows(Machine& world, CudaRank& rank) {
  if (rank.communicators().why_no_windows().has_value()) return *rank.communicators().why_no_windows();
  constexpr absl::string_view kPhase = "finding out whether devices can use each other's memory";
  REPRISE_ASSIGN_OR_RETURN(std::string why, FirstReason(world, kPhase, CheckLibraryAndHosts(rank)));
  if (why.empty()) {
    REPRISE_RETURN_IF_ERROR(world.Agree("taking memory for flags", rank.communicators().TakePeerFlags(), {}));
    REPRISE_RETURN_IF_ERROR(
        world.Agree("registering flags", rank.communicators().OpenPeerFlags(rank.shared_from_this()), {}));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, PeerTokens(world, rank));
    REPRISE_ASSIGN_OR_RETURN(why, FirstReason(world, kPhase, rank.communicators().FindPeerFlags(tokens)));
  }
  rank.communicators().SetWhyNoWindows(why);
  return why;
}

absl::Status PrepareTransports(Machine& world, const std::shared_ptr<CudaRank>& rank, const Bindings& bindings) {
  // A rank alone copies.
  if (rank->size() == 1) return absl::OkStatus();
  std::vector<std::string> windowed;
  for (const TransportTraits& traits : kTransports) {
    if (traits.windows && UseOf(*bindings.plan, traits.transport).any()) windowed.push_back(NameOf(traits.transport));
  }
  if (!windowed.empty()) {
    const std::string names = absl::StrJoin(windowed, " and ");
    REPRISE_RETURN_IF_ERROR(
        AgreeOnPlan(world, absl::StrCat("preparing ", names), rank->queue().Wait(), *bindings.plan));
    REPRISE_ASSIGN_OR_RETURN(const std::string why, WhyNoWindows(world, *rank));
    if (!why.empty()) {
      return absl::UnavailableError(
          absl::StrCat(names, " cannot be used: ", why, "; plan with transport nccl or auto"));
    }
    REPRISE_RETURN_IF_ERROR(CheckWindows(world, *rank));
  }
  for (const TransportTraits& traits : kTransports) {
    TransportUse use = UseOf(*bindings.plan, traits.transport);
    const DeviceTransport* const transport = FindTransport(traits.transport);
    if (!use.any() || transport == nullptr) continue;
    use.beside_windows = !windowed.empty();
    const auto vote = [&](absl::string_view what, const absl::Status& mine) {
      return AgreeOnPlan(world, absl::StrCat(what, " for ", NameOf(traits.transport)), mine, *bindings.plan);
    };
    REPRISE_RETURN_IF_ERROR(transport->Prepare(*rank, bindings, use, vote));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
