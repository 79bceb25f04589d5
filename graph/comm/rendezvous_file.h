// The file by which ranks of one host find rank 0 where no launcher gives them a port. It belongs to the user, nobody
// else may write or read it, and it is there only while ranks are expected. A file that a killed process left behind is
// harmless: nobody answers with its nonce.
#ifndef REPRISE_GRAPH_COMM_RENDEZVOUS_FILE_H_
#define REPRISE_GRAPH_COMM_RENDEZVOUS_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/comm/handshake.h"
#include "reprise/graph/launch_environment.h"

namespace reprise::internal {

struct Rendezvous {
  int port = 0;  // on the loopback addresses
  Nonce nonce;
};

// Named for user and job.
std::string RendezvousPath(const LaunchEnvironment& launch);

// Appears at once and whole, in place of an older one. PermissionDenied if `path` is another user's or the directory
// does not take it.
absl::Status Publish(const std::string& path, const Rendezvous& rendezvous);
// NotFound if there is no file; PermissionDenied if it is not this user's alone; Internal if it is malformed.
absl::StatusOr<Rendezvous> ReadRendezvous(const std::string& path);
// Removes the file if it still says the same.
void Withdraw(const std::string& path, const Rendezvous& rendezvous);

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_RENDEZVOUS_FILE_H_
