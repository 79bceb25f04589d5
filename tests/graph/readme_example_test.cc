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

// README example begins
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
// README example ends

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(ReadmeExampleTest, IsTheTextOfTheReadme) {
  const std::string begin = "// README example begins\n", end = "// README example ends\n";
  const std::string source = ReadFile("tests/graph/readme_example_test.cc");
  const size_t first = source.find("\n" + begin) + 1 + begin.size();
  const std::string example = source.substr(first, source.find("\n" + end) + 1 - first);
  ASSERT_GT(example.size(), 1000u);
  EXPECT_NE(ReadFile("README.md").find("```cpp\n" + example + "```\n"), std::string::npos)
      << "README.md does not hold the example as it stands between the markers of this file";
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
