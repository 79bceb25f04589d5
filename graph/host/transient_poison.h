// Fills memory that holds no value with NaN, so that what reads it too early or too late is seen in the results.
#ifndef REPRISE_GRAPH_HOST_TRANSIENT_POISON_H_
#define REPRISE_GRAPH_HOST_TRANSIENT_POISON_H_

#include <cstddef>
#include <vector>

#include "graph/host/host_recording.h"

namespace reprise::internal {

// For one replay of a schedule, on memory of the transient storages and unsharded gradients. The life of a value goes
// from its first use, in issue order, to the last one; an all-gather that assigns a buffer starts another life of it.
// The buffers that the schedule ends with keep their last value.
class TransientPoison {
 public:
  explicit TransientPoison(const HostRecording& recording);

  // Poisons all that the schedule uses and does not start with.
  void StartReplay();
  // Poisons what the command assigns and does not read.
  void BeginCommand(int rank, int command) const;
  // Poisons the buffers of lives that end with the command.
  void EndCommand(int rank, int command);

 private:
  struct Life {
    BufferId buffer;
    int commands = 0;   // that use it
    bool kept = false;  // beyond the replay
  };
  // Bytes of a rank's storage, by the address of a buffer in it.
  struct Range {
    BufferId buffer;
    int64_t first = 0, last = 0;  // in the storage; last excluded
  };

  const Buffer& BufferOf(BufferId id) const { return recording_.bindings->plan->buffer(id); }
  // Unsharded gradients are persistent, but hold nothing between their reduction and the next step.
  bool IsPoisoned(BufferId id) const { return IsTransient(BufferOf(id).storage) || is_full_gradient_[id.value()]; }
  std::vector<BufferId> BuffersOf(const ScheduleState& state) const;
  Range RangeOf(BufferId id) const;
  Range RangeOf(const BufferUse& use) const;
  // Removes the bytes of `range` from each piece.
  void Subtract(const Range& range, std::vector<Range>& pieces) const;
  void Fill(int rank, const Range& range) const;
  void FindLives();

  const HostRecording& recording_;
  std::vector<bool> is_full_gradient_;  // by buffer
  std::vector<Life> lives_;
  std::vector<std::vector<int>> lives_of_command_;
  std::vector<std::vector<int>> remaining_;  // by rank and life: commands that have not ended
};

}  // namespace reprise::internal

#endif  // REPRISE_GRAPH_HOST_TRANSIENT_POISON_H_
