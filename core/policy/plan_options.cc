#include "reprise/core/plan_options.h"

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/quoted.h"

namespace reprise {
namespace {

constexpr absl::string_view kUnset = "auto";

template <class Enum>
struct Known;  // its values
template <>
struct Known<Residency> {
  static constexpr std::array kValues = {Residency::kKeep, Residency::kOff};
};
template <>
struct Known<Reduce> {
  static constexpr std::array kValues = {Reduce::kEveryMicrobatch, Reduce::kOncePerStep};
};
template <>
struct Known<Tail> {
  static constexpr std::array kValues = {Tail::kInGraph, Tail::kCarried};
};
template <>
struct Known<Sum> {
  static constexpr std::array kValues = {Sum::kRankOrder, Sum::kNccl};
};
template <>
struct Known<DType> {  // those that these options may name
  static constexpr std::array kValues = {DType::kBFloat16, DType::kFloat32};
};

template <class T>
std::string WordsOf(const T*) {
  return absl::StrJoin(Known<T>::kValues, ", ", [](std::string* out, T value) { absl::StrAppend(out, Name(value)); });
}
template <class T>
std::string WordsOf(const std::optional<T>*) {
  return absl::StrCat(kUnset, ", ", WordsOf(static_cast<const T*>(nullptr)));
}
std::string WordsOf(const int*) { return ""; }
std::string WordsOf(const std::optional<int>*) { return ""; }
std::string WordsOf(const std::vector<TransportChoice>*) { return ""; }

template <class T>
std::string Text(T value) {
  return std::string(Name(value));
}
std::string Text(int value) { return absl::StrCat(value); }
std::string Text(const std::vector<TransportChoice>& value) { return ToText(value); }
template <class T>
std::string Text(const std::optional<T>& value) {
  return value.has_value() ? Text(*value) : std::string(kUnset);
}

// What a field of a type takes, after "give ".
template <class T>
std::string Taken(const T* field) {
  return absl::StrCat("one of: ", WordsOf(field));
}
std::string Taken(const int*) { return "a whole number"; }
std::string Taken(const std::optional<int>*) { return absl::StrCat(kUnset, " or a whole number"); }

template <class T>
absl::Status Refuse(absl::string_view text, const T* field) {
  return absl::InvalidArgumentError(absl::StrCat("is ", internal::Quoted(text), "; give ", Taken(field)));
}

template <class T>
absl::Status Read(absl::string_view text, T& value) {
  const auto* const known =
      std::find_if(Known<T>::kValues.begin(), Known<T>::kValues.end(), [&](T value) { return text == Name(value); });
  if (known == Known<T>::kValues.end()) return Refuse(text, &value);
  value = *known;
  return absl::OkStatus();
}
absl::Status Read(absl::string_view text, int& value) {
  return absl::SimpleAtoi(text, &value) && absl::StrCat(value) == text ? absl::OkStatus() : Refuse(text, &value);
}
absl::Status Read(absl::string_view text, std::vector<TransportChoice>& value) {
  absl::StatusOr<std::vector<TransportChoice>> choices = TransportChoicesFromText(text);
  if (!choices.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is no list of transports: ", std::string(choices.status().message())));
  }
  value = *std::move(choices);
  return absl::OkStatus();
}
template <class T>
absl::Status Read(absl::string_view text, std::optional<T>& value) {
  value.reset();
  return text == kUnset || Read(text, value.emplace()).ok() ? absl::OkStatus() : Refuse(text, &value);
}

// The row of a field.
template <auto member>
constexpr PlanOptionText Row(absl::string_view name, absl::string_view help) {
  return {
      .name = name,
      .help = help,
      .words =
          [] {
            return WordsOf(
                static_cast<std::remove_reference_t<decltype(std::declval<const PlanOptions&>().*member)>*>(nullptr));
          },
      .get = [](const PlanOptions& options) { return Text(options.*member); },
      .set =
          [](PlanOptions& options, absl::string_view text) {
            auto value = options.*member;
            absl::Status status = Read(text, value);
            if (status.ok()) options.*member = std::move(value);
            return status;
          }};
}

constexpr std::array kTexts = {
    Row<&PlanOptions::prefetch_depth>("prefetch_depth", "calls that a gather may run ahead; auto: 1"),
    Row<&PlanOptions::weight_slots>("weight_slots", "gathered copies that live at once; auto: 2, or what a call needs"),
    Row<&PlanOptions::gradient_slots>("gradient_slots",
                                      "gradients being reduced that live at once; auto: 2, or what is needed"),
    Row<&PlanOptions::microbatches_per_graph>("microbatches_per_graph", "microbatches of one graph; auto: 1"),
    Row<&PlanOptions::residency>("residency",
                                 "keep: slots keep weights until something else needs them; off: they are released "
                                 "after use"),
    Row<&PlanOptions::reduce>("reduce", "when gradients are reduced"),
    Row<&PlanOptions::tail>("tail",
                            "where the last reduction of a graph runs: in_graph, at its end; carried, in the "
                            "next one"),
    Row<&PlanOptions::transports>(
        "transports",
        "nccl, symmetric or copy_engine, or GATHER/EXCHANGE of these, or several by the bytes "
        "of a unit's gathered copy, as in symmetric,4194304:copy_engine/symmetric; auto: what "
        "was measured, or nccl"),
    Row<&PlanOptions::sum>("sum", "how gradients are added over the ranks; auto: rank_order within a host"),
    Row<&PlanOptions::reduce_dtype>("reduce_dtype", "of gradients in a reduction"),
    Row<&PlanOptions::master_dtype>("master_dtype", "of master weights"),
    Row<&PlanOptions::optimizer_states>("optimizer_states", "fp32 values kept per master element"),
};

}  // namespace

absl::string_view Name(Residency residency) {
  switch (residency) {
    case Residency::kKeep:
      return "keep";
    case Residency::kOff:
      return "off";
  }
  return "?";
}

absl::string_view Name(Reduce reduce) {
  switch (reduce) {
    case Reduce::kEveryMicrobatch:
      return "every_microbatch";
    case Reduce::kOncePerStep:
      return "once_per_step";
  }
  return "?";
}

absl::string_view Name(Tail tail) {
  switch (tail) {
    case Tail::kInGraph:
      return "in_graph";
    case Tail::kCarried:
      return "carried";
  }
  return "?";
}

absl::Span<const PlanOptionText> PlanOptionTexts() { return kTexts; }

}  // namespace reprise
