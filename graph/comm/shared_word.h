// A word of memory that all processes of a host see at once. A rank that stores there and then does something by which
// others could see it happen has told them before: no message can be overtaken.
#ifndef REPRISE_GRAPH_COMM_SHARED_WORD_H_
#define REPRISE_GRAPH_COMM_SHARED_WORD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise::internal {

// Threads: any.
class SharedWord {
 public:
  // A new one, which is 0, under a name that no other has until RemoveName, of this user alone. Unavailable without
  // shared memory.
  static absl::StatusOr<std::unique_ptr<SharedWord>> Create();
  // One that another process of this host, or this one, created. Unavailable where that cannot be seen.
  static absl::StatusOr<std::unique_ptr<SharedWord>> Open(const std::string& name);
  ~SharedWord();
  SharedWord(const SharedWord&) = delete;
  SharedWord& operator=(const SharedWord&) = delete;

  const std::string& name() const { return name_; }
  // Those who opened it keep it, and nothing is left behind. Of the creator's alone; its destructor does it, too.
  void RemoveName();

  uint32_t value() const { return word_->load(std::memory_order_seq_cst); }
  // Keeps the first value but 0. What this thread does afterwards, on any device, comes after it.
  void Set(uint32_t value);

 private:
  SharedWord(std::string name, bool owns_name) : name_(std::move(name)), owns_name_(owns_name) {}
  // Makes room for the word in a new one.
  absl::Status Map(int file, bool is_new);

  const std::string name_;
  bool owns_name_;
  std::atomic<uint32_t>* word_ = nullptr;
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share no locks");
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_COMM_SHARED_WORD_H_
