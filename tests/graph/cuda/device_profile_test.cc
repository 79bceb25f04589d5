// Opening and closing CUPTI, by functions that stand for it: another tool's CUPTI is left alone, and no record is read
// for a profile that is gone. Needs no device.
#include "graph/cuda/device_profile.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "graph/cuda/cupti_api.h"
#include "tests/testing/status_matchers.h"

namespace reprise::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// What CUPTI is asked for, and answers; functions of C's have no object.
struct Fake {
  std::vector<std::string> calls;
  CUptiResult subscribe = CUPTI_SUCCESS;
  int enables_until_error = -1;
  CUpti_BuffersCallbackCompleteFunc take_buffer = nullptr;
  std::atomic<bool> is_reading = false;
};
Fake fake;

CuptiApi FakeApi() {
  CuptiApi api;
  api.subscribe = [](CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*) {
    fake.calls.push_back("subscribe");
    return fake.subscribe;
  };
  api.unsubscribe = [](CUpti_SubscriberHandle) {
    fake.calls.push_back("unsubscribe");
    return CUPTI_SUCCESS;
  };
  api.enable_callback = [](uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
    return CUPTI_SUCCESS;
  };
  api.activity_register_callbacks = [](CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc take) {
    fake.take_buffer = take;
    return CUPTI_SUCCESS;
  };
  api.activity_enable = [](CUpti_ActivityKind) {
    if (fake.enables_until_error-- == 0) return CUPTI_ERROR_NOT_SUPPORTED;
    fake.calls.push_back("enable");
    return CUPTI_SUCCESS;
  };
  api.activity_disable = [](CUpti_ActivityKind) {
    fake.calls.push_back("disable");
    return CUPTI_SUCCESS;
  };
  api.activity_get_next_record = [](uint8_t*, size_t, CUpti_Activity**) {
    fake.is_reading = true;
    absl::SleepFor(absl::Milliseconds(200));
    fake.is_reading = false;
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
  };
  api.activity_get_num_dropped_records = [](CUcontext, uint32_t, size_t*) { return CUPTI_ERROR_UNKNOWN; };
  api.activity_flush_all = [](uint32_t) { return CUPTI_SUCCESS; };
  api.finalize = []() {
    fake.calls.push_back("finalize");
    return CUPTI_SUCCESS;
  };
  api.get_result_string = [](CUptiResult, const char** words) {
    *words = "the fake's words";
    return CUPTI_SUCCESS;
  };
  return api;
}

class DeviceProfileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake.calls.clear();
    fake.subscribe = CUPTI_SUCCESS;
    fake.enables_until_error = -1;
  }
  int64_t Count(const std::string& call) const { return std::count(fake.calls.begin(), fake.calls.end(), call); }

  const CuptiApi api_ = FakeApi();
};

TEST_F(DeviceProfileTest, AnotherToolsCuptiIsLeftAlone) {
  fake.subscribe = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  EXPECT_THAT(StartDeviceProfile(0, api_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("run without other profilers")));
  EXPECT_THAT(fake.calls, ElementsAre("subscribe"));
  fake.subscribe = CUPTI_SUCCESS;
  EXPECT_THAT(StartDeviceProfile(0, api_), IsOk()) << "once that tool is gone";
}

TEST_F(DeviceProfileTest, WhatWasOpenedIsClosed) {
  { EXPECT_THAT(StartDeviceProfile(0, api_), IsOk()); }
  const int64_t kinds = Count("enable");
  EXPECT_GT(kinds, 0);
  EXPECT_EQ(Count("disable"), kinds);
  EXPECT_EQ(Count("unsubscribe"), 1);
  EXPECT_EQ(Count("finalize"), 1);
  fake.calls.clear();
  fake.enables_until_error = 2;
  EXPECT_THAT(StartDeviceProfile(0, api_), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the fake's words")));
  EXPECT_EQ(Count("enable"), 2);
  EXPECT_EQ(Count("disable"), 2);
  EXPECT_EQ(Count("unsubscribe"), 1);
  EXPECT_EQ(Count("finalize"), 1);
}

TEST_F(DeviceProfileTest, OneIsOpenAtATime) {
  REPRISE_ASSERT_OK_AND_ASSIGN(std::unique_ptr<DeviceProfile> first, StartDeviceProfile(0, api_));
  fake.calls.clear();
  EXPECT_THAT(StartDeviceProfile(0, api_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another profile of this process is open")));
  EXPECT_THAT(fake.calls, ElementsAre());
  int64_t origin_ns = 0;
  EXPECT_THAT(first->Stop(origin_ns), IsOk()) << "the first goes on";
  EXPECT_THAT(StartDeviceProfile(0, api_), IsOk());
}

TEST_F(DeviceProfileTest, NobodyReadsForAProfileThatIsGone) {
  REPRISE_ASSERT_OK_AND_ASSIGN(std::unique_ptr<DeviceProfile> profile, StartDeviceProfile(0, api_));
  const auto take_buffer = [] { fake.take_buffer(nullptr, 0, static_cast<uint8_t*>(std::malloc(8)), 8, 8); };
  std::thread of_cupti(take_buffer);
  while (!fake.is_reading) absl::SleepFor(absl::Milliseconds(1));
  profile.reset();
  EXPECT_FALSE(fake.is_reading);
  of_cupti.join();
  take_buffer();  // of the profile that is gone: given back, not read
  EXPECT_FALSE(fake.is_reading);
}

}  // namespace
}  // namespace reprise::internal
