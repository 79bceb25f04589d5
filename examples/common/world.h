// The world that a program of this project runs in: host ranks in this process, or one process per device.
#ifndef REPRISE_EXAMPLES_COMMON_WORLD_H_
#define REPRISE_EXAMPLES_COMMON_WORLD_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "reprise/graph/world.h"

namespace reprise::examples {

enum class Device : uint8_t { kAuto, kHost, kCuda };
// "auto", "host" or "cuda", as absl flags of this type read it.
bool AbslParseFlag(absl::string_view text, Device* device, std::string* error);
std::string AbslUnparseFlag(Device device);

// A world as the flags --device, --ranks, --costs and --share_device say, or the exit code of a program that started
// itself once per rank and has nothing more to do. Under torchrun, mpirun or srun the process is one rank. Prints one
// line that says which; only rank 0 prints it to the standard output. Settings of NCCL that its first use reads are
// made here unless the user made them, so nothing may use NCCL before.
struct Program {
  std::shared_ptr<World> world;
  // Makes a world of one rank, this process alone, with the same kernels.
  std::function<absl::StatusOr<std::shared_ptr<World>>()> new_world_alone;
  std::optional<int> exit_code;
  bool prints = true;  // is this the process that talks to the user?
};
absl::StatusOr<Program> StartProgram();

}  // namespace reprise::examples

#endif  // REPRISE_EXAMPLES_COMMON_WORLD_H_
