// Ranks that differ, as processes on the host, and that their numbers are those of host ranks in one process.
#include "tests/graph/ranks_differ.h"

#include <functional>
#include <iostream>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "graph/machine.h"
#include "reprise/core/status_macros.h"
#include "reprise/graph/host_world.h"
#include "tests/graph/session_testing.h"
#include "tests/testing/process_world.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {

absl::StatusOr<std::shared_ptr<World>> NewWorldOfProcesses() {
  REPRISE_ASSIGN_OR_RETURN(const LaunchEnvironment launch, DetectLaunch());
  return CreateProcessWorld(launch, absl::Seconds(40));
}

namespace {

struct Trained {
  std::vector<std::vector<float>> parameters, gradients;
  std::vector<float> losses;
};

absl::StatusOr<Trained> Train(std::shared_ptr<World> world, const Network& network) {
  REPRISE_ASSIGN_OR_RETURN(const auto parameters, ShardedParameters::Create(world, network.model));
  REPRISE_RETURN_IF_ERROR(parameters->Initialize(Normal(/*seed=*/3, /*stddev=*/0.4f)));
  REPRISE_ASSIGN_OR_RETURN(const auto session,
                           TrainSession::Create(parameters, network.model, network.compute, {.clip_norm = 1.0f}));
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    REPRISE_RETURN_IF_ERROR(
        RunMicrobatches(*session, network, *world, step, {.learning_rate = 0.01f, .microbatches = 1 + step % 3}));
    if (step == 2) {
      REPRISE_RETURN_IF_ERROR(session->DiscardGradients());
      continue;
    }
    for (const Parameter& parameter : network.model.parameters()) {
      if (!parameter.spec.trainable) continue;
      REPRISE_ASSIGN_OR_RETURN(trained.gradients.emplace_back(), session->ReadGradient(parameter.spec.name));
    }
    REPRISE_RETURN_IF_ERROR(session->EndStep());
  }
  REPRISE_RETURN_IF_ERROR(session->Synchronize());
  for (const StepMetrics& metrics : session->PollMetrics()) trained.losses.push_back(metrics.loss);
  REPRISE_ASSIGN_OR_RETURN(trained.parameters, ReadAll(*parameters));
  return trained;
}

TEST(ProcessWorldTest, TrainsAsHostRanksOfOneProcessDo) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Network network = MakeNetwork({.dtype = dtype});
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewWorldOfProcesses());
    REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> host, CreateHostWorld({.size = world->size()}));
    REPRISE_ASSERT_OK_AND_ASSIGN(const Trained trained, Train(world, network));
    REPRISE_ASSERT_OK_AND_ASSIGN(const Trained expected, Train(host, network));
    EXPECT_EQ(trained.parameters, expected.parameters);
    EXPECT_EQ(trained.gradients, expected.gradients);
    EXPECT_EQ(trained.losses, expected.losses);
  }
}

// Not a test: prints what comparing costs, see graph/README.md.
TEST(ProcessWorldTest, DISABLED_Costs) {
  const auto microseconds = [](int times, const std::function<absl::Status()>& body) {
    const absl::Time start = absl::Now();
    for (int i = 0; i < times; ++i) EXPECT_THAT(body(), IsOk());
    return absl::ToDoubleMicroseconds(absl::Now() - start) / times;
  };
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> world, NewWorldOfProcesses());
  internal::Machine& machine = internal::MachineOf(*world);
  std::vector<internal::AgreedValue> values_of_step;
  for (int i = 0; i < 8; ++i) values_of_step.push_back(internal::AgreedValue::Integer("value", i));
  double announce = 0;
  const auto step = [&]() -> absl::Status {
    const absl::Time start = absl::Now();
    REPRISE_ASSIGN_OR_RETURN(const int64_t ticket,
                             machine.Announce("BeginStep of step 7", absl::OkStatus(), values_of_step));
    announce += absl::ToDoubleMicroseconds(absl::Now() - start);
    REPRISE_RETURN_IF_ERROR(machine.Progress(ticket));
    return machine.Announced(ticket);
  };
  constexpr int kSteps = 2000;
  microseconds(kSteps, step);
  announce = 0;
  const double whole = microseconds(kSteps, step);
  const double launch = microseconds(1000000, [&] { return machine.NoteLaunch(3, "body of variant \"one\""); });
  const Dot dot = MakeDot({.size = 1 << 20});
  const std::vector<float> values(1 << 20, 1.0f);
  double write[2] = {};
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<World> host, CreateHostWorld({.size = 1}));
  for (const bool compares : {false, true}) {
    REPRISE_ASSERT_OK_AND_ASSIGN(const auto parameters, ShardedParameters::Create(compares ? world : host, dot.model));
    const auto one = [&] { return parameters->Write("w", values); };
    microseconds(2, one);
    write[compares] = microseconds(10, one);
  }
  std::cout << "rank " << world->local_ranks()[0] << " of " << world->size() << ": announcing a step "
            << announce / kSteps << " us, with its settling " << whole << " us; noting a launch " << launch * 1000
            << " ns; a write of 2^20 values " << write[1] << " us, on one host rank " << write[0] << " us" << std::endl;
}

}  // namespace
}  // namespace reprise::testing
