// Every rank reads every parameter as a whole, and receives its part of the sum over ranks.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/cross_entropy.h"
#include "reprise/kernels/linear.h"
#include "tests/conformance/conformance.h"
#include "tests/testing/random_model.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

// y = x w^T and the cross-entropy of y over two classes.
struct TwoClasses {
  Model model;
  ComputeTable compute;
  ParameterId w;
  TensorId x, labels, y, loss;
};

TwoClasses MakeTwoClasses(int64_t columns) {
  TwoClasses m;
  ModelBuilder b;
  const UnitId unit = b.AddUnit("u");
  m.w = b.AddParameter(unit, {.name = "w", .shape = {2, columns}, .dtype = DType::kFloat32});
  m.x = b.AddInput({.name = "x", .shape = {columns, columns}, .dtype = DType::kFloat32});
  m.labels = b.AddInput({.name = "labels", .shape = {columns}, .dtype = DType::kInt32});
  m.y = b.AddOutput({.name = "y", .shape = {columns, 2}, .dtype = DType::kFloat32});
  m.loss = b.AddOutput({.name = "loss", .shape = {}, .dtype = DType::kFloat32});
  const CallId linear =
      b.AddCall({.name = "linear", .units = {unit}, .inputs = {m.x}, .outputs = {m.y}, .saved = {m.x}});
  const CallId loss =
      b.AddCall({.name = "loss", .inputs = {m.y, m.labels}, .outputs = {m.loss}, .saved = {m.y, m.labels}});
  b.SetLoss(m.loss);
  m.model = *b.Build();
  m.compute[linear] = {
      [=](ComputeContext& c) {
        return kernels::Linear<float>(c.stream(), c.input<float>(m.x), c.parameter<float>(m.w), c.output<float>(m.y));
      },
      [=](ComputeContext& c) {
        return kernels::LinearBackward<float, float>(c.stream(), c.output_gradient<float>(m.y),
                                                     c.saved<const float>(m.x), c.parameter<float>(m.w), {},
                                                     c.parameter_gradient<float>(m.w));
      }};
  m.compute[loss] = {[=](ComputeContext& c) {
                       return kernels::CrossEntropy<float>(c.stream(), c.input<float>(m.y), c.input<int32_t>(m.labels),
                                                           c.output<float>(m.loss));
                     },
                     [=](ComputeContext& c) {
                       return kernels::CrossEntropyBackward<float>(
                           c.stream(), c.output_gradient<float>(m.loss), c.saved<const float>(m.y),
                           c.saved<const int32_t>(m.labels), c.input_gradient<float>(m.y));
                     }};
  return m;
}

TEST_P(ConformanceTest, CollectivesGatherWholeParametersInOrder) {
  constexpr int64_t kColumns = 96;  // 192 elements: real ones and padding, shared by the ranks
  const TwoClasses m = MakeTwoClasses(kColumns);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanForward(m.model, ranks(), {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<PlanRunner> runner,
      NewRunner(plan, m.compute, [](ParameterId, int64_t element) { return static_cast<float>(element + 1); }));
  ASSERT_THAT(runner->BeginStep(1), IsOk());
  // The identity, so that y is w transposed.
  ASSERT_THAT(runner->ReplayGraph(plan.first,
                                  [&](int, int64_t, TensorId tensor, int64_t element) {
                                    return tensor == m.x && element % (kColumns + 1) == 0 ? 1.0 : 0.0;
                                  }),
              IsOk());
  for (size_t local = 0; local < world_->local_ranks().size(); ++local) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        const std::vector<float> y,
        runner->ReadAs<float>(static_cast<int>(local), plan.tensor_buffers[m.y.value()].value));
    for (int64_t i = 0; i < kColumns * 2; ++i) {
      ASSERT_EQ(y[i], static_cast<float>(i % 2 * kColumns + i / 2 + 1))
          << "element " << i << " on local rank " << local;
    }
  }
}

class Reductions {
 public:
  // Every rank's gradient of w[c][j] is loss_scale (1/2 - [c = label]) x[.][j] summed over rows and divided by their
  // number, which is a power of two; with w = 0, x = rank + 1 everywhere and labels 0 it is loss_scale (rank + 1) / 2,
  // negative for class 0. So the sum over ranks is exact in every dtype as long as it is below 2^8.
  static float Expected(int ranks, int64_t element, int64_t columns) {
    const double sum = 0.5 * ranks * (ranks + 1) / 2;
    return static_cast<float>(kLossScale * (element < columns ? -sum : sum));
  }
  static constexpr double kLossScale = 4;  // of PlanRunner
  // The runner after a step of one microbatch, up to the sum over ranks.
  static absl::StatusOr<std::unique_ptr<PlanRunner>> Run(absl::StatusOr<std::unique_ptr<PlanRunner>> made,
                                                         const InputValue& inputs) {
    REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<PlanRunner> runner, std::move(made));
    REPRISE_RETURN_IF_ERROR(runner->BeginStep(1));
    REPRISE_RETURN_IF_ERROR(runner->ReplayGraph(runner->plan().first, inputs));
    if (const int finish = runner->plan().finish; finish >= 0) REPRISE_RETURN_IF_ERROR(runner->Replay(finish));
    return runner;
  }
};

TEST_P(ConformanceTest, CollectivesReduceGradientsToTheirOwners) {
  constexpr int64_t kColumns = 64;
  const TwoClasses m = MakeTwoClasses(kColumns);
  std::vector<PlanOptions> plans;
  for (const Transport transport : {Transport::kNccl, Transport::kSymmetric, Transport::kCopyEngine}) {
    for (const Reduce reduce : {Reduce::kEveryMicrobatch, Reduce::kOncePerStep}) {
      for (const DType reduce_dtype : {DType::kFloat32, DType::kBFloat16}) {
        plans.push_back({.reduce = reduce, .transports = EveryUnit(transport), .reduce_dtype = reduce_dtype});
        if (!TraitsOf(transport).adds) continue;
        plans.push_back(
            {.reduce = reduce, .transports = EveryUnit(transport), .sum = Sum::kNccl, .reduce_dtype = reduce_dtype});
      }
    }
  }
  for (const PlanOptions& options : plans) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(m.model, ranks(), options));
    const absl::StatusOr<std::unique_ptr<PlanRunner>> runner =
        Reductions::Run(NewRunner(plan, m.compute, [](ParameterId, int64_t) { return 0.0f; }),
                        [&](int rank, int64_t, TensorId tensor, int64_t) { return tensor == m.x ? rank + 1.0 : 0.0; });
    if (absl::IsUnavailable(runner.status())) continue;  // the machine lacks the transport
    ASSERT_THAT(runner, IsOk());
    const FlatGroup& group = plan.layout.units[0].groups[0];
    for (size_t local = 0; local < world_->local_ranks().size(); ++local) {
      REPRISE_ASSERT_OK_AND_ASSIGN(
          const std::vector<float> sums,
          (*runner)->ReadAs<float>(static_cast<int>(local), plan.unit_buffers[0].accumulators[0]));
      std::vector<float> expected(group.shard_elements, 0);  // padding stays as it was
      for (const ShardSegment& segment : Segments(group, world_->local_ranks()[local])) {
        for (int64_t i = 0; i < segment.num_elements; ++i) {
          expected[segment.shard_element + i] = Reductions::Expected(ranks(), segment.parameter_element + i, kColumns);
        }
      }
      EXPECT_EQ(sums, expected) << ToText(options.transports) << ", reduce_dtype " << Name(options.reduce_dtype)
                                << ", once per step " << (options.reduce == Reduce::kOncePerStep) << ", local rank "
                                << local;
    }
  }
}

// In another order the third rank's 1 would swallow the others' 2^-24, one by one.
TEST_P(ConformanceTest, CollectivesOfExchangesAddUpInRankOrder) {
  constexpr int64_t kColumns = 256;  // so that each of three ranks owns some
  const TwoClasses m = MakeTwoClasses(kColumns);
  const auto value = [](int rank) { return rank == 2 ? 1.0 : 0x1p-24; };
  // See Reductions, of class 1.
  float sum = 0;
  for (int rank = 0; rank < ranks(); ++rank) sum += static_cast<float>(Reductions::kLossScale / 2 * value(rank));
  const PlanOptions plans[] = {
      {.transports = EveryUnit(Transport::kNccl)},
      {.transports = EveryUnit(Transport::kSymmetric)},
      {.transports = EveryUnit(Transport::kCopyEngine)},
      {.reduce = Reduce::kOncePerStep, .transports = EveryUnit(Transport::kNccl), .reduce_dtype = DType::kFloat32},
      {.reduce = Reduce::kOncePerStep, .transports = EveryUnit(Transport::kSymmetric), .reduce_dtype = DType::kFloat32},
      {.reduce = Reduce::kOncePerStep,
       .transports = EveryUnit(Transport::kCopyEngine),
       .reduce_dtype = DType::kFloat32}};
  for (const PlanOptions& options : plans) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(m.model, ranks(), options));
    const absl::StatusOr<std::unique_ptr<PlanRunner>> runner =
        Reductions::Run(NewRunner(plan, m.compute, [](ParameterId, int64_t) { return 0.0f; }),
                        [&](int rank, int64_t, TensorId tensor, int64_t) { return tensor == m.x ? value(rank) : 0.0; });
    if (absl::IsUnavailable(runner.status())) continue;  // the machine lacks the transport
    ASSERT_THAT(runner, IsOk());
    const FlatGroup& group = plan.layout.units[0].groups[0];
    for (size_t local = 0; local < world_->local_ranks().size(); ++local) {
      REPRISE_ASSERT_OK_AND_ASSIGN(
          const std::vector<float> sums,
          (*runner)->ReadAs<float>(static_cast<int>(local), plan.unit_buffers[0].accumulators[0]));
      for (const ShardSegment& segment : Segments(group, world_->local_ranks()[local])) {
        for (int64_t i = 0; i < segment.num_elements; ++i) {
          EXPECT_EQ(sums[segment.shard_element + i], segment.parameter_element + i < kColumns ? -sum : sum)
              << ToText(options.transports) << ", once per step " << (options.reduce == Reduce::kOncePerStep)
              << ", local rank " << local;
        }
      }
    }
  }
}

// All transports, and any mix of them, give the same bits.
TEST_P(ConformanceTest, CollectivesOfAllTransportsGiveTheSameBits) {
  const LinearChain chain = MakeLinearChain({32, 64, 16, 96, 8, 4});
  const auto sums = [&](const PlanOptions& options) -> absl::StatusOr<std::vector<std::string>> {
    REPRISE_ASSIGN_OR_RETURN(const Plan plan, PlanTraining(chain.model, ranks(), options));
    REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<PlanRunner> runner,
                             NewRunner(plan, chain.compute, [](ParameterId p, int64_t i) {
                               return static_cast<float>((i * 7 + p.value()) % 13 - 6) / 37;
                             }));
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      if (microbatch == 0) REPRISE_RETURN_IF_ERROR(runner->BeginStep(2));
      REPRISE_RETURN_IF_ERROR(runner->ReplayGraph(
          microbatch == 0 ? plan.first : plan.body, [&](int rank, int64_t, TensorId tensor, int64_t i) {
            return tensor.value() == 0 ? static_cast<double>((i * 5 + rank + microbatch) % 17 - 8) / 29 : 1.0;
          }));
    }
    std::vector<std::string> bytes;
    for (const UnitBuffers& unit : plan.unit_buffers) {
      std::string& all = bytes.emplace_back();
      for (size_t local = 0; local < world_->local_ranks().size(); ++local) {
        REPRISE_ASSIGN_OR_RETURN(const std::string part, runner->Read(static_cast<int>(local), unit.accumulators[0]));
        all += part;
      }
    }
    return bytes;
  };
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> expected,
                               sums({.transports = EveryUnit(Transport::kNccl)}));
  if (ranks() > 2) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> by_nccl,
                                 sums({.transports = EveryUnit(Transport::kNccl), .sum = Sum::kNccl}));
    EXPECT_NE(by_nccl, expected) << "so that another order or rounding would be seen";
  }
  std::vector<std::vector<TransportChoice>> all = {
      {{0, Transport::kSymmetric}, {4000, Transport::kCopyEngine}},
      {{0, Transport::kSymmetric}, {500, Transport::kNccl}, {7000, Transport::kCopyEngine}}};
  for (const TransportTraits& gather : kTransports) {
    for (const TransportTraits& exchange : kTransports) {
      all.push_back(EveryUnit({gather.transport, exchange.transport}));
    }
  }
  int compared = 0;
  for (const std::vector<TransportChoice>& transports : all) {
    const absl::StatusOr<std::vector<std::string>> bytes = sums({.transports = transports});
    if (absl::IsUnavailable(bytes.status())) continue;  // the machine lacks a transport
    ASSERT_THAT(bytes, IsOk()) << ToText(transports);
    EXPECT_EQ(*bytes, expected) << ToText(transports);
    ++compared;
  }
  if (compared == 1) GTEST_SKIP() << "this machine has one transport";
}

// Of any shapes and schedules: everything that two steps leave behind.
TEST_P(ConformanceTest, CollectivesOfAllTransportsTrainAlike) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Random random(seed);
    std::vector<int64_t> widths(static_cast<size_t>(2 + random.Below(4)));
    for (int64_t& width : widths) width = random.Size(96);
    const int64_t classes = 1 + random.Size(9);
    widths.push_back(classes);
    const LinearChain chain = MakeLinearChain(widths);
    PlanOptions options = RandomPlanOptions(random);
    options.sum = Sum::kRankOrder;
    const int microbatches = 2 * *options.microbatches_per_graph;
    const auto train = [&](const std::vector<TransportChoice>& transports) -> absl::StatusOr<std::string> {
      options.transports = transports;
      REPRISE_ASSIGN_OR_RETURN(const Plan plan, PlanTraining(chain.model, ranks(), options));
      REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<PlanRunner> runner,
                               NewRunner(plan, chain.compute, [](ParameterId p, int64_t i) {
                                 return static_cast<float>((i * 7 + p.value()) % 13 - 6) / 37;
                               }));
      for (int step = 0; step < 2; ++step) {
        REPRISE_RETURN_IF_ERROR(
            runner->RunStep(microbatches, [&](int rank, int64_t microbatch, TensorId tensor, int64_t i) {
              return tensor == chain.x ? static_cast<double>((i * 5 + rank + microbatch) % 17 - 8) / 29
                                       : static_cast<double>((i + rank) % classes);
            }));
      }
      return runner->ReadAll();
    };
    const auto any = [&] { return kTransports[static_cast<size_t>(random.Below(kTransports.size()))].transport; };
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::string expected, train(EveryUnit(Transport::kNccl)));
    const std::vector<TransportChoice> all[] = {EveryUnit(Transport::kSymmetric),
                                                EveryUnit(Transport::kCopyEngine),
                                                {{0, {any(), any()}}, {1 + random.Below(9000), {any(), any()}}}};
    for (const std::vector<TransportChoice>& transports : all) {
      const absl::StatusOr<std::string> bytes = train(transports);
      if (absl::IsUnavailable(bytes.status())) continue;  // the machine lacks a transport
      ASSERT_THAT(bytes, IsOk()) << ToText(transports) << ", seed " << seed;
      EXPECT_TRUE(*bytes == expected) << ToText(transports) << ", seed " << seed;
      ++compared;
    }
  }
  if (compared == 0) GTEST_SKIP() << "this machine has one transport";
}

TEST_P(ConformanceTest, CollectivesSumLossAndNormOverRanks) {
  constexpr int64_t kColumns = 64;
  const TwoClasses m = MakeTwoClasses(kColumns);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(m.model, ranks(), {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                               NewRunner(plan, m.compute, [](ParameterId, int64_t) { return 0.0f; }));
  ASSERT_THAT(
      runner->RunStep(1, [&](int rank, int64_t, TensorId tensor, int64_t) { return tensor == m.x ? rank + 1.0 : 0.0; }),
      IsOk());
  const double element = Reductions::Expected(ranks(), 0, kColumns);
  for (size_t local = 0; local < world_->local_ranks().size(); ++local) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<StepState> state,
                                 runner->ReadAs<StepState>(static_cast<int>(local), plan.step_state));
    EXPECT_EQ(state[0].norm_squared, 2 * kColumns * element * element);
    // Each rank's loss is log 2, rounded to float.
    EXPECT_NEAR(state[0].loss_total, ranks() * 0.6931471805599453, ranks() * 0x1p-22);
    EXPECT_EQ(state[0].optimizer_steps, 1);
    EXPECT_EQ(state[0].skip, SkipReason::kNone);
    // Where the plan says: this rank's part, then those of all ranks.
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<NormPart> parts,
                                 runner->ReadAs<NormPart>(static_cast<int>(local), plan.norm_parts));
    ASSERT_EQ(parts.size(), 1 + static_cast<size_t>(ranks()));
    const NormPart& mine = parts[1 + static_cast<size_t>(world_->local_ranks()[local])];
    EXPECT_EQ(parts[0].norm_squared, mine.norm_squared);
    EXPECT_EQ(parts[0].loss_sum, mine.loss_sum);
    double norm_squared = 0, loss = 0;
    for (int rank = 0; rank < ranks(); ++rank) {
      norm_squared += parts[1 + static_cast<size_t>(rank)].norm_squared;
      loss += parts[1 + static_cast<size_t>(rank)].loss_sum;
    }
    EXPECT_EQ(norm_squared, state[0].norm_squared);
    EXPECT_EQ(loss, state[0].loss_total);
  }
}

}  // namespace
}  // namespace reprise::testing
