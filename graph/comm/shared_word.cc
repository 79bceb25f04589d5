#include "graph/comm/shared_word.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/comm/file_descriptor.h"
#include "graph/comm/handshake.h"
#include "graph/comm/socket.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

absl::Status Failed(absl::string_view what, const std::string& name, int error) {
  return absl::UnavailableError(ErrnoText(absl::StrCat(what, " the shared memory ", name), error));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedWord>> SharedWord::Create() {
  const Nonce nonce = RandomNonce();
  const std::string name = absl::StrFormat("/reprise-%016x%016x", nonce.high, nonce.low);
  const FileDescriptor file(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  if (!file.valid()) return Failed("making", name, errno);
  std::unique_ptr<SharedWord> word(new SharedWord(name, /*owns_name=*/true));
  REPRISE_RETURN_IF_ERROR(word->Map(file.get(), /*is_new=*/true));
  return word;
}

absl::StatusOr<std::unique_ptr<SharedWord>> SharedWord::Open(const std::string& name) {
  const FileDescriptor file(shm_open(name.c_str(), O_RDWR, 0));
  if (!file.valid()) return Failed("opening", name, errno);
  std::unique_ptr<SharedWord> word(new SharedWord(name, /*owns_name=*/false));
  REPRISE_RETURN_IF_ERROR(word->Map(file.get(), /*is_new=*/false));
  return word;
}

absl::Status SharedWord::Map(int file, bool is_new) {
  constexpr size_t kNumBytes = sizeof(std::atomic<uint32_t>);
  // A page that is only promised would end the process once it is touched. New bytes are 0.
  const int error = is_new ? posix_fallocate(file, 0, kNumBytes) : 0;
  if (error != 0) return Failed("making room in", name_, error);
  void* const memory = mmap(nullptr, kNumBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return Failed("mapping", name_, errno);
  word_ = is_new ? new (memory) std::atomic<uint32_t>(0) : static_cast<std::atomic<uint32_t>*>(memory);
  return absl::OkStatus();
}

SharedWord::~SharedWord() {
  RemoveName();
  if (word_ != nullptr) munmap(word_, sizeof(*word_));
}

void SharedWord::RemoveName() {
  if (std::exchange(owns_name_, false)) shm_unlink(name_.c_str());
}

void SharedWord::Set(uint32_t value) {
  uint32_t none = 0;
  // The driver hands work to a device after all that the thread stored before.
  word_->compare_exchange_strong(none, value, std::memory_order_seq_cst);
}

}  // namespace reprise::internal
