// What JSON texts from files may hold, and that what exceeds it is refused before it takes memory.
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/model/json_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/core/cost_file.h"
#include "reprise/core/model.h"
#include "reprise/core/timeline.h"
#include "tests/testing/status_matchers.h"

namespace {

// This test has one thread.
int64_t allocated = 0, most_allocated = 0;

int64_t BlockBytes(void* memory) { return static_cast<int64_t>(malloc_usable_size(memory) + sizeof(size_t)); }

}  // namespace

void* operator new(size_t size) {
  void* const memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  allocated += BlockBytes(memory);
  most_allocated = std::max(most_allocated, allocated);
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) allocated -= BlockBytes(memory);
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace reprise::internal {
namespace {

using reprise::testing::IsOk;
using reprise::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMany = 100'000'000;  // bytes of a text

// The most that `body` has allocated at one time.
template <class Body>
int64_t MostAllocated(const Body& body) {
  const int64_t before = allocated;
  most_allocated = allocated;
  body();
  return most_allocated - before;
}

// `first`, then `repeated` until the text has kMany bytes.
std::string Long(absl::string_view first, absl::string_view repeated) {
  std::string text(first);
  text.reserve(kMany + repeated.size());
  while (static_cast<int64_t>(text.size()) < kMany) text.append(repeated.data(), repeated.size());
  return text;
}

absl::Status ReadModel(absl::string_view text) { return Model::FromJson(text).status(); }
absl::Status ReadCosts(absl::string_view text) { return CostFileFromJson(text).status(); }
absl::Status ReadTimeline(absl::string_view text) { return TimelineFromJson(text).status(); }

TEST(JsonLimitsTest, WhatIsTooMuchIsRefusedBeforeItTakesMemory) {
  struct Case {
    std::string text;
    const char* message;
    absl::Status (*read)(absl::string_view) = &ReadModel;
  };
  const Case cases[] = {
      {Long("[0", ",0"),
       "one list or object has more than 1048576 entries at byte 2097153 of 100000000; give a smaller file"},
      {Long(R"({"units": [{"name": "u"})", R"(,{"name": "u"})"), "one list or object has more than 1048576 entries"},
      {Long("", "["), "lists and objects are nested deeper than 16 at byte 17 of 100000000"},
      {Long("", R"({"a":)"), "lists and objects are nested deeper than 16"},
      {Long("{\"", "n"), "a string is longer than 65536 bytes at byte 2 of 100000000"},
      {Long("{\"name\": \"", "\\n"), "a string is longer than 65536 bytes at byte 10 of 100000000"},
      {Long("{\"0\":0", ",\"1\":0"), "one list or object has more than 1048576 entries"},
      {Long("[0", ",0"), "has more than 1048576 entries", &ReadCosts},
      {Long(R"({"calls": {"a": {})", R"(,"b": {})"), "has more than 1048576 entries", &ReadCosts},
      {Long("{\"spans\": [0", ",0"), "has more than 4194304 entries", &ReadTimeline},
  };
  for (const Case& c : cases) {
    absl::Status status;
    EXPECT_LT(MostAllocated([&] { status = c.read(c.text); }), 1 << 16) << c.message;
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(StartsWith("JSON text: "), HasSubstr(c.message))));
  }
}

// Lists of as many entries as a list may have, in a list.
TEST(JsonLimitsTest, AllValuesTogetherAreLimitedToo) {
  std::string list = "[";
  for (int i = 1; i < 1 << 20; ++i) list += "0,";
  list += "0]";
  std::string text = "[" + list;
  while (static_cast<int64_t>(text.size()) < kMany) absl::StrAppend(&text, ",", list);
  text += "]";
  absl::Status status;
  EXPECT_LT(MostAllocated([&] { status = ReadModel(text); }), 1 << 16);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("the values take more than 1073741824 bytes of memory")));
}

TEST(JsonLimitsTest, TheLimitsThemselvesAreAllowed) {
  const JsonLimits limits = {.depth = 3, .entries = 4, .string_bytes = 5, .memory_bytes = 10'000};
  for (const char* text : {"[[[]]]", R"({"a":[{}]})", "[1,2,3,4]", R"({"a":1,"b":2,"c":3,"d":4})", R"("12345")",
                           R"({"12345":0})", R"(["[[[[", ",,,,,", "\"\""])", R"([[1,2,3,4],[1,2,3,4]])"}) {
    EXPECT_THAT(ParseJson(text, limits), IsOk()) << text;
  }
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : {Case{"[[[[]]]]", "lists and objects are nested deeper than 3 at byte 4 of 8; give"},
                        Case{R"({"a":[{"b":[]}]})", "nested deeper than 3"},
                        Case{"[1,2,3,4,5]", "one list or object has more than 4 entries at byte 9 of 11"},
                        Case{R"({"a":1,"b":2,"c":3,"d":4,"e":5})", "more than 4 entries"},
                        Case{R"("123456")", "a string is longer than 5 bytes at byte 1 of 8"},
                        Case{R"({"123456":0})", "a string is longer than 5 bytes at byte 2 of 12"}}) {
    EXPECT_THAT(ParseJson(c.text, limits), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

// A value of random kind within the limits, never longer than a few thousand bytes.
std::string RandomJson(std::mt19937& random, int depth) {
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  const auto text = [&] { return absl::StrCat("\"", std::string(below(3) == 0 ? below(300) : below(20), 'x'), "\""); };
  switch (depth > 0 ? below(6) : below(4)) {
    case 0:
      return absl::StrCat(below(1000));
    case 1:
      return "0.25";
    case 2:
      return text();
    case 3:
      return "null";
    case 4: {
      std::string list = "[";
      const int entries = below(4) == 0 ? below(100) : below(4);
      for (int i = 0; i < entries; ++i) absl::StrAppend(&list, i > 0 ? "," : "", RandomJson(random, depth - 1));
      return list + "]";
    }
    default: {
      std::string object = "{";
      const int members = below(6);
      for (int i = 0; i < members; ++i) {
        absl::StrAppend(&object, i > 0 ? "," : "", "\"", i, std::string(below(40), 'k'),
                        "\":", RandomJson(random, depth - 1));
      }
      return object + "}";
    }
  }
}

// The memory that values take is never more than the limit that lets them pass, but for what parsing itself takes.
TEST(JsonLimitsTest, ValuesTakeNoMoreMemoryThanTheLimit) {
  constexpr int64_t kParser = 8192;
  std::mt19937 random(12);
  const auto expect_within_limit = [&](const std::string& text) {
    // The smallest limit that lets the text pass.
    int64_t low = 0, high = int64_t{1} << 32;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (CheckJsonLimits(text, {.memory_bytes = middle}).ok()) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    absl::Status status;
    const int64_t taken = MostAllocated([&] { status = ParseJson(text, {.memory_bytes = low}).status(); });
    EXPECT_THAT(status, IsOk());
    EXPECT_LE(taken, low + kParser) << text.substr(0, 200);
  };
  for (int seed = 0; seed < 300; ++seed) expect_within_limit(RandomJson(random, 6));
  // Where one kind of thing is all there is.
  for (const char* entry :
       {"0", "[]", "{}", R"("")", R"("sixteen chars or")", R"({"":0})", R"({"a key of sixteen chars":{}})"}) {
    std::string list = "[0";
    for (int i = 0; i < 1000; ++i) absl::StrAppend(&list, ",", entry);
    expect_within_limit(list + "]");
  }
  std::string object = "{\"\":0";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&object, ",\"", i, "\":", i);
  expect_within_limit(object + "}");
}

TEST(JsonLimitsTest, TextsThatAreNoJsonAreLeftToTheParser) {
  for (const char* text : {"]]]]", "}", "[}", ",,,", ":", "\"", "\"\\", "[\"\\", "{\"a\":\"\\\\\\"}) {
    EXPECT_THAT(CheckJsonLimits(text, {}), IsOk()) << text;
    EXPECT_THAT(ParseJson(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no valid JSON"))) << text;
  }
}

}  // namespace
}  // namespace reprise::internal
