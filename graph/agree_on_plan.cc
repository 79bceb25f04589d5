#include "graph/agree_on_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/model/hasher.h"
#include "core/model/quoted.h"
#include "graph/rank_list.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// Facts of one block. The plan of a stack of 10,000 units has 390,000 facts (AgreeOnPlanTest.LargePlansSendLittle):
// the hashes of its blocks are 12 KB a rank, and those of one block 2 KB.
constexpr size_t kBlock = 256;
constexpr size_t kHash = sizeof(uint64_t);

// A fact as bytes: section, subject, name and value in lines. A value that is longer than what fits is cut.
std::string Encode(const Fact& fact) {
  constexpr size_t kValue = size_t{1} << 16;
  return absl::StrCat(fact.section, "\n", fact.subject, "\n", fact.name, "\n", fact.value.substr(0, kValue));
}
// Null if the bytes are no fact.
std::optional<Fact> Decode(const std::string& bytes) {
  const std::vector<std::string> lines = absl::StrSplit(bytes, absl::MaxSplits('\n', 3));
  Fact fact;
  if (lines.size() != 4 || !absl::SimpleAtoi(lines[0], &fact.section)) return std::nullopt;
  fact.subject = lines[1];
  fact.name = lines[2];
  fact.value = lines[3];
  return fact;
}

uint64_t Hash(const Fact& fact) {
  Hasher hasher;
  hasher.Add(static_cast<uint64_t>(fact.section));
  for (const std::string* text : {&fact.subject, &fact.name, &fact.value}) hasher.Add(*text);
  return hasher.Finish().low;
}

void Append(uint64_t hash, std::string& bytes) {
  for (size_t i = 0; i < kHash; ++i) bytes.push_back(static_cast<char>(hash >> (8 * i)));
}

// (c) This process's ranks all give `mine`.
absl::StatusOr<std::vector<std::string>> Exchange(Machine& world, const std::string& mine) {
  return world.ExchangeBytes("what differs of a plan", std::vector<std::string>(world.local_ranks().size(), mine));
}

bool AllEqual(const std::vector<std::string>& all) {
  return std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) == all.end();
}

// (c) Every rank gives a list of hashes: the first place where they differ or some end, or -1.
absl::StatusOr<int64_t> FirstDifferentHash(Machine& world, const std::string& hashes) {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all, Exchange(world, hashes));
  if (AllEqual(all)) return -1;
  size_t same = all.front().size();
  for (const std::string& other : all) {
    const size_t compared = std::min(same, other.size());
    same =
        std::mismatch(all.front().begin(), all.front().begin() + static_cast<std::ptrdiff_t>(compared), other.begin())
            .first -
        all.front().begin();
  }
  return static_cast<int64_t>(same / kHash);
}

// (c) Every rank's first fact that not all ranks have, where one is left; empty if there is no such fact.
absl::StatusOr<std::vector<std::optional<Fact>>> FirstDifferentFacts(Machine& world, const std::vector<Fact>& facts) {
  std::vector<uint64_t> hashes;
  for (const Fact& fact : facts) hashes.push_back(Hash(fact));
  std::string blocks;
  for (size_t begin = 0; begin < hashes.size(); begin += kBlock) {
    Hasher block;
    for (size_t i = begin; i < std::min(begin + kBlock, hashes.size()); ++i) block.Add(hashes[i]);
    Append(block.Finish().low, blocks);
  }
  REPRISE_ASSIGN_OR_RETURN(const int64_t block, FirstDifferentHash(world, blocks));
  std::vector<std::optional<Fact>> different;
  if (block < 0) return different;
  const size_t begin = static_cast<size_t>(block) * kBlock;
  std::string of_block;
  for (size_t i = begin; i < std::min(begin + kBlock, hashes.size()); ++i) Append(hashes[i], of_block);
  REPRISE_ASSIGN_OR_RETURN(const int64_t place, FirstDifferentHash(world, of_block));
  if (place < 0) return different;
  const size_t index = begin + static_cast<size_t>(place);
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           Exchange(world, index < facts.size() ? Encode(facts[index]) : std::string()));
  for (const std::string& bytes : all) different.push_back(Decode(bytes));
  return different;
}

// The texts of rank 0 and of the first rank that has another one, cut to what surrounds the first difference.
void Shorten(std::vector<std::string>& by_rank) {
  constexpr size_t kShown = 200, kBefore = 60;
  const std::string first = by_rank.front();
  const auto found =
      std::find_if(by_rank.begin(), by_rank.end(), [&](const std::string& text) { return text != first; });
  if (found == by_rank.end()) return;
  const std::string other = *found;
  if (std::max(first.size(), other.size()) <= kShown) return;
  const size_t same =
      std::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(std::min(first.size(), other.size())),
                    other.begin())
          .first -
      first.begin();
  const auto cut = [&](const std::string& text) {
    const auto start_of_character = [&](size_t i) {
      while (i > 0 && i < text.size() && (text[i] & 0xc0) == 0x80) --i;
      return std::min(i, text.size());
    };
    const size_t begin = start_of_character(same > kBefore ? same - kBefore : 0);
    const size_t end = start_of_character(begin + kShown);
    return absl::StrCat(begin > 0 ? "..." : "", text.substr(begin, end - begin), end < text.size() ? "..." : "");
  };
  for (std::string& text : by_rank) {
    if (text == first) {
      text = cut(first);
    } else if (text == other) {
      text = cut(other);
    }
  }
}

// "option prefetch_depth is 1 on rank 0 but 2 on rank 1".
std::string Name(const std::vector<std::optional<Fact>>& by_rank) {
  const Fact* subject = nullptr;  // of the earliest section: ranks that are past it lack it
  for (const std::optional<Fact>& fact : by_rank) {
    if (fact.has_value() && (subject == nullptr || fact->section < subject->section)) subject = &*fact;
  }
  if (subject == nullptr) return "";
  const auto has = [&](const std::optional<Fact>& fact) {
    return fact.has_value() && fact->section == subject->section;
  };
  const bool one_name = std::all_of(by_rank.begin(), by_rank.end(), [&](const std::optional<Fact>& fact) {
    return !has(fact) || fact->name == subject->name;
  });
  std::vector<std::string> values;
  for (const std::optional<Fact>& fact : by_rank) {
    if (!has(fact)) {
      values.push_back("missing");
    } else {
      values.push_back(one_name ? fact->value : absl::StrCat(Quoted(fact->name), " ", fact->value));
    }
  }
  Shorten(values);
  return Difference(
      absl::StrCat(subject->subject, one_name && !subject->name.empty() ? absl::StrCat(" ", Quoted(subject->name)) : "",
                   " is"),
      values);
}

// The shortest text that is read back as the same number.
std::string Text(float value) {
  std::array<char, 32> text;
  const std::to_chars_result result = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), result.ptr);
}

std::string Text(Execution execution) {
  switch (execution) {
    case Execution::kGraph:
      return "graph";
    case Execution::kEager:
      return "eager";
  }
  return "?";
}

// What a session's recordings are made of besides its plan.
std::vector<Fact> SessionFacts(const CoreInputs& inputs) {
  std::vector<Fact> facts;
  const auto add = [&](std::string subject, std::string value) {
    facts.push_back({.section = -1, .subject = std::move(subject), .name = "", .value = std::move(value)});
  };
  // External buffers are each rank's own.
  const auto& [plan_options, execution, check_writes, external] = inputs.run;
  add("the variant", inputs.name.empty() ? "none" : Quoted(inputs.name));
  add("the number of the ShardedParameters", absl::StrCat(inputs.parameters->number()));
  add("RunOptions::execution", Text(execution));
  add("RunOptions::check_writes", check_writes ? "true" : "false");
  add("the optimizer", std::visit(Overloaded{[](const AdamW& adamw) {
                                               const auto& [beta1, beta2, epsilon, weight_decay] = adamw;
                                               return absl::StrCat("AdamW with beta1 ", Text(beta1), ", beta2 ",
                                                                   Text(beta2), ", epsilon ", Text(epsilon),
                                                                   ", weight_decay ", Text(weight_decay));
                                             },
                                             [](const Sgd& sgd) {
                                               const auto& [momentum, weight_decay] = sgd;
                                               return absl::StrCat("Sgd with momentum ", Text(momentum),
                                                                   ", weight_decay ", Text(weight_decay));
                                             }},
                                  inputs.bindings.optimizer));
  add("TrainOptions::clip_norm", inputs.bindings.clip_norm == 0 ? "unset" : Text(inputs.bindings.clip_norm));
  add("TrainOptions::loss_scale", Text(inputs.control.loss_scale));
  add("TrainOptions::seed", absl::StrCat(inputs.control.seed));
  return facts;
}

}  // namespace

std::string PhaseOf(absl::string_view phase, absl::string_view variant) {
  return variant.empty() ? std::string(phase) : absl::StrCat(phase, " of variant ", Quoted(variant));
}

absl::Status AgreeOnFacts(Machine& world, absl::string_view phase, const absl::Status& mine,
                          const Fingerprint& fingerprint, absl::FunctionRef<std::vector<Fact>()> facts) {
  REPRISE_RETURN_IF_ERROR(world.Agree(phase, mine, {}));
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::string> fingerprints, Exchange(world, fingerprint.ToString()));
  if (AllEqual(fingerprints)) return absl::OkStatus();
  REPRISE_ASSIGN_OR_RETURN(const std::vector<std::optional<Fact>> different, FirstDifferentFacts(world, facts()));
  std::string difference = Name(different);
  if (difference.empty()) difference = Difference("fingerprint", fingerprints);
  return absl::FailedPreconditionError(
      absl::StrCat(phase, ": ranks disagree: ", difference, "; give every rank the same model, options and library"));
}

absl::Status AgreeOnPlan(Machine& world, absl::string_view phase, const absl::Status& mine, const Plan& plan) {
  return AgreeOnFacts(world, phase, mine, plan.fingerprint, [&] { return FactsOf(plan); });
}

absl::Status AgreeOnPlan(Machine& world, const absl::StatusOr<CoreInputs>& inputs) {
  if (!inputs.ok()) return world.Agree("planning", inputs.status(), {});
  std::vector<Fact> facts = SessionFacts(*inputs);
  Hasher hasher;
  hasher.Add(inputs->plan().fingerprint.high);
  hasher.Add(inputs->plan().fingerprint.low);
  for (const Fact& fact : facts) hasher.Add(fact.value);
  return AgreeOnFacts(world, PhaseOf("planning", inputs->name), absl::OkStatus(), hasher.Finish(), [&] {
    for (Fact& fact : FactsOf(inputs->plan())) facts.push_back(std::move(fact));
    return std::move(facts);
  });
}

}  // namespace reprise::internal
