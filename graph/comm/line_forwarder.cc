#include "graph/comm/line_forwarder.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace reprise::internal {
namespace {

// A longer line is forwarded in pieces.
constexpr size_t kMaxLineBytes = size_t{1} << 16;

// As far as the target takes them: output that nobody can see must not stop a run.
void WriteAll(int target, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(target, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

LineForwarder::LineForwarder(FileDescriptor source, std::string prefix, int target, int copy)
    : source_(std::move(source)), prefix_(std::move(prefix)), target_(target), copy_(copy) {
  fcntl(source_.get(), F_SETFL, O_NONBLOCK);
}

void LineForwarder::Forward() {
  char bytes[4096];
  while (source_.valid()) {
    const ssize_t received = read(source_.get(), bytes, sizeof(bytes));
    if (received > 0) {
      pending_.append(bytes, static_cast<size_t>(received));
      ForwardLines();
    } else if (received == 0 || (errno != EINTR && errno != EAGAIN)) {
      source_.Close();
      Finish();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void LineForwarder::Finish() {
  Forward();
  if (pending_.empty()) return;
  pending_ += "\n";
  ForwardLines();
}

void LineForwarder::ForwardLines() {
  std::string lines, plain_lines;
  size_t begin = 0;
  while (true) {
    size_t end = pending_.find('\n', begin);
    if (end == std::string::npos && pending_.size() - begin < kMaxLineBytes) break;
    end = std::min(end, begin + kMaxLineBytes - 1);
    const absl::string_view line = absl::string_view(pending_).substr(begin, end + 1 - begin);
    const absl::string_view newline = pending_[end] == '\n' ? "" : "\n";
    absl::StrAppend(&lines, prefix_, line, newline);
    absl::StrAppend(&plain_lines, line, newline);
    begin = end + 1;
  }
  pending_.erase(0, begin);
  WriteAll(target_, lines);
  if (copy_ >= 0) WriteAll(copy_, plain_lines);
}

}  // namespace reprise::internal
