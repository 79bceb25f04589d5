// The README's example, compiled and run. What lies between the markers is the README's text.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/linear.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise {
namespace {

struct Batch {
  std::vector<float> features;
  std::vector<int32_t> labels;
};

// Rows of noise; the label is the position of the largest of the first eight features.
Batch MakeBatch(int step, int microbatch, int rank) {
  testing::Random random(static_cast<uint64_t>(1000 * step + 10 * microbatch + rank));
  Batch batch;
  for (int row = 0; row < 32; ++row) {
    for (int i = 0; i < 64; ++i) batch.features.push_back(static_cast<float>(random.Below(2001) - 1000) / 1000);
    const auto first = batch.features.end() - 64;
    batch.labels.push_back(static_cast<int32_t>(std::max_element(first, first + 8) - first));
  }
  return batch;
}

// README.md example begins
absl::Status Train(std::shared_ptr<World> world) {
  ModelBuilder builder;  // what one microbatch computes ...
  ComputeTable compute;  // ... and the code that computes it
  const TensorId features = builder.AddInput({"features", {32, 64}, DType::kFloat32});
  const TensorId labels = builder.AddInput({"labels", {32}, DType::kInt32});
  const TensorId loss = builder.AddOutput({"loss", {}, DType::kFloat32});
  TensorId x = features;
  for (const std::string name : {"linear0", "linear1", "linear2"}) {  // units: gathered one ahead, reduced when ready
    const UnitId unit = builder.AddUnit(name);
    const ParameterId w = builder.AddParameter(unit, {name + ".weight", {64, 64}, DType::kFloat32});
    const TensorId y = builder.AddActivation({name + ".y", {32, 64}, DType::kFloat32});
    compute[builder.AddCall({.name = name, .units = {unit}, .inputs = {x}, .outputs = {y}, .saved = {x}})] = {
        [=](ComputeContext& c) {
          return kernels::Linear(c.stream(), c.input<float>(x), c.parameter<float>(w), c.output<float>(y));
        },
        [=](ComputeContext& c) {
          return kernels::LinearBackward(c.stream(), c.output_gradient<float>(y), c.saved<const float>(x),
                                         c.parameter<float>(w), c.input_gradient<float>(x),
                                         c.parameter_gradient<float>(w));
        }};
    x = y;
  }
  compute[builder.AddCall({.name = "loss", .inputs = {x, labels}, .outputs = {loss}, .saved = {x, labels}})] = {
      [=](ComputeContext& c) {
        return kernels::CrossEntropy(c.stream(), c.input<float>(x), c.input<int32_t>(labels), c.output<float>(loss));
      },
      [=](ComputeContext& c) {
        return kernels::CrossEntropyBackward(c.stream(), c.output_gradient<float>(loss), c.saved<const float>(x),
                                             c.saved<const int32_t>(labels), c.input_gradient<float>(x));
      }};
  builder.SetLoss(loss);
  REPRISE_ASSIGN_OR_RETURN(const Model model, builder.Build());
  REPRISE_ASSIGN_OR_RETURN(auto parameters, ShardedParameters::Create(world, model));
  REPRISE_RETURN_IF_ERROR(parameters->Initialize(Normal(/*seed=*/1, /*stddev=*/0.1f)));
  REPRISE_ASSIGN_OR_RETURN(auto session, TrainSession::Create(parameters, model, compute, {.optimizer = AdamW{}}));
  for (int step = 0; step < 100; ++step) {
    REPRISE_RETURN_IF_ERROR(session->BeginStep({.learning_rate = 1e-2f, .microbatches = 2}));
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      for (int rank : world->local_ranks()) {
        const Batch batch = MakeBatch(step, microbatch, rank);
        REPRISE_RETURN_IF_ERROR(session->CopyInput<float>(rank, features, batch.features));
        REPRISE_RETURN_IF_ERROR(session->CopyInput<int32_t>(rank, labels, batch.labels));
      }
      REPRISE_RETURN_IF_ERROR(session->RunMicrobatch());  // one launch: all gathers, compute and reductions
    }
    REPRISE_RETURN_IF_ERROR(session->EndStep());
    for (const StepMetrics& m : session->PollMetrics()) std::cout << "step " << m.step << " loss " << m.loss << "\n";
  }
  return session->Synchronize();
}
// README.md example ends

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

void ExpectTextOf(const std::string& readme) {
  const std::string begin = "// " + readme + " example begins\n", end = "// " + readme + " example ends\n";
  const std::string source = ReadFile("tests/graph/readme_example_test.cc");
  const size_t first = source.find("\n" + begin) + 1 + begin.size();
  const std::string example = source.substr(first, source.find("\n" + end) + 1 - first);
  ASSERT_GT(example.size(), 700u);
  EXPECT_NE(ReadFile(readme).find("```cpp\n" + example + "```\n"), std::string::npos)
      << readme << " does not hold the example as it stands between the markers of this file";
}

TEST(ReadmeExampleTest, IsTheTextOfTheReadme) { ExpectTextOf("README.md"); }

TEST(ReadmeExampleTest, AComputeFunctionIsTheTextOfCoresReadme) { ExpectTextOf("core/README.md"); }

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
  ::testing::internal::CaptureStdout();
  const absl::Status status = Train(*CreateHostWorld({.size = 2}));
  std::istringstream printed(::testing::internal::GetCapturedStdout());
  ASSERT_THAT(status, testing::IsOk());
  std::vector<float> losses;
  for (std::string line; std::getline(printed, line);) {
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
