#include "graph/cuda/cuda_transport.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/agree_on_plan.h"
#include "graph/comm/shared_word.h"
#include "graph/cuda/cuda_memory.h"
#include "graph/cuda/nccl_status.h"
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
  if (!rank.queue().has_gave_up_word()) return absl::UnavailableError("the ranks share no memory of their host, see /dev/shm");
  return absl::OkStatus();
}

// Of the commands.
std::set<Transport> TransportsOf(const Plan& plan) {
  std::set<Transport> transports;
  for (const Schedule& schedule : plan.schedules) {
    for (const ScheduledCommand& command : schedule.commands) {
      if (const auto* gather = std::get_if<AllGather>(&command.command)) transports.insert(gather->transport);
      if (const auto* reduce = std::get_if<ReduceScatter>(&command.command)) transports.insert(reduce->transport);
    }
  }
  return transports;
}

bool ArenaHasWindow(const Bindings& bindings) {
  for (size_t b = 0; b < bindings.plan->buffers.size(); ++b) {
    const Buffer& buffer = bindings.plan->buffers[b];
    if (buffer.storage != Storage::kCommunicating || buffer.num_bytes == 0) continue;
    const std::byte* const address = bindings.addresses[0][b];
    for (const std::shared_ptr<MemoryBlock>& block : bindings.memory) {
      const std::byte* const begin = block->address(0);
      if (address >= begin && address < begin + block->num_bytes()) return HasWindow(*block);
    }
  }
  return false;
}

// (c) Where a rank cannot, its reason, on every rank; other errors are errors.
absl::StatusOr<std::string> FirstReason(World& world, absl::string_view phase, const absl::Status& mine) {
  REPRISE_RETURN_IF_ERROR(world.Agree(phase, absl::IsUnavailable(mine) ? absl::OkStatus() : mine, {}));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           world.ExchangeBytes(phase, {std::string(mine.message())}));
  for (const std::string& why : all) {
    if (!why.empty()) return why;
  }
  return std::string();
}

// (c) By rank.
absl::StatusOr<std::vector<uint32_t>> PeerTokens(World& world, const CudaRank& rank) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           world.ExchangeBytes("tokens", {absl::StrCat(rank.communicators().peer_token())}));
  std::vector<uint32_t> tokens(texts.size());
  for (size_t r = 0; r < texts.size(); ++r) {
    if (!absl::SimpleAtoi(texts[r], &tokens[r])) return absl::InternalError(absl::StrCat(texts[r], " is no token"));
  }
  return tokens;
}

}  // namespace

absl::Status MakeCommunicators(World& world, CudaRank& rank) {
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

absl::Status SplitCommunicators(World& world, CudaRank& rank, ncclComm_t parent) {
  for (const Lane lane : kCommunicatingLanes) {
    const absl::Status status = rank.communicators().Split(lane, parent);
    REPRISE_RETURN_IF_ERROR(world.Agree(absl::StrCat("making the communicator of lane ", Name(lane)), status, {}));
  }
  return absl::OkStatus();
}

absl::Status ShareGaveUpWord(World& world, CudaRank& rank) {
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

absl::Status CheckWindows(World& world, const CudaRank& rank) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> by_rank,
                           world.ExchangeBytes("windows", {rank.communicators().windows().Text()}));
  return CheckSameWindows(by_rank);
}

absl::StatusOr<std::string> WhyNoWindows(World& world, CudaRank& rank) {
  if (rank.communicators().why_no_windows().has_value()) return *rank.communicators().why_no_windows();
  constexpr absl::string_view kPhase = "finding out whether devices can use each other's memory";
  REPRISE_ASSIGN_OR_RETURN(std::string why, FirstReason(world, kPhase, CheckLibraryAndHosts(rank)));
  if (why.empty()) {
    REPRISE_RETURN_IF_ERROR(world.Agree("taking memory for flags", rank.communicators().TakePeerFlags(), {}));
    REPRISE_RETURN_IF_ERROR(world.Agree("registering flags", rank.communicators().OpenPeerFlags(rank.shared_from_this()), {}));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, PeerTokens(world, rank));
    REPRISE_ASSIGN_OR_RETURN(why, FirstReason(world, kPhase, rank.communicators().FindPeerFlags(tokens)));
  }
  rank.communicators().SetWhyNoWindows(why);
  return why;
}

absl::Status PrepareTransport(World& world, const std::shared_ptr<CudaRank>& rank, const Bindings& bindings) {
  std::set<Transport> transports = TransportsOf(*bindings.plan);
  const bool by_default = transports.erase(Transport::kNccl) > 0;
  // A rank alone copies.
  if (rank->size() == 1) return absl::OkStatus();
  if (transports.empty()) {
    // The arena may be another session's.
    if (by_default && ArenaHasWindow(bindings)) rank->communicators().AllowEndlessWaits();
    return absl::OkStatus();
  }
  const std::string names = absl::StrJoin(transports, " and ", [](std::string* text, Transport transport) {
    absl::StrAppend(text, "the transport ", std::string(Name(transport)));
  });
  const auto agree = [&](absl::string_view phase, const absl::Status& status) {
    return AgreeOnPlan(world, absl::StrCat(phase, " ", names), status, *bindings.plan);
  };
  REPRISE_RETURN_IF_ERROR(agree("preparing", rank->queue().Wait()));
  REPRISE_ASSIGN_OR_RETURN(const std::string why, WhyNoWindows(world, *rank));
  if (!why.empty()) {
    return absl::UnavailableError(absl::StrCat(names, " cannot be used: ", why, "; plan with transport nccl or auto"));
  }
  REPRISE_RETURN_IF_ERROR(CheckWindows(world, *rank));
  const bool by_nccl = transports.contains(Transport::kSymmetric);
  // In windows NCCL takes kernels for them, whatever the transport.
  if (by_nccl || by_default) rank->communicators().AllowEndlessWaits();
  absl::Status windows;
  for (const std::shared_ptr<MemoryBlock>& block : bindings.memory) {
    for (const Lane lane : kCommunicatingLanes) {
      if (windows.ok() && (by_nccl || lane == Lane::kAllGather)) {
        windows = RegisterWindow(block, lane);
      }
    }
  }
  REPRISE_RETURN_IF_ERROR(agree("registering memory for", windows));
  if (!transports.contains(Transport::kCopyEngine)) return absl::OkStatus();
  rank->communicators().AllowPeerCopies();
  absl::Status addresses;
  for (const std::shared_ptr<MemoryBlock>& block : bindings.memory) {
    if (addresses.ok()) addresses = FindPeers(*block);
  }
  return agree("finding the other ranks' memory for", addresses);
}

}  // namespace reprise::internal
