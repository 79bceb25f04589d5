#include "graph/cuda/device_profile.h"

namespace reprise::internal {

absl::StatusOr<std::unique_ptr<DeviceProfile>> StartDeviceProfile(int) {
  return absl::UnavailableError(
      "reprise was built without CUPTI, so that replays cannot be timed; install it and configure again");
}

}  // namespace reprise::internal
