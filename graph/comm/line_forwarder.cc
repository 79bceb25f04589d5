#include "graph/comm/line_forwarder.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace reprise::internal {
namespace {

// A longer line is forwarded in pieces.
constexpr size_t kMaxLineBytes = size_t{1} << 16;

// At once from one source, and what a pipe may hold.
constexpr size_t kTurnBytes = size_t{64} << 10, kMaxPipeBytes = size_t{1} << 20;

}  // namespace

LineForwarder::LineForwarder(FileDescriptor source, std::string prefix, OutputWriter* target, int copy)
    : source_(std::move(source)), prefix_(std::move(prefix)), target_(target), copy_(copy) {
  fcntl(source_.get(), F_SETFL, O_NONBLOCK);
}

void LineForwarder::Forward() {
  if (fd() >= 0) Read(kTurnBytes);
}

void LineForwarder::Finish() {
  Read(kMaxPipeBytes);
  if (pending_.empty()) return;
  pending_ += "\n";
  ForwardLines();
}

void LineForwarder::Read(size_t num_bytes) {
  char bytes[4096];
  for (size_t total = 0; source_.valid() && total < num_bytes;) {
    const ssize_t received = read(source_.get(), bytes, sizeof(bytes));
    if (received > 0) {
      total += static_cast<size_t>(received);
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

void LineForwarder::ForwardLines() {
  if (prefix_.empty()) {
    target_->Write(pending_);
    pending_.clear();
    return;
  }
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
  target_->Write(lines);
  if (copy_ >= 0) WriteCopy(plain_lines);
}

void LineForwarder::WriteCopy(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(copy_, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      if (copy_error_ == 0) copy_error_ = errno;
      num_lost_ += bytes.size();
      return;
    }
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
}

std::string LineForwarder::CopyLoss() const {
  if (num_lost_ == 0) return "";
  return absl::StrCat(num_lost_, " bytes were dropped: ", std::generic_category().message(copy_error_));
}

}  // namespace reprise::internal
