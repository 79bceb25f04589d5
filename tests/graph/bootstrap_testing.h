// Jobs whose ranks are threads, and strangers on their ports.
#ifndef REPRISE_TESTS_GRAPH_BOOTSTRAP_TESTING_H_
#define REPRISE_TESTS_GRAPH_BOOTSTRAP_TESTING_H_

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "graph/comm/bootstrap.h"
#include "graph/comm/handshake.h"
#include "graph/comm/socket.h"
#include "gtest/gtest.h"
#include "tests/graph/memory_network.h"

namespace reprise::testing {

// Over TCP, or by the program's own connections.
enum class Meeting { kByFile, kByPort, kByPortOfAnyHost, kByMemory, kByMemorySlowly };

// For suites that run over every kind of connection.
inline auto EveryConnection() {
  return ::testing::Values(Meeting::kByFile, Meeting::kByMemory, Meeting::kByMemorySlowly);
}
inline std::string NameOf(const ::testing::TestParamInfo<Meeting>& info) {
  return info.param == Meeting::kByFile ? "Tcp" : info.param == Meeting::kByMemory ? "Memory" : "SlowMemory";
}

// Removed with its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = ::testing::TempDir() + "/reprise-XXXXXX";
    path_ = mkdtemp(path.data()) == nullptr ? "" : path;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A port from which 32 are seldom taken. No two calls give overlapping ones.
inline int NextBasePort() {
  static std::atomic<int> calls = 0;
  return 10000 + (static_cast<int>(getpid()) * 7 % 200) * 100 + 32 * (calls++ % 3);
}

struct TestJob {
  TemporaryDirectory directory = {};
  Meeting meeting = Meeting::kByFile;
  int size = 2;
  int port = NextBasePort();
  std::string name = "job";
  std::shared_ptr<MemoryNetwork> network = std::make_shared<MemoryNetwork>();

  LaunchEnvironment Rank(int rank) const {
    LaunchEnvironment launch = {.rank = rank, .size = size, .local_rank = rank, .local_size = size, .job = name};
    launch.directory = directory.path();
    if (meeting == Meeting::kByFile) return launch;
    if (meeting == Meeting::kByMemory || meeting == Meeting::kByMemorySlowly) {
      launch.connect = network->ConnectOf(rank, meeting == Meeting::kByMemory ? Delivery::kAtOnce : Delivery::kSlowly);
      return launch;
    }
    launch.host = "localhost";
    launch.port = port;
    if (meeting == Meeting::kByPortOfAnyHost) {
      launch.local_rank = 0;
      launch.local_size = 1;
    }
    return launch;
  }
};

using Connected = absl::StatusOr<std::unique_ptr<internal::Bootstrap>>;

// Runs `rank(i)` for i in [0, n), each in a thread, and waits for all.
inline void InThreads(int n, const std::function<void(int)>& rank) {
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back([&rank, i] { rank(i); });
  for (std::thread& thread : threads) thread.join();
}

// Connects a rank for each of `launches`.
inline std::vector<Connected> ConnectAll(const std::vector<LaunchEnvironment>& launches, absl::Duration deadline) {
  std::vector<Connected> connected(launches.size());
  InThreads(static_cast<int>(launches.size()),
            [&](int i) { connected[i] = internal::Bootstrap::Connect(launches[i], deadline); });
  return connected;
}

inline std::vector<LaunchEnvironment> AllRanks(const TestJob& job) {
  std::vector<LaunchEnvironment> launches;
  for (int rank = 0; rank < job.size; ++rank) launches.push_back(job.Rank(rank));
  return launches;
}

// A connection to a port of this host as soon as somebody listens there.
inline internal::FileDescriptor ConnectWhenListening(int port) {
  const internal::Deadline deadline(absl::Seconds(20));
  while (!deadline.passed()) {
    absl::StatusOr<internal::FileDescriptor> socket = internal::Connect(internal::Loopback(port)[0], deadline);
    if (socket.ok()) return *std::move(socket);
    absl::SleepFor(absl::Milliseconds(1));
  }
  ADD_FAILURE() << "nobody listens on port " << port;
  return {};
}

inline std::string HelloBytes(const LaunchEnvironment& launch, uint32_t version = internal::kProtocolVersion) {
  internal::Hello hello;
  hello.greeting = internal::MakeGreeting(internal::kRankMagic, launch.rank, internal::NonceOf(launch));
  hello.greeting.version = version;
  hello.size = static_cast<uint32_t>(launch.size);
  return std::string(reinterpret_cast<const char*>(&hello), sizeof(hello));
}

// Reads until the other end closes, or `num_bytes` are there.
inline std::string ReadBytes(const internal::FileDescriptor& socket, size_t num_bytes) {
  std::string bytes;
  const internal::Deadline deadline(absl::Seconds(20));
  while (bytes.size() < num_bytes && internal::PollOne(socket.get(), POLLIN, deadline) &&
         internal::ReceiveNow(socket, bytes, num_bytes)) {
  }
  return bytes;
}

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_BOOTSTRAP_TESTING_H_
