#include "graph/comm/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/model/quoted.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

void SetOption(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

// Options that make a connection better and without which it works.
void Tune(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

Address Ipv4(in_addr_t host, int port) {
  Address address;
  sockaddr_in in = {};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(host);
  in.sin_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&address.bytes, &in, sizeof(in));
  address.size = sizeof(in);
  return address;
}

Address Ipv6(const in6_addr& host, int port) {
  Address address;
  sockaddr_in6 in = {};
  in.sin6_family = AF_INET6;
  in.sin6_addr = host;
  in.sin6_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&address.bytes, &in, sizeof(in));
  address.size = sizeof(in);
  return address;
}

const sockaddr* Pointer(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.bytes); }
sockaddr* Pointer(Address& address) { return reinterpret_cast<sockaddr*>(&address.bytes); }

FileDescriptor NewSocket(const Address& address) {
  return FileDescriptor(socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
}

absl::Status CannotConnect(const Address& address, int error) {
  return absl::NotFoundError(ErrnoText(absl::StrCat("connecting to ", ToString(address)), error));
}

absl::StatusOr<FileDescriptor> ListenOn(const Address& address) {
  FileDescriptor socket = NewSocket(address);
  if (socket.valid()) {
    // The port of an earlier run may be taken at once, that of a listening one not.
    SetOption(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.bytes.ss_family == AF_INET6) SetOption(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(socket.get(), Pointer(address), address.size) == 0 && listen(socket.get(), SOMAXCONN) == 0) return socket;
  }
  const std::string text = ErrnoText(absl::StrCat("listening at ", ToString(address)), errno);
  if (errno == EADDRINUSE) return absl::AlreadyExistsError(text);
  return absl::UnavailableError(text);
}

}  // namespace

std::string ErrnoText(const std::string& what, int error) {
  return absl::StrCat(what, ": ", std::generic_category().message(error));
}

std::string ToString(const Address& address) {
  char host[INET6_ADDRSTRLEN] = "?";
  const bool six = address.bytes.ss_family == AF_INET6;
  const auto* const bytes = reinterpret_cast<const char*>(&address.bytes);
  const void* const number = bytes + (six ? offsetof(sockaddr_in6, sin6_addr) : offsetof(sockaddr_in, sin_addr));
  inet_ntop(address.bytes.ss_family, number, host, sizeof(host));
  return absl::StrCat(six ? "[" : "", host, six ? "]:" : ":", PortOf(address));
}

int PortOf(const Address& address) {
  // Of both families it is at one place.
  static_assert(offsetof(sockaddr_in6, sin6_port) == offsetof(sockaddr_in, sin_port));
  sockaddr_in in = {};
  std::memcpy(&in, &address.bytes, sizeof(in));
  return ntohs(in.sin_port);
}

Address WithPort(Address address, int port) {
  sockaddr_in in = {};
  std::memcpy(&in, &address.bytes, sizeof(in));
  in.sin_port = htons(static_cast<uint16_t>(port));
  std::memcpy(&address.bytes, &in, sizeof(in));
  return address;
}

absl::StatusOr<std::vector<Address>> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("no address of host ", Quoted(host), ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* info = list; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    Address& address = addresses.emplace_back();
    std::memcpy(&address.bytes, info->ai_addr, info->ai_addrlen);
    address.size = info->ai_addrlen;
  }
  return addresses;
}

std::vector<Address> Loopback(int port) { return {Ipv4(INADDR_LOOPBACK, port), Ipv6(in6addr_loopback, port)}; }

absl::StatusOr<FileDescriptor> Listen(Reach reach, int port) {
  // A listener at every IPv6 address takes IPv4 connections too.
  const std::vector<Address> addresses = reach == Reach::kThisHost
                                             ? Loopback(port)
                                             : std::vector<Address>{Ipv6(in6addr_any, port), Ipv4(INADDR_ANY, port)};
  absl::StatusOr<FileDescriptor> listener = ListenOn(addresses[0]);
  if (listener.ok() || absl::IsAlreadyExists(listener.status())) return listener;
  return ListenOn(addresses[1]);
}

absl::StatusOr<Address> LocalAddress(const FileDescriptor& socket) {
  Address address;
  address.size = sizeof(address.bytes);
  if (getsockname(socket.get(), Pointer(address), &address.size) == 0) return address;
  return absl::UnavailableError(ErrnoText("asking for the address of a socket", errno));
}

absl::StatusOr<FileDescriptor> Accept(const FileDescriptor& listener, Address& peer) {
  peer.size = sizeof(peer.bytes);
  FileDescriptor socket(accept4(listener.get(), Pointer(peer), &peer.size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return absl::UnavailableError(ErrnoText("accepting a connection", errno));
  Tune(socket.get());
  return socket;
}

absl::StatusOr<FileDescriptor> BeginConnect(const Address& address) {
  FileDescriptor socket = NewSocket(address);
  int error = socket.valid() ? 0 : errno;
  if (error == 0 && connect(socket.get(), Pointer(address), address.size) != 0) error = errno;
  if (error == 0 || error == EINPROGRESS || error == EINTR) return socket;
  return CannotConnect(address, error);
}

absl::Status FinishConnect(const FileDescriptor& socket, const Address& address) {
  int error = ETIMEDOUT;
  socklen_t size = sizeof(error);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return CannotConnect(address, error);
  Tune(socket.get());
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> Connect(const Address& address, const Deadline& deadline) {
  REPRISE_ASSIGN_OR_RETURN(FileDescriptor socket, BeginConnect(address));
  if (!PollOne(socket.get(), POLLOUT, deadline)) return CannotConnect(address, ETIMEDOUT);
  REPRISE_RETURN_IF_ERROR(FinishConnect(socket, address));
  return socket;
}

bool Poll(std::vector<pollfd>& sockets, const Deadline& deadline) {
  constexpr absl::Duration kPause = absl::Milliseconds(10);  // out of memory, perhaps: asking at once would spin
  do {
    const int ready = poll(sockets.data(), sockets.size(), deadline.poll_timeout());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) absl::SleepFor(kPause);
  } while (!deadline.passed());
  for (pollfd& socket : sockets) socket.revents = 0;
  return false;
}

bool PollOne(int fd, short events, const Deadline& deadline) {
  std::vector<pollfd> one = {{fd, events, 0}};
  return Poll(one, deadline);
}

}  // namespace reprise::internal
