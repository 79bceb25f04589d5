#include "graph/comm/output_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/comm/socket.h"

namespace reprise::internal {
namespace {

// A few times what a pipe holds: enough that a reader which keeps up holds up nobody.
constexpr size_t kRoomBytes = size_t{256} << 10;

// For the thread that is started in its scope: it takes none of the signals that others wait for, and no SIGPIPE.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_ = {};
};

// Whether `error` of writing to `fd` says that nobody reads it. EBADF: this process was started without that stream.
bool ReaderIsGone(int fd, int error) {
  struct stat info = {};
  if (error == EIO) return fstat(fd, &info) == 0 && S_ISCHR(info.st_mode);  // a terminal that hung up
  return error == EPIPE || error == ECONNRESET || error == EBADF;
}

}  // namespace

struct OutputWriter::Shared {
  FileDescriptor target, wake;
  std::mutex mutex;
  std::condition_variable changed;
  bool started = false, abandoned = false;
  std::string queued;   // not yet with the thread
  size_t num_left = 0;  // with the thread, not written
  size_t num_lost = 0;  // dropped after an error
  int error = 0;

  size_t waiting() const { return queued.size() + num_left; }
};

OutputWriter::OutputWriter(int fd, std::string name) : name_(std::move(name)), shared_(std::make_shared<Shared>()) {
  shared_->target = FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!shared_->target.valid()) shared_->error = errno;
}

OutputWriter::~OutputWriter() {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->abandoned = true;
  shared_->changed.notify_all();
}

absl::Status OutputWriter::Start() {
  shared_->wake = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  // A stream that this process was started without takes nothing, and nobody misses it.
  if (shared_->wake.valid() && (shared_->target.valid() || shared_->error == EBADF)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(ErrnoText(absl::StrCat("preparing to write to ", name_), errno),
                                             "; start fewer ranks, or raise the limit of open files (ulimit -n)"));
}

bool OutputWriter::HasRoom() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->waiting() < kRoomBytes;
}

void OutputWriter::Write(absl::string_view bytes) {
  if (bytes.empty()) return;
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  if (shared_->error != 0) {
    shared_->num_lost += bytes.size();
    return;
  }
  if (!shared_->started) {
    const AllSignalsBlocked blocked;
    try {
      std::thread([shared = shared_] { Run(shared); }).detach();
    } catch (const std::system_error& error) {  // no thread left
      shared_->error = error.code().value();
      shared_->num_lost += bytes.size();
      return;
    }
    shared_->started = true;
  }
  shared_->queued.append(bytes.data(), bytes.size());
  shared_->changed.notify_all();
}

bool OutputWriter::done() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->waiting() == 0;
}

int OutputWriter::wake_fd() const { return shared_->wake.get(); }

void OutputWriter::ClearWake() {
  uint64_t count = 0;
  (void)!read(shared_->wake.get(), &count, sizeof(count));
}

std::string OutputWriter::Loss() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  const size_t lost = shared_->num_lost + shared_->waiting();
  if (lost == 0 || shared_->error == EBADF) return "";
  const std::string cause = shared_->error == 0 ? std::string("its reader did not take them in time")
                                                : std::generic_category().message(shared_->error);
  return absl::StrCat(lost, " bytes of ", name_, " were dropped: ", cause);
}

bool OutputWriter::failed() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->num_lost > 0 && !ReaderIsGone(shared_->target.get(), shared_->error);
}

void OutputWriter::Run(const std::shared_ptr<Shared>& shared) {
  std::string bytes;
  std::unique_lock<std::mutex> lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&] { return shared->abandoned || !shared->queued.empty(); });
    if (shared->abandoned) return;
    bytes = std::exchange(shared->queued, {});
    shared->num_left = bytes.size();
    while (shared->num_left > 0 && !shared->abandoned) {
      const size_t num_left = shared->num_left;
      lock.unlock();
      const ssize_t written = write(shared->target.get(), bytes.data() + bytes.size() - num_left, num_left);
      const int error = written < 0 ? errno : 0;
      lock.lock();
      if (written > 0) shared->num_left -= static_cast<size_t>(written);
      if (error == EAGAIN) {  // another process made the file non-blocking
        lock.unlock();
        PollOne(shared->target.get(), POLLOUT, Deadline(absl::Seconds(1)));
        lock.lock();
      } else if (error != 0 && error != EINTR) {
        shared->error = error;
        shared->num_lost += shared->waiting();
        shared->num_left = 0;
        shared->queued.clear();
      }
      const uint64_t one = 1;
      (void)!write(shared->wake.get(), &one, sizeof(one));
    }
  }
}

}  // namespace reprise::internal
