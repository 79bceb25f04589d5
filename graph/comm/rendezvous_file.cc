#include "graph/comm/rendezvous_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/model/hasher.h"
#include "graph/comm/file_descriptor.h"
#include "graph/comm/socket.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

constexpr absl::string_view kFirstWord = "reprise-rendezvous";

std::string Contents(const Rendezvous& rendezvous) {
  return absl::StrFormat("%s %d %016x %016x\n", kFirstWord, rendezvous.port, rendezvous.nonce.high,
                         rendezvous.nonce.low);
}

absl::Status CannotPublish(const std::string& path, int error) {
  return absl::PermissionDeniedError(
      absl::StrCat(ErrnoText(absl::StrCat("writing ", path, ", by which ranks find rank 0"), error),
                   "; set TMPDIR to a directory that this user can write, the same on all ranks"));
}

}  // namespace

std::string RendezvousPath(const LaunchEnvironment& launch) {
  Hasher hasher;
  hasher.Add(launch.job);
  const Fingerprint job = hasher.Finish();
  return absl::StrFormat("%s/reprise-%d-%016x%016x", launch.directory, geteuid(), job.high, job.low);
}

absl::Status Publish(const std::string& path, const Rendezvous& rendezvous) {
  const std::string temporary = absl::StrFormat("%s.%016x", path, RandomNonce().low);
  const std::string contents = Contents(rendezvous);
  {
    const FileDescriptor file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.valid()) return CannotPublish(path, errno);
    const ssize_t written = write(file.get(), contents.data(), contents.size());
    if (written != static_cast<ssize_t>(contents.size())) {
      const int error = written < 0 ? errno : ENOSPC;
      unlink(temporary.c_str());
      return CannotPublish(path, error);
    }
  }
  if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  unlink(temporary.c_str());
  return CannotPublish(path, error);
}

absl::StatusOr<Rendezvous> ReadRendezvous(const std::string& path) {
  // A pipe of that name must not hold up the opener.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    const std::string text = ErrnoText(absl::StrCat("opening ", path), errno);
    if (errno == ENOENT) return absl::NotFoundError(text);
    return absl::PermissionDeniedError(text);
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is not a file of this user's alone and is not believed; remove it"));
  }
  char bytes[256];
  const ssize_t num_bytes = read(file.get(), bytes, sizeof(bytes));
  const absl::string_view text(bytes, num_bytes < 0 ? 0 : static_cast<size_t>(num_bytes));
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  Rendezvous rendezvous;
  if (words.size() != 4 || words[0] != kFirstWord || !absl::SimpleAtoi(words[1], &rendezvous.port) ||
      !absl::SimpleHexAtoi(words[2], &rendezvous.nonce.high) || !absl::SimpleHexAtoi(words[3], &rendezvous.nonce.low) ||
      rendezvous.port < 1 || rendezvous.port > 65535) {
    return absl::InternalError(absl::StrCat(path, " does not say where rank 0 is; remove it"));
  }
  return rendezvous;
}

void Withdraw(const std::string& path, const Rendezvous& rendezvous) {
  const absl::StatusOr<Rendezvous> found = ReadRendezvous(path);
  if (found.ok() && found->nonce == rendezvous.nonce) unlink(path.c_str());
}

}  // namespace reprise::internal
