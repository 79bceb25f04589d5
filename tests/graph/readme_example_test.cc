// The READMEs' examples, compiled and run: readme_example.cc is that of README.md, what lies between the markers here
// that of core/README.md.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "reprise/core/compute.h"
#include "reprise/core/model.h"
#include "tests/testing/run_executable.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// core/README.md example begins
Compute Twice(TensorId x, TensorId y) {
  Compute compute;
  compute.forward = [=](ComputeContext& c) {
    c.stream().host_queue().Enqueue([x = c.input<float>(x), y = c.output<float>(y)] {
      for (int64_t i = 0; i < x.num_elements(); ++i) y.data[i] = 2 * x.data[i];
    });
    return absl::OkStatus();
  };
  compute.backward = [=](ComputeContext& c) {
    c.stream().host_queue().Enqueue([dy = c.output_gradient<float>(y), dx = c.input_gradient<float>(x)] {
      for (int64_t i = 0; i < dx.num_elements(); ++i) {
        const float old = dx.mode == WriteMode::kAdd ? dx.data[i] : 0;
        dx.data[i] = old + 2 * dy.data[i];
      }
    });
    return absl::OkStatus();
  };
  return compute;
}
// core/README.md example ends

// A README holds this code as it is here.
void ExpectInReadme(const std::string& readme, const std::string& code) {
  ASSERT_GT(code.size(), 700u);
  EXPECT_NE(ReadFile(readme).find("```cpp\n" + code + "```\n"), std::string::npos)
      << readme << " does not hold its example as it is compiled";
}

TEST(ReadmeExampleTest, IsTheWholeFile) { ExpectInReadme("README.md", ReadFile("tests/graph/readme_example.cc")); }

TEST(ReadmeExampleTest, AComputeFunctionIsTheTextOfCoresReadme) {
  const std::string begin = "// core/README.md example begins\n", end = "// core/README.md example ends\n";
  const std::string source = ReadFile("tests/graph/readme_example_test.cc");
  const size_t first = source.find("\n" + begin) + 1 + begin.size();
  ExpectInReadme("core/README.md", source.substr(first, source.find("\n" + end) + 1 - first));
}

TEST(ReadmeExampleTest, AComputeFunctionComputes) {
  ModelBuilder builder;
  const TensorId x = builder.AddInput({"x", {2}, DType::kFloat32}), y = builder.AddOutput({"y", {2}, DType::kFloat32});
  const CallId call = builder.AddCall({.name = "twice", .inputs = {x}, .outputs = {y}});
  const absl::StatusOr<Model> model = builder.Build();
  ASSERT_THAT(model, testing::IsOk());
  float values[] = {1, 3}, results[] = {5, 7}, old[] = {10, 20};
  ImmediateHostQueue queue;
  const auto run = [&](Phase phase, std::vector<ComputeContext::Operand> operands) {
    ComputeContext context(*model, call, phase, 0, 1, 0, Stream(&queue), nullptr, nullptr, std::move(operands));
    const Compute twice = Twice(x, y);
    return (phase == Phase::kForward ? twice.forward : twice.backward)(context);
  };
  ASSERT_THAT(run(Phase::kForward,
                  {{.role = Role::kInput, .id = 0, .data = values}, {.role = Role::kOutput, .id = 1, .data = results}}),
              testing::IsOk());
  EXPECT_EQ(results[1], 6);
  for (const WriteMode mode : {WriteMode::kAssign, WriteMode::kAdd}) {
    old[0] = 10;
    ASSERT_THAT(run(Phase::kBackward, {{.role = Role::kOutputGradient, .id = 1, .data = values},
                                       {.role = Role::kInputGradient, .id = 0, .mode = mode, .data = old}}),
                testing::IsOk());
    EXPECT_EQ(old[0], mode == WriteMode::kAdd ? 12 : 2);
  }
}

TEST(ReadmeExampleTest, Learns) {
  const testing::FinishedRun run = testing::RunExecutable(REPRISE_README_EXAMPLE, "2>&1");
  ASSERT_EQ(run.exit_code, 0) << run.output;
  std::istringstream printed(run.output);
  std::vector<float> losses;
  for (std::string line; std::getline(printed, line) && line != "OK";) {
    int step = -1;
    float loss = -1;
    ASSERT_EQ(std::sscanf(line.c_str(), "step %d loss %f", &step, &loss), 2) << line;
    ASSERT_EQ(step, static_cast<int>(losses.size()));
    losses.push_back(loss);
  }
  ASSERT_EQ(losses.size(), 100u);
  EXPECT_LT(losses.back(), 0.25f * losses.front());
}

}  // namespace
}  // namespace reprise
