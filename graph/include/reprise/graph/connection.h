// How two ranks reach each other, where the program that embeds the library has its own means, as MPI or a store: then
// nothing of the library listens or connects. Everything that ranks agree on goes over these; tensors do not.
#ifndef REPRISE_GRAPH_CONNECTION_H_
#define REPRISE_GRAPH_CONNECTION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace reprise {

// This rank's end of a connection to another one. What one end is given comes out of the other, all of it, in order and
// once; how it is cut on the way does not matter. It belongs to one world and carries nothing else.
//
// Nothing here waits for the other rank: the world does, which looks again and again until its deadline. Errors are
// final; Unavailable where the other end closed or is gone (one that cannot be seen to be gone is found at the
// deadline), with words that follow the rank's name, as "closed its connection". Nothing throws.
//
// Threads: those inside calls of the world, one at a time for all its connections; destroyed with the world and with
// what is made from it, by whoever has the last of these.
class Connection {
 public:
  // The other end's Receive fails once it has given all that was taken. Waits for nobody, or not for long.
  virtual ~Connection() = default;
  // Takes a first part of `bytes`, which are 1 to 2^20, and returns its length: 0 if there is no room now. Keeps no
  // reference to them.
  virtual absl::StatusOr<size_t> Send(absl::string_view bytes) = 0;
  // Appends to `received` what has come, any number of bytes; nothing if nothing has.
  virtual absl::Status Receive(std::string& received) = 0;
  // A descriptor that poll finds readable when Receive has something, and writable when Send has room, to wait on; -1:
  // there is none, and the world looks every 100 microseconds.
  virtual int poll_fd() const { return -1; }
};

// Makes this rank's end of the connection to `rank`. Called when a world is made: on rank 0 for every other rank, on
// the others for rank 0.
using Connect = std::function<absl::StatusOr<std::unique_ptr<Connection>>(int rank)>;

}  // namespace reprise

#endif  // REPRISE_GRAPH_CONNECTION_H_
