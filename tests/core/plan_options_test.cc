// Options as text: what is written is read back, every field has a row, and what is no value changes nothing.
#include "reprise/core/plan_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/core/plan.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::IsOk;
using ::reprise::testing::StatusIs;
using ::testing::HasSubstr;

// Another value than the default's, for each option.
const std::map<std::string, std::string>& OtherTexts() {
  static const auto* const texts = new std::map<std::string, std::string>{
      {"prefetch_depth", "3"},  {"weight_slots", "4"},
      {"gradient_slots", "5"},  {"microbatches_per_graph", "6"},
      {"residency", "off"},     {"reduce", "once_per_step"},
      {"tail", "carried"},      {"transports", "symmetric,4194304:copy_engine/symmetric"},
      {"sum", "nccl"},          {"reduce_dtype", "f32"},
      {"master_dtype", "bf16"}, {"optimizer_states", "1"},
  };
  return *texts;
}

TEST(PlanOptionTextsTest, EveryFieldIsSetByItsText) {
  PlanOptions options;
  for (const PlanOptionText& option : PlanOptionTexts()) {
    ASSERT_EQ(OtherTexts().count(std::string(option.name)), 1u) << option.name;
    const PlanOptions before = options;
    ASSERT_THAT(option.set(options, OtherTexts().at(std::string(option.name))), IsOk());
    EXPECT_FALSE(options == before) << option.name;
  }
  EXPECT_EQ(PlanOptionTexts().size(), OtherTexts().size());
  const PlanOptions all = {
      .prefetch_depth = 3,
      .weight_slots = 4,
      .gradient_slots = 5,
      .microbatches_per_graph = 6,
      .residency = Residency::kOff,
      .reduce = Reduce::kOncePerStep,
      .tail = Tail::kCarried,
      .transports = {{0, Transport::kSymmetric}, {4194304, {Transport::kCopyEngine, Transport::kSymmetric}}},
      .sum = Sum::kNccl,
      .reduce_dtype = DType::kFloat32,
      .master_dtype = DType::kBFloat16,
      .optimizer_states = 1};
  EXPECT_EQ(options, all);
  // The bindings name all fields: a new one does not compile until it is here.
  [[maybe_unused]] const auto& [prefetch_depth, weight_slots, gradient_slots, microbatches_per_graph, residency, reduce,
                                tail, transports, sum, reduce_dtype, master_dtype, optimizer_states] = all;
}

TEST(PlanOptionTextsTest, WhatIsWrittenIsReadBack) {
  for (const PlanOptionText& option : PlanOptionTexts()) {
    PlanOptions other;
    ASSERT_THAT(option.set(other, OtherTexts().at(std::string(option.name))), IsOk());
    for (const PlanOptions& written : {PlanOptions(), other}) {
      for (PlanOptions read : {PlanOptions(), other}) {
        EXPECT_THAT(option.set(read, option.get(written)), IsOk()) << option.name;
        EXPECT_EQ(read, written) << option.name << " " << option.get(written);
      }
    }
  }
}

TEST(PlanOptionTextsTest, UnsetIsAuto) {
  std::string unset;
  for (const PlanOptionText& option : PlanOptionTexts()) {
    if (option.get(PlanOptions()) == "auto") absl::StrAppend(&unset, option.name, " ");
  }
  EXPECT_EQ(unset, "prefetch_depth weight_slots gradient_slots microbatches_per_graph transports sum ");
}

TEST(PlanOptionTextsTest, OtherTextsAreRefusedAndChangeNothing) {
  for (const PlanOptionText& option : PlanOptionTexts()) {
    for (const std::string& text : {std::string("bogus"), std::string(""), std::string("1.5"), std::string(1, '\0'),
                                    std::string(" 1"), std::string("01"), std::string("+1"), std::string("-0"),
                                    std::string("1\n"), std::string("99999999999999999999")}) {
      PlanOptions options;
      const absl::Status status = option.set(options, text);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("; give "))) << option.name;
      EXPECT_EQ(options, PlanOptions()) << option.name;
      const std::string words = option.words();
      if (words.empty()) continue;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("give one of: ", words)));
    }
  }
}

TEST(PlanOptionTextsTest, EveryWordIsTaken) {
  for (const PlanOptionText& option : PlanOptionTexts()) {
    EXPECT_FALSE(option.help.empty());
    std::string words = option.words();
    while (!words.empty()) {
      const size_t comma = std::min(words.find(", "), words.size());
      PlanOptions options;
      EXPECT_THAT(option.set(options, words.substr(0, comma)), IsOk()) << option.name;
      EXPECT_EQ(option.get(options), words.substr(0, comma));
      words.erase(0, comma + 2);
    }
  }
}

}  // namespace
}  // namespace reprise
