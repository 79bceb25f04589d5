// As much of MPI's interface as README's connections use, between threads of one process.
#ifndef REPRISE_TESTS_GRAPH_FAKE_MPI_H_
#define REPRISE_TESTS_GRAPH_FAKE_MPI_H_

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

enum MPI_Datatype { MPI_BYTE };
struct MPI_Status {
  int bytes = 0;
};
inline MPI_Status* const MPI_STATUS_IGNORE = nullptr;

// Messages under way, by sender and receiver.
struct FakeMpi {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::deque<std::string>> messages;
};
// A rank's handle of the communicator.
struct FakeComm {
  FakeMpi* mpi = nullptr;
  int rank = 0;
};
using MPI_Comm = const FakeComm*;

// A message leaves its sender's memory when it is tested or waited for, so that one which changed meanwhile is seen.
struct FakeRequest {
  const void* bytes = nullptr;
  int size = 0;
  int to = 0;
  MPI_Comm comm = nullptr;
  int tests = 0;
};
using MPI_Request = FakeRequest;
inline const MPI_Request MPI_REQUEST_NULL = {};

inline void MPI_Wait(MPI_Request* request, MPI_Status*) {
  if (request->comm == nullptr) return;
  FakeMpi& mpi = *request->comm->mpi;
  const std::lock_guard lock(mpi.mutex);
  mpi.messages[{request->comm->rank, request->to}].emplace_back(static_cast<const char*>(request->bytes),
                                                                static_cast<size_t>(request->size));
  *request = MPI_REQUEST_NULL;
}
// Every other one that is asked about is still under way.
inline void MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  *flag = request->comm == nullptr || request->tests++ > 0 ? 1 : 0;
  if (*flag != 0) MPI_Wait(request, status);
}
inline void MPI_Isend(const void* bytes, int size, MPI_Datatype, int to, int, MPI_Comm comm, MPI_Request* request) {
  *request = {.bytes = bytes, .size = size, .to = to, .comm = comm};
}
inline void MPI_Send(const void* bytes, int size, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
  MPI_Request request;
  MPI_Isend(size == 0 ? "" : bytes, size, type, to, tag, comm, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}
inline void MPI_Iprobe(int from, int, MPI_Comm comm, int* flag, MPI_Status* status) {
  const std::lock_guard lock(comm->mpi->mutex);
  const std::deque<std::string>& messages = comm->mpi->messages[{from, comm->rank}];
  *flag = messages.empty() ? 0 : 1;
  if (*flag != 0) status->bytes = static_cast<int>(messages.front().size());
}
inline void MPI_Get_count(const MPI_Status* status, MPI_Datatype, int* count) { *count = status->bytes; }
inline void MPI_Recv(void* bytes, int size, MPI_Datatype, int from, int, MPI_Comm comm, MPI_Status*) {
  const std::lock_guard lock(comm->mpi->mutex);
  std::deque<std::string>& messages = comm->mpi->messages[{from, comm->rank}];
  if (size > 0) std::memcpy(bytes, messages.front().data(), static_cast<size_t>(size));
  messages.pop_front();
}

#endif  // REPRISE_TESTS_GRAPH_FAKE_MPI_H_
