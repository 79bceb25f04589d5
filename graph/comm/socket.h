// TCP sockets: not blocking, closed on exec, without delay, kept alive. IPv4 and IPv6.
#ifndef REPRISE_GRAPH_COMM_SOCKET_H_
#define REPRISE_GRAPH_COMM_SOCKET_H_

#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/comm/deadline.h"
#include "graph/comm/file_descriptor.h"

namespace reprise::internal {

struct Address {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
};

// "127.0.0.1:29501", "[::1]:29501".
std::string ToString(const Address& address);

int PortOf(const Address& address);
Address WithPort(Address address, int port);

// Every address of `host`, a name or a number. Unavailable if it has none now.
absl::StatusOr<std::vector<Address>> Resolve(const std::string& host, int port);
// Those by which processes of one host meet.
std::vector<Address> Loopback(int port);

enum class Reach { kThisHost, kEveryHost };
// Listens; port 0 takes any. AlreadyExists if the port is taken, Unavailable if there is no network.
absl::StatusOr<FileDescriptor> Listen(Reach reach, int port);
absl::StatusOr<Address> LocalAddress(const FileDescriptor& socket);

// The next connection, with the address of its other end in `peer`; Unavailable if there is none now.
absl::StatusOr<FileDescriptor> Accept(const FileDescriptor& listener, Address& peer);
// A connection in the making: NotFound if nobody listens there. Once poll finds it writable, FinishConnect tells
// whether it was made.
absl::StatusOr<FileDescriptor> BeginConnect(const Address& address);
absl::Status FinishConnect(const FileDescriptor& socket, const Address& address);
// Both. NotFound if nobody listens there, or does not answer before the deadline.
absl::StatusOr<FileDescriptor> Connect(const Address& address, const Deadline& deadline);

// poll(2), again after a signal. False once the deadline passed; entries of descriptor -1 are passed over.
bool Poll(std::vector<pollfd>& sockets, const Deadline& deadline);
bool PollOne(int fd, short events, const Deadline& deadline);

// "what: text of errno".
std::string ErrnoText(const std::string& what, int error);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_SOCKET_H_
