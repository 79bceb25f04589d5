// Runs a built executable and collects what it prints.
#ifndef REPRISE_TESTS_TESTING_RUN_EXECUTABLE_H_
#define REPRISE_TESTS_TESTING_RUN_EXECUTABLE_H_

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace reprise::testing {

struct FinishedRun {
  int exit_code = -1;  // -1: it did not start, or a signal ended it
  std::string output;
};

// `arguments` and redirections as a shell reads them.
inline FinishedRun RunExecutable(const std::string& path, const std::string& arguments) {
  FinishedRun run;
  FILE* pipe = popen(("'" + path + "' " + arguments).c_str(), "r");
  if (pipe == nullptr) return run;
  char block[4096];
  for (size_t n = 0; (n = fread(block, 1, sizeof(block), pipe)) > 0;) run.output.append(block, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  return run;
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_TESTING_RUN_EXECUTABLE_H_
