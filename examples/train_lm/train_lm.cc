// Trains a byte-level language model, fully sharded over GPUs or over host ranks, on any text file.
//
//   train_lm --data=text.txt --ranks=2 --microbatches=2
//   torchrun --nproc-per-node=2 --no-python build/bin/train_lm --data=text.txt
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/common/command_line.h"
#include "examples/common/language_model.h"
#include "examples/common/output.h"
#include "examples/common/plan_flags.h"
#include "examples/common/world.h"
#include "examples/train_lm/check.h"
#include "examples/train_lm/printable.h"
#include "examples/train_lm/progress.h"
#include "examples/train_lm/text_data.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/forward_session.h"
#include "reprise/graph/train_session.h"

ABSL_FLAG(std::string, data, "build/quickstart/text.txt",
          "text to train on, of which the last tenth is for validation; examples/quickstart makes the default");
ABSL_FLAG(int, microbatches, 2, "microbatches per rank and step");
ABSL_FLAG(int, depth, 2, "transformer blocks");
ABSL_FLAG(int, width, 128, "width of the residual stream; a multiple of --heads");
ABSL_FLAG(int, heads, 4, "attention heads");
ABSL_FLAG(int, context, 64, "bytes per sequence");
ABSL_FLAG(int, batch, 8, "sequences per rank and microbatch");
ABSL_FLAG(int, steps, 500, "optimizer steps");
ABSL_FLAG(double, lr, 3e-3, "peak learning rate: linear warm-up over the first twentieth, cosine decay to a tenth");
ABSL_FLAG(uint64_t, seed, 1, "seed of the initial weights and of the batches");
ABSL_FLAG(bool, check, false, "compare each step with the same training unsharded on one rank");

namespace reprise::examples {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSampleBytes = 300;
constexpr int kMaxMicrobatches = 1 << 20;
constexpr int64_t kValidationBatches = 64;  // per rank; a sixtieth of the validation part of a 4 MB text at defaults

struct Run {
  PlanOptions plan;
  LanguageModelOptions model;
  int microbatches = 1;
  int steps = 1;
  double learning_rate = 0;
  uint64_t seed = 0;
  bool check = false;
};

absl::Status CheckFlags(const Run& run) {
  REPRISE_RETURN_IF_ERROR(CheckFlag(FLAGS_microbatches, 1, kMaxMicrobatches));
  if (run.check && run.plan.master_dtype != DType::kFloat32) {
    return absl::InvalidArgumentError("--check follows masters of f32; leave --master_dtype out");
  }
  REPRISE_RETURN_IF_ERROR(CheckFlag(FLAGS_steps, 1, std::numeric_limits<int>::max()));
  if (!(static_cast<float>(run.learning_rate) > 0) || !std::isfinite(static_cast<float>(run.learning_rate))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--lr is ", run.learning_rate, " but must be positive and a finite float"));
  }
  return absl::OkStatus();
}

float LearningRate(const Run& run, int step) {
  const int warm_up = run.steps / 20;
  if (step < warm_up) return static_cast<float>(run.learning_rate * (step + 1) / (warm_up + 1));
  const double done = static_cast<double>(step - warm_up) / std::max(1, run.steps - warm_up);
  return static_cast<float>(run.learning_rate * (0.55 + 0.45 * std::cos(M_PI * done)));
}

double BitsPerByte(double nats) { return nats / std::log(2.0); }

void PrintProgress(const Run& run, int ranks, const StepMetrics& metrics, const std::string& skipped,
                   Clock::time_point start) {
  const int64_t done = metrics.step + 1;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const double tokens = static_cast<double>(done) * ranks * run.microbatches * run.model.batch * run.model.context;
  std::cout << absl::StrFormat("step %d  %.3f bits per byte  %.0f tokens/s  %.0f s left", metrics.step,
                               BitsPerByte(metrics.loss), tokens / seconds, seconds / done * (run.steps - done))
            << (skipped.empty() ? "" : "  ") << skipped << std::endl;
}

absl::Status Train(const Run& run, World& world, bool prints, const TextData& text, const LanguageModel& model,
                   ShardedParameters& parameters, TrainSession& session, ReferenceCheck* check) {
  const Clock::time_point start = Clock::now();
  const int report_every = std::max(1, run.steps / 25);
  if (prints) std::cout << "training for " << run.steps << " steps, the first is step 0\n";
  Progress progress(run.steps);
  StepMetrics last;
  const auto poll = [&] {
    for (const StepMetrics& metrics : session.PollMetrics()) {
      progress.Add(metrics);
      last = metrics;
    }
  };
  for (int step = 0; step < run.steps; ++step) {
    const float learning_rate = LearningRate(run, step);
    if (check != nullptr) REPRISE_RETURN_IF_ERROR(check->Start(parameters));
    REPRISE_RETURN_IF_ERROR(session.BeginStep({.learning_rate = learning_rate, .microbatches = run.microbatches}));
    for (int microbatch = 0; microbatch < run.microbatches; ++microbatch) {
      for (int rank : world.local_ranks()) {
        const Batch batch = text.TrainBatch(run.model.batch, run.seed, step, microbatch, rank);
        REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, model.tokens, batch.tokens));
        REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, model.labels, batch.labels));
      }
      for (int rank = 0; check != nullptr && rank < world.size(); ++rank) {
        REPRISE_RETURN_IF_ERROR(
            check->AddMicrobatch(text.TrainBatch(run.model.batch, run.seed, step, microbatch, rank)));
      }
      REPRISE_RETURN_IF_ERROR(session.RunMicrobatch());
    }
    if (check != nullptr) REPRISE_RETURN_IF_ERROR(check->CompareGradients(session));
    REPRISE_RETURN_IF_ERROR(session.EndStep());
    if (check != nullptr) REPRISE_RETURN_IF_ERROR(check->CompareUpdate(parameters, learning_rate));
    poll();
    if (step % report_every == 0 || step + 1 == run.steps) {
      // All ranks know all steps so far, and so decide alike whether to go on.
      REPRISE_RETURN_IF_ERROR(session.Synchronize());
      poll();
      const std::string skipped = progress.TakeSkipped();
      if (prints) PrintProgress(run, world.size(), last, skipped, start);
      if (absl::Status lost = progress.Check(); !lost.ok()) {
        REPRISE_ASSIGN_OR_RETURN(const std::string why, session.FindNonFinite());
        if (prints) std::cout << "where it began: " << why << "\n";
        REPRISE_RETURN_IF_ERROR(CheckOutput());
        return lost;
      }
    }
    REPRISE_RETURN_IF_ERROR(CheckOutput());
  }
  if (!prints) return absl::OkStatus();
  std::cout << absl::StrFormat("trained for %.1f s\n", std::chrono::duration<double>(Clock::now() - start).count());
  return absl::OkStatus();
}

// Batches of the validation part for each rank.
absl::StatusOr<int64_t> ValidationRounds(const TextData& text, int batch, int ranks) {
  const int64_t batches = text.NumValidationBatches(batch);
  if (batches >= ranks) return std::min(kValidationBatches, batches / ranks);
  return absl::InvalidArgumentError(absl::StrCat("the validation part has ", batches, " batches, fewer than the ",
                                                 ranks,
                                                 " ranks; use a longer text, or a smaller --batch or --context"));
}

// Mean loss over the validation part, in bits per byte; the ranks take turns with its batches.
absl::StatusOr<double> Validate(World& world, const TextData& text, const LanguageModel& model, int batch,
                                ForwardSession& session) {
  REPRISE_ASSIGN_OR_RETURN(const int64_t rounds, ValidationRounds(text, batch, world.size()));
  double sum = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int rank : world.local_ranks()) {
      const Batch inputs = text.ValidationBatch(batch, round * world.size() + rank);
      REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, 0, model.tokens, inputs.tokens));
      REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, 0, model.labels, inputs.labels));
    }
    REPRISE_RETURN_IF_ERROR(session.Replay(0));
    std::vector<double> losses;
    for (int rank : world.local_ranks()) {
      REPRISE_ASSIGN_OR_RETURN(const std::vector<float> loss, session.ReadOutput<float>(rank, 0, model.loss));
      losses.push_back(loss[0]);
    }
    REPRISE_ASSIGN_OR_RETURN(const double total, world.Sum(losses, "losses"));
    sum += total;
  }
  return BitsPerByte(sum / static_cast<double>(rounds * world.size()));
}

// Continues `prompt`, drawing each byte from the model's distribution sharpened by a temperature of 0.7.
absl::StatusOr<std::string> Sample(World& world, const Run& run, const LanguageModel& model, std::string text,
                                   ForwardSession& session) {
  const int context = run.model.context;
  uint64_t random = run.seed;
  for (int i = 0; i < kSampleBytes; ++i) {
    const std::string window = text.substr(text.size() - std::min<size_t>(text.size(), context));
    std::vector<int32_t> tokens(context, ' ');
    for (size_t j = 0; j < window.size(); ++j) tokens[j] = static_cast<unsigned char>(window[j]);
    for (int rank : world.local_ranks()) {
      REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, 1, model.tokens, tokens));
    }
    REPRISE_RETURN_IF_ERROR(session.Replay(1));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<float> logits,
                             session.ReadOutput<float>(world.local_ranks()[0], 1, model.logits));
    const float* row = &logits[(window.size() - 1) * kVocabulary];
    const float largest = *std::max_element(row, row + kVocabulary);
    std::vector<double> cumulative(kVocabulary);
    double total = 0;
    for (int v = 0; v < kVocabulary; ++v) cumulative[v] = total += std::exp((row[v] - largest) / 0.7);
    random = random * 6364136223846793005u + 1442695040888963407u;
    const double draw = static_cast<double>(random >> 11) * 0x1p-53 * total;
    const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end() - 1, draw);
    text.push_back(static_cast<char>(chosen - cumulative.begin()));
  }
  return text;
}

// Returns the exit code.
absl::StatusOr<int> Main() {
  REPRISE_ASSIGN_OR_RETURN(const PlanOptions plan_options, ReadPlanFlags({.reduce_dtype = DType::kFloat32}));
  const Run run = {.plan = plan_options,
                   .model = {absl::GetFlag(FLAGS_depth), absl::GetFlag(FLAGS_width), absl::GetFlag(FLAGS_heads),
                             absl::GetFlag(FLAGS_context), absl::GetFlag(FLAGS_batch)},
                   .microbatches = absl::GetFlag(FLAGS_microbatches),
                   .steps = absl::GetFlag(FLAGS_steps),
                   .learning_rate = absl::GetFlag(FLAGS_lr),
                   .seed = absl::GetFlag(FLAGS_seed),
                   .check = absl::GetFlag(FLAGS_check)};
  REPRISE_RETURN_IF_ERROR(CheckFlags(run));
  REPRISE_ASSIGN_OR_RETURN(const LanguageModel model, BuildLanguageModel(run.model, LanguageModelOutput::kLoss));
  LanguageModelOptions one_sequence = run.model;
  one_sequence.batch = 1;
  REPRISE_ASSIGN_OR_RETURN(const LanguageModel sampler, BuildLanguageModel(one_sequence, LanguageModelOutput::kLogits));
  REPRISE_ASSIGN_OR_RETURN(const TextData text, TextData::Load(absl::GetFlag(FLAGS_data), run.model.context));
  REPRISE_ASSIGN_OR_RETURN(const Program program, StartProgram());
  if (program.exit_code.has_value()) return *program.exit_code;
  const std::shared_ptr<World>& world = program.world;
  REPRISE_RETURN_IF_ERROR(ValidationRounds(text, run.model.batch, world->size()).status());
  REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<ShardedParameters> parameters,
                           ShardedParameters::Create(world, model.model, run.plan.master_dtype));
  REPRISE_RETURN_IF_ERROR(parameters->Initialize(LanguageModelInitializer(run.seed, run.model.depth)));
  TrainOptions options;
  options.run.plan = run.plan;
  options.optimizer = AdamW{.beta2 = 0.99f};
  options.clip_norm = run.check ? std::optional<float>() : 1.0f;  // the check follows the unclipped update
  REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<TrainSession> session,
                           TrainSession::Create(parameters, model.model, model.compute, options));
  RunOptions forward_options;
  forward_options.plan = run.plan;
  forward_options.plan.microbatches_per_graph.reset();  // forward sessions replay one at a time
  REPRISE_ASSIGN_OR_RETURN(
      std::unique_ptr<ForwardSession> forward,
      ForwardSession::Create(parameters,
                             {{"validation", model.model, model.compute}, {"sample", sampler.model, sampler.compute}},
                             forward_options, session.get()));
  std::unique_ptr<ReferenceCheck> check;
  if (run.check) {
    REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<World> alone, program.new_world_alone());
    REPRISE_ASSIGN_OR_RETURN(check, ReferenceCheck::Create(std::move(alone), model, std::get<AdamW>(options.optimizer),
                                                           run.plan.reduce_dtype));
  }
  int64_t elements = 0;
  for (const Parameter& parameter : model.model.parameters()) elements += NumElements(parameter.spec.shape);
  const PlanOptions& plan = session->plan().options;
  if (program.prints) {
    std::cout << absl::StrFormat(
        "%d parameters over %d ranks; %d training bytes; per rank %.1f MiB persistent, %.1f MiB transient; %d weight "
        "slots, %d gradient slots\n",
        elements, world->size(), text.train_bytes(), session->report().persistent_bytes / 1048576.0,
        session->report().transient_bytes / 1048576.0, *plan.weight_slots, *plan.gradient_slots);
    std::cout << "transports: " << ToText(plan.transports) << " (" << session->report().transport_reason << ")\n";
  }
  int64_t nodes = 0, events = 0;
  for (const GraphAudit& graph : session->report().graphs) {
    nodes += graph.nodes();
    events += graph.events;
  }
  if (program.prints && events > 0) {
    std::cout << absl::StrFormat(
        "%d of %d graph nodes are there because NCCL may mix graphs with other work; NCCL_GRAPH_MIXING_SUPPORT=0 saves "
        "them\n",
        events, nodes);
  }

  REPRISE_RETURN_IF_ERROR(Train(run, *world, program.prints, text, model, *parameters, *session, check.get()));
  if (check != nullptr && program.prints) {
    std::cout << absl::StrFormat(
        "check passed: the largest error of a gradient is %.0f %% of its bound, of an update %.0f %%\n",
        100 * check->worst_gradient(), 100 * check->worst_update());
  }
  const std::string prompt(text.validation().substr(0, std::max(1, run.model.context / 2)));
  REPRISE_ASSIGN_OR_RETURN(const std::string sample, Sample(*world, run, sampler, prompt, *forward));
  if (program.prints) {
    std::cout << "prompt:\n"
              << Printable(prompt) << "\nsample:\n"
              << Printable(absl::string_view(sample).substr(prompt.size())) << "\n";
  }
  REPRISE_ASSIGN_OR_RETURN(const double bits, Validate(*world, text, model, run.model.batch, *forward));
  if (program.prints) std::cout << absl::StrFormat("validation: %.3f bits per byte\n", bits);
  if (!std::isfinite(bits)) {
    return absl::AbortedError(
        "the validation loss is not finite: the last step broke the parameters; use a smaller --lr");
  }
  return 0;
}

}  // namespace
}  // namespace reprise::examples

int main(int argc, char** argv) {
  return reprise::examples::RunProgram(
      argc, argv,
      "trains a byte-level language model, fully sharded over GPUs or host ranks, on a text.\n\n"
      "  train_lm --data=text.txt --steps=100\n"
      "  train_lm --data=text.txt --device=host --ranks=4 --check\n"
      "  torchrun --nproc-per-node=2 --no-python train_lm --data=text.txt",
      reprise::examples::Main);
}
