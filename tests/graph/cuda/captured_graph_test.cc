// Nodes are known by the command that made them, and collectives wait for what is before them.
#include "graph/cuda/captured_graph.h"

#include <vector>

#include "graph/cuda/driver_api.h"
#include "tests/graph/cuda/dependent_kernels.h"
#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

class CapturedGraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&counter_), sizeof(int)), cudaSuccess);
    ASSERT_EQ(cudaMemset(counter_, 0, sizeof(int)), cudaSuccess);
    REPRISE_ASSERT_OK_AND_ASSIGN(driver_, LoadDriverApi());
  }
  void TearDown() override {
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    cudaFree(counter_);
    cudaStreamDestroy(stream_);
  }

  // Command 0 is the first kernel, command 1 the second, which may start before the first has ended.
  void Capture(CapturedGraph& captured) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    ASSERT_EQ(testing::LaunchFirst(stream_, counter_), cudaSuccess);
    ASSERT_THAT(captured.AddCommand(CommandId(0), stream_, /*is_compute=*/true), IsOk());
    ASSERT_EQ(testing::LaunchProgrammaticSecond(stream_, counter_), cudaSuccess);
    ASSERT_THAT(captured.AddCommand(CommandId(1), stream_, /*is_compute=*/false), IsOk());
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
  }

  int ProgrammaticEdges() const {
    size_t count = 0;
    EXPECT_EQ(cudaGraphGetEdges(graph_, nullptr, nullptr, nullptr, &count), cudaSuccess);
    std::vector<cudaGraphNode_t> from(count), to(count);
    std::vector<cudaGraphEdgeData> data(count);
    EXPECT_EQ(cudaGraphGetEdges(graph_, from.data(), to.data(), data.data(), &count), cudaSuccess);
    EXPECT_EQ(count, 1u);
    int programmatic = 0;
    for (const cudaGraphEdgeData& edge : data) programmatic += edge.type == cudaGraphDependencyTypeProgrammatic ? 1 : 0;
    return programmatic;
  }

  DriverApi driver_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  int* counter_ = nullptr;
};

TEST_F(CapturedGraphTest, NodesAreKnownByTheirCommand) {
  CapturedGraph captured(driver_);
  ASSERT_NO_FATAL_FAILURE(Capture(captured));
  ASSERT_EQ(captured.commands().size(), 2u);
  size_t count = 1;
  cudaGraphNode_t from = nullptr, to = nullptr;
  cudaGraphEdgeData data = {};
  ASSERT_EQ(cudaGraphGetEdges(graph_, &from, &to, &data, &count), cudaSuccess);
  EXPECT_EQ(captured.commands().at(from), CommandId(0));
  EXPECT_EQ(captured.commands().at(to), CommandId(1));
}

TEST_F(CapturedGraphTest, ProgrammaticEdgesIntoCollectivesBecomeOrdinary) {
  CapturedGraph captured(driver_);
  ASSERT_NO_FATAL_FAILURE(Capture(captured));
  ASSERT_EQ(ProgrammaticEdges(), 1) << "or the test shows nothing";
  ASSERT_THAT(captured.ReplaceProgrammaticEdges(graph_, {true, false}), IsOk());
  EXPECT_EQ(ProgrammaticEdges(), 1) << "into other commands they stay";
  ASSERT_THAT(captured.ReplaceProgrammaticEdges(graph_, {false, true}), IsOk());
  EXPECT_EQ(ProgrammaticEdges(), 0);
  const Schedule in_order = {.name = "in order",
                             .commands = {{Begin{}, Lane::kCompute}, {AllGather{}, Lane::kCompute}}};
  REPRISE_ASSERT_OK_AND_ASSIGN(GraphAudit audit, captured.Audit(graph_, in_order));
  EXPECT_EQ(audit, (GraphAudit{.kernels = 2, .edges = 1, .replaced_edges = 1, .communication_ctas = 1}));
  const Schedule side_by_side = {.name = "side by side",
                                 .commands = {{Begin{}, Lane::kCompute}, {AllGather{}, Lane::kAllGather}}};
  REPRISE_ASSERT_OK_AND_ASSIGN(audit, captured.Audit(graph_, side_by_side));
  EXPECT_EQ(audit.added_orders, 1);

  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph_, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  int count = 0;
  ASSERT_EQ(cudaMemcpy(&count, counter_, sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);

  // A graph that lacks an order of its schedule is refused.
  size_t edges = 1;
  cudaGraphNode_t from = nullptr, to = nullptr;
  cudaGraphEdgeData data = {};
  ASSERT_EQ(cudaGraphGetEdges(graph_, &from, &to, &data, &edges), cudaSuccess);
  ASSERT_EQ(cudaGraphRemoveDependencies(graph_, &from, &to, &data, 1), cudaSuccess);
  EXPECT_THAT(captured.Audit(graph_, in_order),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("command #1 after #0")));
  EXPECT_THAT(captured.Audit(graph_, side_by_side).status(), IsOk());
}

}  // namespace
}  // namespace reprise::internal
