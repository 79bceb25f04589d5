// The conformance suites on host ranks, in every order.
#include "absl/strings/str_cat.h"
#include "reprise/graph/host_world.h"
#include "tests/conformance/conformance.h"

namespace reprise::testing {
namespace {

std::vector<Backend> HostBackends() {
  std::vector<Backend> backends;
  for (const int size : {1, 2, 3}) {
    for (const auto& [order_name, order] :
         {std::pair{"Issue", ReplayOrder::kIssue}, std::pair{"Adversarial", ReplayOrder::kAdversarial},
          std::pair{"Threads", ReplayOrder::kThreads}}) {
      for (const auto& [execution_name, execution] :
           {std::pair{"Graph", Execution::kGraph}, std::pair{"Eager", Execution::kEager}}) {
        const HostWorldOptions options = {.size = size, .order = order, .seed = static_cast<uint64_t>(size)};
        backends.push_back({absl::StrCat(execution_name, order_name, size, "Ranks"),
                            [options] { return CreateHostWorld(options); }, execution});
      }
    }
  }
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Host, ConformanceTest, ::testing::ValuesIn(HostBackends()), BackendName);

}  // namespace
}  // namespace reprise::testing
