#include "graph/comm/collective_call.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "graph/rank_list.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

struct PartHead {
  uint64_t launches = 0, hash = 0;
  uint32_t what_bytes = 0, last_bytes = 0;
};

struct ValuesHead {
  int32_t code = 0;
  uint32_t text_bytes = 0;
};

template <class T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

std::string Shortened(absl::string_view text) {
  constexpr size_t kLongest = kMaxPartHeader / 4;
  return std::string(text.substr(0, kLongest));
}

absl::string_view NameOf(const CallPart& part) { return absl::string_view(part.what).substr(0, part.what.find('\n')); }

std::string TextOf(const CallPart& part) { return absl::StrReplaceAll(part.what, {{"\n", " "}}); }

// Whether ranks launched as many, and the same one last, but not the same before.
bool DifferEarlier(const Launches& a, const Launches& b) {
  return a.count == b.count && a.last == b.last && a.hash != b.hash;
}

// Of an announcement.
struct Announced {
  absl::Status status;
  std::vector<uint64_t> bits;
};

absl::StatusOr<Announced> DecodeValues(int rank, const std::string& bytes, size_t num_values) {
  ValuesHead head;
  const size_t words = num_values * sizeof(uint64_t);
  if (bytes.size() >= sizeof(head)) std::memcpy(&head, bytes.data(), sizeof(head));
  if (bytes.size() != sizeof(head) + words + head.text_bytes) {
    return absl::InternalError(absl::StrCat("rank ", rank, " announced ", bytes.size(),
                                            " bytes that cannot be read; run one version of the library on all ranks"));
  }
  Announced announced;
  announced.bits.resize(num_values);
  if (words > 0) std::memcpy(announced.bits.data(), bytes.data() + sizeof(head), words);
  announced.status = absl::Status(static_cast<absl::StatusCode>(head.code), bytes.substr(sizeof(head) + words));
  return announced;
}

std::string Text(AgreedValue::Kind kind, uint64_t bits, bool exact) {
  switch (kind) {
    case AgreedValue::Kind::kInteger:
      return absl::StrCat(static_cast<int64_t>(bits));
    case AgreedValue::Kind::kReal:
      return exact ? absl::StrFormat("%.17g", std::bit_cast<double>(bits))
                   : absl::StrFormat("%.6g", std::bit_cast<double>(bits));
    case AgreedValue::Kind::kHash:
      return absl::StrFormat("%016x", bits);
  }
  return "";
}

std::string ValueDifference(const AgreedValue& value, size_t index, absl::Span<const Announced> by_rank) {
  for (const bool exact : {false, true}) {
    std::vector<std::string> texts;
    for (const Announced& announced : by_rank) texts.push_back(Text(value.kind, announced.bits[index], exact));
    std::string difference = Difference(value.name, texts);
    if (!difference.empty()) return difference;
  }
  return "";
}

}  // namespace

void Launches::Add(uint64_t key, absl::string_view what) {
  ++count;
  hash = (std::rotl(hash, 29) ^ key) * 0x9e3779b97f4a7c15u;
  last.assign(what.data(), what.size());
}

std::string EncodePart(absl::string_view what, const Launches& launches, absl::string_view bytes) {
  const std::string name = Shortened(what), last = Shortened(launches.last);
  const PartHead head = {launches.count, launches.hash, static_cast<uint32_t>(name.size()),
                         static_cast<uint32_t>(last.size())};
  return absl::StrCat(BytesOf(head), name, last, bytes);
}

absl::StatusOr<CallPart> DecodePart(int rank, const std::string& encoded) {
  PartHead head;
  if (encoded.size() >= sizeof(head)) std::memcpy(&head, encoded.data(), sizeof(head));
  const uint64_t begin = sizeof(head) + uint64_t{head.what_bytes} + head.last_bytes;
  if (encoded.size() < begin) {
    return absl::InternalError(absl::StrCat("rank ", rank, " gave ", encoded.size(),
                                            " bytes to an exchange that do not say what they are; run one version of "
                                            "the library on all ranks"));
  }
  CallPart part;
  part.what = encoded.substr(sizeof(head), head.what_bytes);
  part.launches = {head.launches, head.hash, encoded.substr(sizeof(head) + head.what_bytes, head.last_bytes)};
  part.bytes = encoded.substr(begin);
  return part;
}

bool SameLaunches(absl::Span<const CallPart> by_rank) {
  return std::all_of(by_rank.begin(), by_rank.end(), [&](const CallPart& part) {
    return part.launches.count == by_rank[0].launches.count && part.launches.hash == by_rank[0].launches.hash;
  });
}

absl::Status CheckSameCall(absl::Span<const CallPart> by_rank) {
  const bool same_launches = SameLaunches(by_rank);
  const bool same_names = std::all_of(by_rank.begin(), by_rank.end(),
                                      [&](const CallPart& part) { return NameOf(part) == NameOf(by_rank[0]); });
  if (same_launches && same_names) return absl::OkStatus();
  std::vector<std::string> calls;
  for (const CallPart& part : by_rank) {
    std::string& call = calls.emplace_back(TextOf(part));
    if (same_launches) continue;
    const Launches& launches = part.launches;
    absl::StrAppend(&call, " after ", launches.count, launches.count == 1 ? " launch" : " launches");
    if (launches.count > 0) absl::StrAppend(&call, ", the last one ", launches.last, ",");
    const bool looks_the_same = std::any_of(
        by_rank.begin(), by_rank.end(), [&](const CallPart& other) { return DifferEarlier(launches, other.launches); });
    if (looks_the_same) absl::StrAppendFormat(&call, " an earlier one differing (hash %016x),", launches.hash);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      Difference("ranks disagree:", calls), "; make the same collective calls in the same order on every rank",
      same_launches ? ""
                    : ". What some ranks launched alone has no counterpart, so that this world can launch no more"));
}

std::string EncodeValues(const absl::Status& mine, absl::Span<const AgreedValue> values) {
  const std::string text = Shortened(mine.message());
  const ValuesHead head = {mine.raw_code(), static_cast<uint32_t>(text.size())};
  std::string bytes(BytesOf(head));
  for (const AgreedValue& value : values) absl::StrAppend(&bytes, BytesOf(value.bits));
  return bytes + text;
}

absl::Status CheckValues(absl::Span<const CallPart> by_rank, absl::Span<const AgreedValue> values,
                         bool& same_launches) {
  std::vector<Announced> announced;
  std::vector<int> failed;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    REPRISE_ASSIGN_OR_RETURN(announced.emplace_back(),
                             DecodeValues(static_cast<int>(rank), by_rank[rank].bytes, values.size()));
    if (!announced.back().status.ok()) failed.push_back(static_cast<int>(rank));
  }
  same_launches = failed.empty();
  if (!failed.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(by_rank[failed[0]].what, " failed on ", RankList(failed), " of ",
                                                      by_rank.size(), ": ", announced[failed[0]].status.ToString(),
                                                      "; every rank stops here, mend the cause on the ranks named"));
  }
  std::vector<std::string> differences;
  for (size_t v = 0; v < values.size(); ++v) {
    std::string difference = ValueDifference(values[v], v, announced);
    if (difference.empty()) continue;
    differences.push_back(std::move(difference));
    same_launches = same_launches && !values[v].decides_launches;
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      by_rank[0].what, ": ranks disagree: ", absl::StrJoin(differences, "; "), "; give the same values on every rank"));
}

}  // namespace reprise::internal
