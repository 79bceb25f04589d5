// Connections over MPI as graph/README.md has them, compiled against a small MPI of threads.
#include <fstream>
#include <iterator>

#include "reprise/graph/connection.h"
#include "tests/graph/bootstrap_testing.h"
#include "tests/graph/fake_mpi.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using ::testing::HasSubstr;

// graph/README.md example begins
class MpiConnection : public reprise::Connection {
 public:
  MpiConnection(MPI_Comm comm, int rank) : comm_(comm), rank_(rank) {}
  ~MpiConnection() override {
    MPI_Wait(&request_, MPI_STATUS_IGNORE);
    MPI_Send(nullptr, 0, MPI_BYTE, rank_, 0, comm_);  // the end
  }
  absl::StatusOr<size_t> Send(absl::string_view bytes) override {
    int sent = 0;
    MPI_Test(&request_, &sent, MPI_STATUS_IGNORE);
    if (!sent) return 0;
    sending_ = std::string(bytes);
    MPI_Isend(sending_.data(), static_cast<int>(sending_.size()), MPI_BYTE, rank_, 0, comm_, &request_);
    return bytes.size();
  }
  absl::Status Receive(std::string& received) override {
    MPI_Status status;
    int here = 0, size = 0;
    MPI_Test(&request_, &here, MPI_STATUS_IGNORE);  // lets what was sent get on
    MPI_Iprobe(rank_, 0, comm_, &here, &status);
    if (!here) return absl::OkStatus();
    MPI_Get_count(&status, MPI_BYTE, &size);
    const size_t had = received.size();
    received.resize(had + static_cast<size_t>(size));
    MPI_Recv(received.data() + had, size, MPI_BYTE, rank_, 0, comm_, MPI_STATUS_IGNORE);
    return size > 0 ? absl::OkStatus() : absl::UnavailableError("closed its connection");
  }

 private:
  const MPI_Comm comm_;
  const int rank_;
  std::string sending_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};
// graph/README.md example ends

TEST(MpiConnectionTest, IsTheTextOfTheReadme) {
  const auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string begin = "// graph/README.md example begins\n", end = "// graph/README.md example ends\n";
  const std::string source = read("tests/graph/mpi_connection_test.cc");
  const size_t first = source.find("\n" + begin) + 1 + begin.size();
  const std::string code = source.substr(first, source.find("\n" + end) + 1 - first);
  ASSERT_GT(code.size(), 1000u);
  EXPECT_NE(read("graph/README.md").find("```cpp\n" + code + "```\n"), std::string::npos)
      << "graph/README.md does not hold its example as it is compiled";
}

TEST(MpiConnectionTest, RanksExchangeAndHearWhoLeft) {
  constexpr int kSize = 3;
  FakeMpi mpi;
  InThreads(kSize, [&](int rank) {
    const FakeComm of_rank = {&mpi, rank};
    const MPI_Comm comm = &of_rank;
    LaunchEnvironment launch = {.rank = rank, .size = kSize, .local_rank = rank, .local_size = kSize};
    launch.connect = [comm](int to) { return std::make_unique<MpiConnection>(comm, to); };
    Connected connected = internal::Bootstrap::Connect(launch, absl::Seconds(60));
    ASSERT_THAT(connected, IsOk());
    for (const size_t num_bytes : {size_t{0}, size_t{7}, size_t{3} << 20}) {
      const std::string mine(num_bytes, static_cast<char>('a' + rank));
      REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, (*connected)->Exchange("parts", mine));
      for (int other = 0; other < kSize; ++other) {
        EXPECT_TRUE(all[other] == std::string(num_bytes, static_cast<char>('a' + other))) << "part " << other;
      }
    }
    if (rank == 2) return;
    EXPECT_THAT((*connected)->Exchange("parts", "x"),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2 closed its connection")));
  });
}

}  // namespace
}  // namespace reprise::testing
