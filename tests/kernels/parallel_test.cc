#include "kernels/parallel.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/sanitizers.h"

namespace reprise::kernels {
namespace {

TEST(ParallelForTest, CallsEachIndexOnce) {
  for (const int64_t count : {0, 1, 2, 3, 100, 5000}) {
    std::vector<std::atomic<int>> calls(count);
    ParallelFor(count, [&](int64_t i) { ++calls[i]; });
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(calls[i], 1) << i << " of " << count;
  }
}

TEST(ParallelForTest, SeesAndPublishesMemoryWithoutAtomics) {
  std::vector<int64_t> in(1000), out(1000);
  for (int repetition = 0; repetition < 50; ++repetition) {
    std::iota(in.begin(), in.end(), repetition);
    ParallelFor(1000, [&](int64_t i) { out[i] = 2 * in[i]; });
    for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(out[i], 2 * (i + repetition));
  }
}

TEST(ParallelForTest, IsSerialAndInOrderInsideABody) {
  std::vector<std::vector<int64_t>> order(4);
  ParallelFor(4, [&](int64_t i) {
    const std::thread::id outer = std::this_thread::get_id();
    ParallelFor(50, [&, i](int64_t j) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      order[i].push_back(j);
    });
  });
  std::vector<int64_t> want(50);
  std::iota(want.begin(), want.end(), 0);
  EXPECT_THAT(order, testing::Each(want));
}

TEST(ParallelForTest, ServesSeveralThreadsAtOnce) {
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int repetition = 0; repetition < 100; ++repetition) ParallelFor(20, [&](int64_t i) { sum += i; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 4 * 100 * 190);
}

// Threads that take part in a ParallelFor, which waits for more to come until there are `all` or some time has passed.
std::set<std::thread::id> ThreadsOf(size_t all) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  ParallelFor(64, [&](int64_t) {
    for (int look = 0; look < 10; ++look) {
      {
        std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
        if (threads.size() >= all) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  return threads;
}

TEST(ParallelForTest, UsesNoMoreThreadsThanALimitAllows) {
  const size_t all = std::min(16u, std::thread::hardware_concurrency());
  const auto only_this = testing::ElementsAre(std::this_thread::get_id());
  EXPECT_EQ(ThreadsOf(all).size(), all);
  {
    const ThreadLimit one(1);
    EXPECT_THAT(ThreadsOf(2), only_this);
    {
      const ThreadLimit two(2);
      EXPECT_EQ(ThreadLimit::Current(), 2);
      for (int repetition = 0; repetition < 5; ++repetition) EXPECT_EQ(ThreadsOf(3).size(), std::min<size_t>(all, 2));
      const ThreadLimit more(1000);
      EXPECT_EQ(ThreadsOf(all).size(), all);
    }
    EXPECT_THAT(ThreadsOf(2), only_this) << "an inner one is over";
    std::set<std::thread::id> of_another;
    std::thread([&] { of_another = ThreadsOf(all); }).join();
    EXPECT_EQ(of_another.size(), all) << "it is one thread's";
  }
  EXPECT_EQ(ThreadLimit::Current(), 0);
}

// Sanitizers need memory of their own for what is forbidden here.
#ifndef REPRISE_SANITIZED
TEST(ParallelForDeathTest, GoesOnWithoutThreads) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, whose pool is not made yet
  const auto run = [] {
    const rlimit no_more_memory = {1, 1};
    if (setrlimit(RLIMIT_AS, &no_more_memory) != 0) std::exit(1);
    int64_t sum = 0;
    std::mutex mutex;
    ParallelFor(20, [&](int64_t i) {
      std::lock_guard lock(mutex);
      sum += i;
    });
    std::exit(sum == 190 ? 0 : 2);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(ParallelForRangesTest, CoversTheWholeInRangesOfTheGrain) {
  for (const int64_t size : {0, 1, 9, 10, 11, 95}) {
    std::vector<std::atomic<int>> calls(size);
    ParallelForRanges(size, 10, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin % 10, 0);
      EXPECT_EQ(end, std::min(size, begin + 10));
      for (int64_t i = begin; i < end; ++i) ++calls[i];
    });
    for (int64_t i = 0; i < size; ++i) EXPECT_EQ(calls[i], 1);
  }
}

}  // namespace
}  // namespace reprise::kernels
