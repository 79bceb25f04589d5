// What the main functions of the Google Benchmark executables share.
#ifndef REPRISE_BENCH_RUN_BENCHMARKS_H_
#define REPRISE_BENCH_RUN_BENCHMARKS_H_

namespace reprise::bench {

// Runs the registered benchmarks that the arguments choose. Returns the exit code: 1 for an unknown flag, or if what
// was printed is lost.
int RunBenchmarks(int argc, char** argv);

}  // namespace reprise::bench

#endif  // REPRISE_BENCH_RUN_BENCHMARKS_H_
