#include "reprise/core/cost_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

using ::reprise::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

CostFile Sample() {
  CostFile file;
  file.device = {{"gpu", "NVIDIA H200, 132 multiprocessors"}, {"driver", "CUDA 13.0"}, {"cublaslt", "130100"}};
  file.job = {{"nccl", "2.28.9"}, {"ranks", "2"}, {"hosts", "one"}, {"nccl_settings", "NCCL_ALGO=Ring"}};
  file.costs = {.flops = 1e6,
                .memory_bandwidth = 1e6,
                .gather_bandwidth = 0.25e6,
                .reduce_bandwidth = 0.2e6,
                .collective_us = 1000,
                .command_us = 100,
                .ranks = 8,
                .calls = {{"c0", {.forward = 10, .backward = 20}}}};
  file.transports = {{0, Transport::kNccl}, {4096, {Transport::kCopyEngine, Transport::kSymmetric}}};
  file.gemms = {{"m 8 n 8", "algorithm 3"}};
  return file;
}

CostModel Costs(const std::string& fields) {
  const absl::StatusOr<CostFile> file = CostFileFromJson(absl::StrCat(R"({"version": 1, "costs": )", fields, "}"));
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? file->costs : CostModel();
}

TEST(CostFileTest, ReadsEveryField) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile file, CostFileFromJson(R"({"version": 1,
      "device": {"gpu": "NVIDIA H200, 132 multiprocessors", "driver": "CUDA 13.0", "cublaslt": "130100"},
      "job": {"nccl": "2.28.9", "ranks": "2", "hosts": "one", "nccl_settings": "NCCL_ALGO=Ring"},
      "costs": {"flops": 1e6, "memory_bandwidth": 1000000, "gather_bandwidth": 0.25e6, "reduce_bandwidth": 0.2e6,
                "collective_us": 1000, "command_us": 100, "ranks": 8, "calls": {"c0": {"forward": 10, "backward": 20}}},
      "transports": "nccl,4096:copy_engine/symmetric",
      "gemms": {"m 8 n 8": "algorithm 3"}})"));
  EXPECT_EQ(file, Sample());
}

TEST(CostFileTest, WhatIsMissingStaysAsInitialised) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile file, CostFileFromJson(R"({"version": 1})"));
  EXPECT_EQ(file, CostFile());
  CostModel expected;
  expected.calls = {{"head", {.backward = 5}}};
  EXPECT_EQ(Costs(R"({"calls": {"head": {"backward": 5}}})"), expected);
}

TEST(CostFileTest, BandwidthsWithoutRanksAreOfAnyNumberOfThem) {
  struct Case {
    const char* costs;
    std::optional<int> ranks;
  };
  for (const Case& c :
       {Case{R"({"flops": 1})", 2}, Case{R"({"gather_bandwidth": 1})", 2},
        Case{R"({"gather_bandwidth": 1, "reduce_bandwidth": 1})", std::nullopt},
        Case{R"({"gather_bandwidth": 1, "reduce_bandwidth": 1, "ranks": 9})", 9}, Case{R"({"ranks": 9})", 9}}) {
    EXPECT_EQ(Costs(c.costs).ranks, c.ranks) << c.costs;
  }
}

TEST(CostFileTest, IsTextAndBack) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  const auto figure = [&] { return std::ldexp(1 + static_cast<double>(random()) / 0x1p32, below(80) - 20); };
  const auto text = [&] {
    std::string bytes;
    for (int i = below(8); i > 0; --i) bytes += "\"\\\n\x01 az=,\xc3\xa9"[below(9)];
    return bytes.find('\xc3') == std::string::npos ? bytes : std::string("\xc3\xa9");
  };
  for (int i = 0; i < 200; ++i) {
    CostFile file;
    for (std::map<std::string, std::string>* map : {&file.device, &file.job, &file.gemms}) {
      for (int entries = below(4); entries > 0; --entries) (*map)[text()] = text();
    }
    file.costs = {.flops = figure(),
                  .memory_bandwidth = figure(),
                  .gather_bandwidth = figure(),
                  .reduce_bandwidth = figure(),
                  .collective_us = below(2) * figure(),
                  .command_us = below(2) * figure()};
    file.costs.ranks = below(2) == 0 ? std::optional<int>() : std::numeric_limits<int>::max() - below(9);
    for (int calls = below(3); calls > 0; --calls) file.costs.calls[text()] = {below(2) * figure(), figure()};
    for (int64_t bytes = 0; bytes < below(100); bytes += 1 + below(50)) {
      file.transports.push_back({bytes, {kTransports[below(3)].transport, kTransports[below(3)].transport}});
    }
    const absl::StatusOr<CostFile> read = CostFileFromJson(ToJson(file));
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << ToJson(file);
    EXPECT_EQ(*read, file) << ToJson(file);
  }
}

// Where they came from is no reason to lose a measurement.
TEST(CostFileTest, BytesThatAreNoTextAreReplaced) {
  CostFile file;
  file.job["nccl_settings"] = "NCCL_ALGO=\xff";
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile read, CostFileFromJson(ToJson(file)));
  EXPECT_EQ(read.job.at("nccl_settings"), "NCCL_ALGO=\xef\xbf\xbd");
}

TEST(CostFileTest, RefusesEveryMistakeByItsPlace) {
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"", "JSON text: no valid JSON"},
      {"null", "JSON text: is of type null; give an object"},
      {"[]", "JSON text: is of type array; give an object"},
      {"{}", "JSON text: the key \"version\" is missing"},
      {R"({"version": 2, "rates": {}})", "version: is \"2\", but only 1 can be read; measure anew"},
      {R"({"version": "1"})", "version: is \"\\\"1\\\"\", but only 1 can be read"},
      {R"({"version": 1.5})", "version: is \"1.5\", but only 1 can be read"},
      {R"({"version": 1.0})", "version: is 1.0; give an integer"},
      {R"({"version": 1, "flops": 1})", "JSON text: unknown key \"flops\"; the keys are version, device, job, costs"},
      {R"({"version": 1, "version": 1})", "JSON text: the key \"version\" stands twice"},
      {R"({"version": 1, "device": "H200"})", "device: is of type string; give an object"},
      {R"({"version": 1, "job": {"ranks": 2}})", "job[\"ranks\"]: is of type number; give a string"},
      {R"({"version": 1, "gemms": {"a\nb": []}})", "gemms[\"a\\nb\"]: is of type array; give a string"},
      {R"({"version": 1, "transports": 3})", "transports: is of type number; give a string"},
      {R"({"version": 1, "transports": "auto"})", "transports: names no transport; leave it out"},
      {R"({"version": 1, "transports": "fast"})", "transports: \"fast\" in \"fast\" is no transport"},
      {std::string("{}\0", 3), "JSON text: byte 3 of 3 is a NUL"},
      {std::string(100000, '['), "JSON text: lists and objects are nested deeper than 16"},
  };
  for (const auto& [text, message] : mistakes) {
    EXPECT_THAT(CostFileFromJson(text), StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(message))) << text;
  }
  const std::pair<const char*, const char*> costs[] = {
      {"[]", "costs: is of type array; give an object"},
      {R"({"flop": 1})", "costs: unknown key \"flop\"; the keys are flops, memory_bandwidth"},
      {R"({"flops": 0})", "the cost model's flops is 0; give a positive number"},
      {R"({"memory_bandwidth": -1})", "the cost model's memory_bandwidth is -1; give a positive number"},
      {R"({"gather_bandwidth": 0})", "the cost model's gather_bandwidth is 0; give a positive number"},
      {R"({"reduce_bandwidth": 0})", "the cost model's reduce_bandwidth is 0; give a positive number"},
      {R"({"collective_us": -1})", "the cost model's collective_us is -1; give a finite number of at least 0"},
      {R"({"command_us": -1})", "the cost model's command_us is -1; give a finite number of at least 0"},
      {R"({"flops": "fast"})", "costs.flops: is of type string; give a number"},
      {R"({"reduce_bandwidth": 1e999})", "JSON text: no valid JSON"},
      {R"({"ranks": 0})", "costs.ranks: is 0; give the number of ranks that was measured"},
      {R"({"ranks": 4294967297})", "costs.ranks: is 4294967297; give the number of ranks"},
      {R"({"ranks": 2.5})", "costs.ranks: is 2.5; give an integer"},
      {R"({"calls": []})", "costs.calls: is of type array; give an object"},
      {R"({"calls": {"a\nb": 1}})", "costs.calls[\"a\\nb\"]: is of type number; give an object"},
      {R"({"calls": {"c": {"sideways": 1}}})", "costs.calls[\"c\"]: unknown key \"sideways\""},
      {R"({"calls": {"c": {"forward": -1}}})", "the cost model's forward of call \"c\" is -1; give a finite number"},
      {R"({"calls": {"c": {"backward": -1}}})", "the cost model's backward of call \"c\" is -1; give a finite number"},
  };
  for (const auto& [fields, message] : costs) {
    EXPECT_THAT(CostFileFromJson(absl::StrCat(R"({"version": 1, "costs": )", fields, "}")),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(message)))
        << fields;
  }
}

TEST(CostFileTest, DifferencesNameTheFactAndBothSides) {
  const MachineFacts facts = Sample().job;
  EXPECT_EQ(DifferenceOf(facts, facts), "");
  for (const auto& [name, value] : facts) {
    MachineFacts other = facts;
    other[name] = "4";
    EXPECT_EQ(DifferenceOf(facts, other), absl::StrCat("\"", name, "\" is \"", value, "\" there but \"4\" here"));
    other.erase(name);
    EXPECT_EQ(DifferenceOf(facts, other), absl::StrCat("\"", name, "\" is \"", value, "\" there but unset here"));
    EXPECT_EQ(DifferenceOf(other, facts), absl::StrCat("\"", name, "\" is unset there but \"", value, "\" here"));
  }
}

// Tests run in the project's root.
TEST(CostFileTest, TheInitialisersAreThoseOfBenchResults) {
  std::ifstream file("bench/results/2026-11-30-step_bench.json");
  ASSERT_TRUE(file.is_open());
  double teraflops = 0, gather = 0, reduce = 0;
  const nlohmann::json results = nlohmann::json::parse(file);
  for (const nlohmann::json& figures : results["figures"]) {
    if (figures["mode"] == "local") teraflops = std::max(teraflops, figures["teraflops"].get<double>());
    gather = std::max(gather, figures.value("gather_gb_per_s", 0.0));
    reduce = std::max(reduce, figures.value("reduce_gb_per_s", 0.0));
    EXPECT_EQ(figures["ranks"], CostModel().ranks);
  }
  // In three digits.
  EXPECT_NEAR(CostModel().flops, 1e12 * teraflops, 0.5e12);
  EXPECT_NEAR(CostModel().gather_bandwidth, 1e9 * gather, 0.5e9);
  EXPECT_NEAR(CostModel().reduce_bandwidth, 1e9 * reduce, 0.5e9);
}

}  // namespace
}  // namespace reprise
