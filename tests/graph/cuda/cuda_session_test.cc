// Training sessions on devices: the host ranks' numbers, the plan's memory, launches without allocation, any order of
// destruction.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/model/quoted.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/measure.h"
#include "reprise/graph/train_session.h"
#include "tests/conformance/conformance.h"
#include "tests/graph/cuda/allocation_count.h"
#include "tests/graph/cuda/cuda_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kUnits = 4;
constexpr int kMicrobatches = 2;

absl::StatusOr<std::shared_ptr<ShardedParameters>> NewParameters(std::shared_ptr<World> world,
                                                                 const Classifier& classifier) {
  REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<ShardedParameters> parameters,
                           ShardedParameters::Create(std::move(world), classifier.model));
  for (size_t p = 0; p < classifier.model.parameters().size(); ++p) {
    const ParameterSpec& spec = classifier.model.parameters()[p].spec;
    std::vector<float> values(NumElements(spec.shape));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = ClassifierParameter(ParameterId(static_cast<int64_t>(p)), static_cast<int64_t>(i));
    }
    REPRISE_RETURN_IF_ERROR(parameters->Write(spec.name, values));
  }
  return parameters;
}

absl::Status CopyInputs(TrainSession& session, const Classifier& classifier, int rank, int64_t microbatch) {
  std::vector<float> x(kClassifierRows * kClassifierWidth);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(ClassifierInput(rank, microbatch, classifier.x, static_cast<int64_t>(i)));
  }
  std::vector<int32_t> labels(kClassifierRows);
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i] = static_cast<int32_t>(ClassifierInput(rank, microbatch, classifier.labels, static_cast<int64_t>(i)));
  }
  REPRISE_RETURN_IF_ERROR(session.CopyInput(rank, classifier.x, x));
  return session.CopyInput(rank, classifier.labels, labels);
}

absl::Status RunMicrobatches(TrainSession& session, const Classifier& classifier, World& world, int step) {
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    for (const int rank : world.local_ranks()) {
      REPRISE_RETURN_IF_ERROR(CopyInputs(session, classifier, rank, step * kMicrobatches + microbatch));
    }
    REPRISE_RETURN_IF_ERROR(session.RunMicrobatch());
  }
  return absl::OkStatus();
}

TrainOptions Options(Execution execution, Transport transport) {
  TrainOptions options;
  options.run.execution = execution;
  options.run.plan.transports = EveryUnit(transport);
  options.run.plan.reduce_dtype = DType::kFloat32;
  options.optimizer = Sgd{};
  return options;
}

struct Trained {
  std::vector<std::vector<float>> gradients;   // of every step and parameter
  std::vector<std::vector<float>> parameters;  // at the end
  std::vector<float> losses;                   // of every step
};

absl::StatusOr<Trained> Train(std::shared_ptr<World> world, Execution execution, Transport transport, int steps) {
  const Classifier classifier = MakeClassifier(kUnits, DType::kFloat32);
  REPRISE_ASSIGN_OR_RETURN(const auto parameters, NewParameters(world, classifier));
  REPRISE_ASSIGN_OR_RETURN(
      const std::unique_ptr<TrainSession> session,
      TrainSession::Create(parameters, classifier.model, classifier.compute, Options(execution, transport)));
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    REPRISE_RETURN_IF_ERROR(session->BeginStep({.learning_rate = 0.5f, .microbatches = kMicrobatches}));
    REPRISE_RETURN_IF_ERROR(RunMicrobatches(*session, classifier, *world, step));
    for (const Parameter& parameter : classifier.model.parameters()) {
      REPRISE_ASSIGN_OR_RETURN(trained.gradients.emplace_back(), session->ReadGradient(parameter.spec.name));
    }
    REPRISE_RETURN_IF_ERROR(session->EndStep());
  }
  REPRISE_RETURN_IF_ERROR(session->Synchronize());
  for (const StepMetrics& metrics : session->PollMetrics()) trained.losses.push_back(metrics.loss);
  for (const Parameter& parameter : classifier.model.parameters()) {
    REPRISE_ASSIGN_OR_RETURN(trained.parameters.emplace_back(), parameters->Read(parameter.spec.name));
  }
  return trained;
}

bool OnOneHost(const LaunchEnvironment& launch) { return launch.local_size == launch.size; }

// Both are sums of the same products in float in different orders. A value passes through kUnits products of
// kClassifierWidth terms forward and backward, the sum over rows, microbatches and ranks, and a softmax: fewer than
// 512 roundings of the largest value, each of relative size 2^-24, per step. Where more than two ranks' bf16 gradients
// are added by NCCL, it rounds each of ranks - 1 sums to bf16, by 2^-9 of a sum of at most all ranks' largest.
void ExpectClose(const std::vector<float>& got, const std::vector<float>& want, int steps, int ranks) {
  ASSERT_EQ(got.size(), want.size());
  float largest = 0;
  for (const float value : want) largest = std::max(largest, std::abs(value));
  const double bf16_sums = ranks > 2 ? ranks * (ranks - 1) * 0x1p-9 : 0;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], steps * (512 * 0x1p-24 + bf16_sums) * largest) << "element " << i;
  }
}

class CudaTransportTest : public ::testing::TestWithParam<Transport> {
 protected:
  void SetUp() override {
    REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
    if (GetParam() != Transport::kNccl && !OnOneHost(launch)) GTEST_SKIP() << "a transport of one host";
  }
};

INSTANTIATE_TEST_SUITE_P(All, CudaTransportTest,
                         ::testing::Values(Transport::kNccl, Transport::kSymmetric, Transport::kCopyEngine),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(CudaTransportTest, TrainsAsHostRanksDo) {
  constexpr int kSteps = 3;
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> host, CreateHostWorld({.size = world->size()}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained want, Train(host, Execution::kGraph, GetParam(), kSteps));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained graph, Train(world, Execution::kGraph, GetParam(), kSteps));
  REPRISE_ASSERT_OK_AND_ASSIGN(const Trained eager, Train(world, Execution::kEager, GetParam(), kSteps));
  EXPECT_EQ(graph.gradients, eager.gradients);
  EXPECT_EQ(graph.parameters, eager.parameters);
  EXPECT_EQ(graph.losses, eager.losses);
  constexpr int kAdding = 1;  // in rank order, as host ranks do
  ExpectClose(graph.losses, want.losses, kSteps, kAdding);
  for (size_t g = 0; g < want.gradients.size(); ++g) {
    ExpectClose(graph.gradients[g], want.gradients[g], kSteps, kAdding);
  }
  for (size_t p = 0; p < want.parameters.size(); ++p) {
    ExpectClose(graph.parameters[p], want.parameters[p], kSteps, kAdding);
  }
}

TEST_P(CudaTransportTest, MemoryIsThePlansAndDoesNotGrow) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  const Classifier classifier = MakeClassifier(kUnits, DType::kFloat32);
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, NewParameters(world, classifier));
  MemoryUse first;
  for (int cycle = 0; cycle < 10; ++cycle) {
    REPRISE_ASSERT_OK_AND_ASSIGN(
        std::unique_ptr<TrainSession> session,
        TrainSession::Create(parameters, classifier.model, classifier.compute, Options(Execution::kGraph, GetParam())));
    const MemoryPlan& memory = session->plan().memory;
    const SessionReport& report = session->report();
    EXPECT_EQ(report.persistent_bytes, memory.persistent_bytes());
    EXPECT_EQ(report.transient_bytes, memory.transient_bytes());
    EXPECT_EQ(world->memory().requested, memory.persistent_bytes() + memory.transient_bytes() -
                                             memory.num_bytes[static_cast<int>(Storage::kHostVisible)]);
    for (int step = 0; step < (SharesDevice() ? 3 : 20); ++step) {
      ASSERT_THAT(session->BeginStep({.learning_rate = 0.1f, .microbatches = kMicrobatches}), IsOk());
      ASSERT_THAT(RunMicrobatches(*session, classifier, *world, step), IsOk());
      ASSERT_THAT(session->EndStep(), IsOk());
    }
    ASSERT_THAT(session->Synchronize(), IsOk());
    const MemoryUse use = world->memory();
    if (cycle == 0) first = use;  // NCCL sets up a connection when it is first used
    // The driver takes blocks of 2 MiB for small allocations, which count with whichever asked first.
    EXPECT_LE(use.rounding + use.communication, first.rounding + first.communication) << "cycle " << cycle;
    EXPECT_EQ(use.recording, first.recording) << "cycle " << cycle;
    session.reset();
    EXPECT_EQ(world->memory().recording, 0) << "cycle " << cycle;
  }
}

// A file of rank 0's that is not there yet.
class CudaCostFileTest : public ::testing::Test {
 protected:
  ~CudaCostFileTest() override { std::remove(path_.c_str()); }
  absl::StatusOr<std::shared_ptr<internal::Machine>> NewWorld() const { return NewCudaWorld({.cost_file = path_}); }
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  // What is measured for what Train runs.
  static absl::StatusOr<CostFile> MeasureTraining() {
    REPRISE_ASSIGN_OR_RETURN(const std::shared_ptr<internal::Machine> world, NewCudaWorld());
    return Measure(*world, {.run = [&] { return Train(world, Execution::kGraph, Transport::kNccl, 1).status(); }});
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/costs-", getpid(), ".json");
};

TEST_F(CudaCostFileTest, RunsWithTheSameFileGiveTheSameBytes) {
  constexpr int kSteps = 2;
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile measured, MeasureTraining());
  EXPECT_FALSE(measured.gemms.empty());
  EXPECT_EQ(measured.job.at("ranks"), absl::StrCat(launch.size));
  EXPECT_EQ(measured.job.at("hosts"), OnOneHost(launch) ? "one" : "several");
  EXPECT_EQ(measured.costs, CostModel());
  if (launch.rank == 0) {
    ASSERT_THAT(WriteCostFile(path_, measured), IsOk());
  }
  std::optional<Trained> first;
  for (const Execution execution : {Execution::kGraph, Execution::kGraph, Execution::kEager}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewWorld());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, world->ExchangeBytes("files", {ToJson(measured)}));
    for (const std::string& other : all) EXPECT_EQ(other, ToJson(measured));
    REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, Train(world, execution, Transport::kNccl, kSteps));
    if (!first.has_value()) {
      first = trained;
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> host, CreateHostWorld({.size = world->size()}));
      REPRISE_ASSERT_OK_AND_ASSIGN(const Trained want, Train(host, execution, Transport::kNccl, kSteps));
      for (size_t p = 0; p < want.parameters.size(); ++p) {
        ExpectClose(first->parameters[p], want.parameters[p], kSteps, world->size());
      }
    }
    EXPECT_EQ(trained.parameters, first->parameters);
    EXPECT_EQ(trained.gradients, first->gradients);
  }
  if (launch.rank != 0) return;
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile after, ReadCostFile(path_));
  EXPECT_EQ(after, measured) << "no world writes to it";
}

TEST_F(CudaCostFileTest, WhatIsOfAnotherMachineIsNotUsedAndTheReasonSaysWhy) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  if (launch.size > 1) GTEST_SKIP() << "one rank's file is enough";
  REPRISE_ASSERT_OK_AND_ASSIGN(const CostFile measured, MeasureTraining());
  // No choice of a kernel: a world that used it would refuse it.
  CostFile file = measured;
  file.gemms.begin()->second = "x";
  const auto reason = [&](const CostFile& written) -> std::string {
    Write(ToJson(written));
    const absl::StatusOr<std::shared_ptr<internal::Machine>> world = NewWorld();
    return world.ok() ? (*world)->auto_transports().reason : world.status().ToString();
  };
  EXPECT_THAT(reason(file),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr(path_), HasSubstr("no choice of a GEMM's kernel")));
  for (const auto& [name, value] : measured.device) {
    CostFile other = file;
    other.device[name] = "another";
    EXPECT_EQ(reason(other), absl::StrCat("the default: cost file ", path_, " is of another machine: \"", name,
                                          "\" is \"another\" there but ", internal::Quoted(value), " here"));
  }
  // GEMMs do not depend on these.
  for (const auto& [name, value] : measured.job) {
    CostFile other = file;
    other.job[name] = "another";
    EXPECT_THAT(reason(other), HasSubstr("no choice of a GEMM's kernel")) << name;
    other.gemms = measured.gemms;
    EXPECT_EQ(reason(other), absl::StrCat("the default: cost file ", path_, " is of another machine: \"", name,
                                          "\" is \"another\" there but ", internal::Quoted(value), " here"));
  }
  EXPECT_EQ(reason(measured), absl::StrCat("the default: cost file ", path_, " has no transports"));
}

// On one rank: the others learn of it by the vote.
TEST_F(CudaCostFileTest, AFileThatIsNoneIsRefusedByName) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  const absl::StatusCode none =
      launch.rank == 0 ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(NewWorld(), StatusIs(none, HasSubstr("cannot be read (No such file or directory)")));
  if (launch.rank != 0) {
    EXPECT_THAT(NewWorld(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nested deeper than 16")));
    return;
  }
  const std::string deep = absl::StrCat("{\"a\": ", std::string(100000, '['), std::string(100000, ']'), "}");
  const std::pair<std::string, const char*> cases[] = {{deep, "nested deeper than 16"},
                                                       {"", "no valid JSON"},
                                                       {"[]", "give an object"},
                                                       {R"({"version": 1, "transports": "fast"})", "\"fast\" is no"},
                                                       {"{\"\xff\": 1}", "no valid JSON"}};
  for (const auto& [text, why] : cases) {
    Write(text);
    EXPECT_THAT(NewWorld(), StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(path_), HasSubstr(why))));
    if (launch.size > 1) break;
  }
}

TEST(CudaSessionTest, ReplaysAllocateNothingAndLaunchFast) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  const Classifier classifier = MakeClassifier(kUnits, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanTraining(classifier.model, world->size(), {}));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PlanRunner> runner,
                               PlanRunner::Create(world, plan, classifier.compute, ClassifierParameter));
  ASSERT_THAT(runner->BeginStep(1), IsOk());
  ASSERT_THAT(runner->ReplayGraph(plan.first, ClassifierInput), IsOk());
  ASSERT_THAT(world->Synchronize(), IsOk());
  absl::Status status;
  const int64_t before = AllocationCount();
  std::vector<double> microseconds;
  microseconds.reserve(100);
  const int64_t reserved = AllocationCount();
  for (int replay = 0; replay < 100; ++replay) {
    const auto start = std::chrono::steady_clock::now();
    status.Update(runner->Replay(plan.body));
    microseconds.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    if (replay % 10 == 9) status.Update(world->Synchronize());  // so that no launch waits for room in a queue
  }
  const int64_t after = AllocationCount();
  ASSERT_THAT(status, IsOk());
  EXPECT_EQ(reserved, before + 1) << "operator new is counted";
  EXPECT_EQ(after, reserved) << "by 100 replays";
  std::nth_element(microseconds.begin(), microseconds.begin() + 50, microseconds.end());
  std::cout << "median launch of a microbatch of " << kUnits << " units: " << microseconds[50] << " us\n";
  EXPECT_LT(microseconds[50], SharesDevice() ? 1000 : 25);  // the launches of ranks that take turns wait for each other
}

TEST(CudaSessionTest, TheCallersCommunicatorIsSplitAndLeftAlone) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  ASSERT_EQ(cudaSetDevice(DeviceOf(launch, SharesDevice())), cudaSuccess);
  ncclComm_t parent = nullptr;
  {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<internal::Machine> world, NewCudaWorld());
    ncclUniqueId id = {};
    if (launch.rank == 0) {
      ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    }
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> ids,
                                 world->ExchangeBytes("an id", {std::string(id.internal, sizeof(id.internal))}));
    ids[0].copy(id.internal, sizeof(id.internal));
    ASSERT_EQ(ncclCommInitRank(&parent, launch.size, id, launch.rank), ncclSuccess);
  }
  {
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld({.parent = parent}));
    REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, Train(world, Execution::kGraph, Transport::kNccl, 1));
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> own, NewCudaWorld());
    REPRISE_ASSERT_OK_AND_ASSIGN(const Trained want, Train(own, Execution::kGraph, Transport::kNccl, 1));
    EXPECT_EQ(trained.gradients, want.gradients);
  }
  int size = 0;
  EXPECT_EQ(ncclCommCount(parent, &size), ncclSuccess);
  EXPECT_EQ(size, launch.size) << "the communicator still works";
  EXPECT_EQ(ncclCommDestroy(parent), ncclSuccess);
}

TEST(CudaSessionTest, GraphsHoldNoEventsOrHostFunctions) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const LaunchEnvironment launch, DetectLaunch());
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewCudaWorld());
  const Classifier classifier = MakeClassifier(kUnits, DType::kBFloat16);
  REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, NewParameters(world, classifier));
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TrainSession> session,
                               TrainSession::Create(parameters, classifier.model, classifier.compute,
                                                    Options(Execution::kGraph, Transport::kNccl)));
  ASSERT_EQ(session->report().graphs.size(), session->plan().schedules.size());
  for (const GraphAudit& audit : session->report().graphs) {
    EXPECT_GT(audit.kernels, 0);
    EXPECT_EQ(audit.events, 0) << "NCCL_GRAPH_MIXING_SUPPORT=0 is in force";
    // Sockets of NCCL's call the host.
    if (OnOneHost(launch)) {
      EXPECT_EQ(audit.others, 0);
    }
  }
}

TEST_P(CudaTransportTest, EverythingMayBeDestroyedInAnyOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    REPRISE_ASSERT_OK_AND_ASSIGN(std::shared_ptr<internal::Machine> world, NewCudaWorld());
    const Classifier classifier = MakeClassifier(2, DType::kFloat32);
    REPRISE_ASSERT_OK_AND_ASSIGN(std::shared_ptr<ShardedParameters> parameters, NewParameters(world, classifier));
    REPRISE_ASSERT_OK_AND_ASSIGN(
        std::unique_ptr<TrainSession> session,
        TrainSession::Create(parameters, classifier.model, classifier.compute, Options(Execution::kGraph, GetParam())));
    REPRISE_ASSERT_OK_AND_ASSIGN(std::shared_ptr<internal::MemoryBlock> block,
                                 world->Allocate(internal::MemoryKind::kCommunicating, 4096));
    ASSERT_THAT(session->BeginStep({.learning_rate = 0.1f, .microbatches = kMicrobatches}), IsOk());
    ASSERT_THAT(RunMicrobatches(*session, classifier, *world, 0), IsOk());  // still running when the first goes
    for (const int what : order) {
      if (what == 0) world.reset();
      if (what == 1) parameters.reset();
      if (what == 2) session.reset();
      if (what == 3) block.reset();
    }
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  } while (std::next_permutation(order.begin(), order.begin() + 3));  // the block last, as the vector starts sorted
}

}  // namespace
}  // namespace reprise::testing
