#include "graph/comm/nccl_settings.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/model/quoted.h"
#include "graph/rank_list.h"

namespace reprise::internal {
namespace {

enum class Ranks : uint8_t { kMayDiffer, kMustAgree };

// A `*` stands for any text. The first rule that fits decides; what no rule fits must be equal.
struct Rule {
  absl::string_view name;
  Ranks ranks;
};

constexpr Rule kRules[] = {
    // Which host this is, and where things lie on it.
    {"NCCL_HOSTID", Ranks::kMayDiffer},               // names the host, or a part of it
    {"NCCL_MNNVL_UUID", Ranks::kMayDiffer},           // the NVLink domain that the host is in
    {"NCCL_MNNVL_CLIQUE_ID", Ranks::kMayDiffer},      // the same
    {"NCCL_COMM_ID", Ranks::kMayDiffer},              // an address; a world's ranks exchange their ids themselves
    {"NCCL_*_FILE", Ranks::kMayDiffer},               // paths: configuration, topology, graphs, dumps
    {"NCCL_*_FILE_RANK", Ranks::kMayDiffer},          // the rank that writes such a dump
    {"NCCL_*_PLUGIN", Ranks::kMayDiffer},             // paths of libraries
    {"NCCL_*_LIB", Ranks::kMayDiffer},                // the same
    {"NCCL_IGNORE_CPU_AFFINITY", Ranks::kMayDiffer},  // on which cores its threads run
    {"NCCL_PROXY_CPUSET", Ranks::kMayDiffer},         // the same

    // What a rank says about itself, and to whom.
    {"NCCL_DEBUG*", Ranks::kMayDiffer},
    {"NCCL_WARN_*", Ranks::kMayDiffer},
    {"NCCL_RAS_*", Ranks::kMayDiffer},  // a server for monitoring, which no collective waits for
    {"NCCL_*_DUMP_*", Ranks::kMayDiffer},
    {"NCCL_REPORT_*", Ranks::kMayDiffer},
    {"NCCL_NVTX_DISABLE", Ranks::kMayDiffer},
    {"NCCL_SET_THREAD_NAME", Ranks::kMayDiffer},

    // Sockets: which of the host's interfaces, and their buffers. Both ends derive how they cut a message.
    {"NCCL_SOCKET_INLINE", Ranks::kMustAgree},
    {"NCCL_SOCKET_MIN_TASKSIZE", Ranks::kMustAgree},
    {"NCCL_SOCKET_MAGIC", Ranks::kMustAgree},
    {"NCCL_SOCKET_*", Ranks::kMayDiffer},
    {"NCCL_NSOCKS_PERTHREAD", Ranks::kMayDiffer},  // the listening end tells the other one
    {"NCCL_OOB_NET_ENABLE", Ranks::kMustAgree},    // by what ranks meet
    {"NCCL_OOB_NET_*", Ranks::kMayDiffer},         // an interface

    // InfiniBand and RoCE: which of the host's devices, ports and addresses, and how their fabric treats a packet. What
    // both ends of a connection must do alike is equal.
    {"NCCL_IB_DISABLE", Ranks::kMustAgree},
    {"NCCL_IB_OOO_RQ", Ranks::kMustAgree},
    {"NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", Ranks::kMustAgree},
    {"NCCL_IB_QPS_PER_CONNECTION", Ranks::kMustAgree},
    {"NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", Ranks::kMustAgree},
    {"NCCL_IB_RESILIENCY_*", Ranks::kMustAgree},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", Ranks::kMustAgree},
    {"NCCL_IB_*", Ranks::kMayDiffer},

    // Network plug-ins and the way from a GPU to its network device, which is the host's wiring. What is equal changes
    // the choice of algorithms, or how connections share buffers at both ends.
    {"NCCL_NET_DISABLE_INTRA", Ranks::kMustAgree},
    {"NCCL_NET_OPTIONAL_RECV_COMPLETION", Ranks::kMustAgree},
    {"NCCL_NET_OVERHEAD", Ranks::kMustAgree},
    {"NCCL_NET_SHARED_*", Ranks::kMustAgree},
    {"NCCL_NET_*", Ranks::kMayDiffer},
    {"NCCL_CROSS_NIC", Ranks::kMayDiffer},      // how rails are wired; ranks tell each other the rings they found
    {"NCCL_DMABUF_ENABLE", Ranks::kMayDiffer},  // what the host's drivers offer
    {"NCCL_GDRCOPY_*", Ranks::kMayDiffer},
    {"NCCL_GDR_FLUSH_DISABLE", Ranks::kMayDiffer},
};

bool Fits(absl::string_view name, absl::string_view rule) {
  const size_t star = rule.find('*');
  if (star == absl::string_view::npos) return name == rule;
  const absl::string_view before = rule.substr(0, star), after = rule.substr(star + 1);
  const size_t other_star = after.find('*');
  if (!absl::StartsWith(name, before)) return false;
  const absl::string_view rest = name.substr(before.size());
  if (other_star == absl::string_view::npos) return absl::EndsWith(rest, after);
  return absl::StrContains(rest, after.substr(0, other_star));
}

std::pair<std::string, std::string> Split(absl::string_view setting) {
  return absl::StrSplit(setting, absl::MaxSplits('=', 1));
}

}  // namespace

bool MustBeEqual(absl::string_view variable) {
  for (const Rule& rule : kRules) {
    if (Fits(variable, rule.name)) return rule.ranks == Ranks::kMustAgree;
  }
  return true;
}

std::vector<std::string> NcclSettings(const char* const* variables) {
  std::vector<std::string> settings;
  for (; variables != nullptr && *variables != nullptr; ++variables) {
    if (absl::StartsWith(*variables, "NCCL_") && MustBeEqual(Split(*variables).first)) settings.push_back(*variables);
  }
  std::sort(settings.begin(), settings.end());
  return settings;
}

// The environment holds no zero bytes.
std::string ToBytes(const std::vector<std::string>& settings) {
  return absl::StrJoin(settings, absl::string_view("\0", 1));
}

absl::Status CheckSameNcclSettings(absl::Span<const std::string> bytes_by_rank) {
  std::vector<std::map<std::string, std::string>> by_rank;
  std::set<std::string> names;
  for (const std::string& bytes : bytes_by_rank) {
    std::map<std::string, std::string>& values = by_rank.emplace_back();
    for (const absl::string_view setting : absl::StrSplit(bytes, '\0', absl::SkipEmpty())) {
      const auto [name, value] = Split(setting);
      values[name] = Quoted(value);
      names.insert(name);
    }
  }
  for (const std::string& name : names) {
    std::vector<std::string> values;
    for (const std::map<std::string, std::string>& of_rank : by_rank) {
      const auto found = of_rank.find(name);
      values.push_back(found == of_rank.end() ? "unset" : found->second);
    }
    const std::string difference = Difference(absl::StrCat(name, " is"), values);
    if (difference.empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks differ in NCCL settings: ", difference,
                     "; set it to the same on every rank, or, if it is a part of a host that it names, take it out of "
                     "LaunchEnvironment::nccl_settings"));
  }
  return absl::OkStatus();
}

}  // namespace reprise::internal
