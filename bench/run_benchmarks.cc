#include "bench/run_benchmarks.h"

#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "benchmark/benchmark.h"
#include "examples/common/output.h"

namespace reprise::bench {

int RunBenchmarks(int argc, char** argv) {
  examples::KeepStandardDescriptors();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  const absl::Status status = examples::CheckOutput();
  if (status.ok()) return 0;
  std::cerr << argv[0] << ": " << std::string(status.message()) << "\n";
  return 1;
}

}  // namespace reprise::bench
