// Tests of several ranks on one GPU, see tests/README.md.
#ifndef REPRISE_TESTS_TESTING_SHARE_DEVICE_H_
#define REPRISE_TESTS_TESTING_SHARE_DEVICE_H_

#include <cstdlib>
#include <string>

namespace reprise::testing {

// Whether ranks of tests may share a device.
inline bool SharesDevice() {
  const char* const value = std::getenv("REPRISE_TEST_SHARE_DEVICE");
  return value != nullptr && std::string(value) == "1";
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_TESTING_SHARE_DEVICE_H_
