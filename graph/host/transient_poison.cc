#include "graph/host/transient_poison.h"

#include <algorithm>
#include <cstring>

namespace reprise::internal {

TransientPoison::TransientPoison(const HostRecording& recording)
    : recording_(recording), is_full_gradient_(recording.bindings->plan->buffers.size(), false) {
  for (const UnitBuffers& unit : recording_.bindings->plan->unit_buffers) {
    if (unit.unsharded_gradient.valid()) is_full_gradient_[unit.unsharded_gradient.value()] = true;
  }
  FindLives();
  std::vector<int> commands;
  for (const Life& life : lives_) commands.push_back(life.commands);
  remaining_.assign(recording_.ranks(), commands);
}

std::vector<BufferId> TransientPoison::BuffersOf(const ScheduleState& state) const {
  std::vector<BufferId> buffers;
  for (const Resident& resident : state.residents) buffers.push_back(resident.buffer);
  for (const OutstandingReduction& reduction : state.outstanding) buffers.push_back(reduction.buffer);
  for (const UnitBuffers& unit : recording_.bindings->plan->unit_buffers) {
    if (state.gradients && unit.unsharded_gradient.valid()) buffers.push_back(unit.unsharded_gradient);
  }
  return buffers;
}

void TransientPoison::FindLives() {
  std::vector<int> current(recording_.bindings->plan->buffers.size(), -1);  // by buffer: its life so far
  for (const ScheduledCommand& command : recording_.schedule().commands) {
    std::vector<int>& mine = lives_of_command_.emplace_back();
    const bool gathers = std::holds_alternative<AllGather>(command.command);
    for (const BufferUse& use : command.uses) {
      if (use.num_bytes == 0 || !IsPoisoned(use.buffer)) continue;
      int& life = current[use.buffer.value()];
      if (std::find(mine.begin(), mine.end(), life) != mine.end()) continue;
      if (life < 0 || (gathers && use.access == Access::kAssign)) {
        life = static_cast<int>(lives_.size());
        lives_.push_back({use.buffer});
      }
      ++lives_[life].commands;
      mine.push_back(life);
    }
  }
  for (const BufferId buffer : BuffersOf(recording_.schedule().end)) {
    if (const int life = current[buffer.value()]; life >= 0) lives_[life].kept = true;
  }
}

TransientPoison::Range TransientPoison::RangeOf(BufferId id) const {
  const Buffer& buffer = BufferOf(id);
  return {id, buffer.offset, buffer.offset + buffer.num_bytes};
}

TransientPoison::Range TransientPoison::RangeOf(const BufferUse& use) const {
  const int64_t first = BufferOf(use.buffer).offset + use.offset;
  return {use.buffer, first, first + use.num_bytes};
}

void TransientPoison::Subtract(const Range& range, std::vector<Range>& pieces) const {
  std::vector<Range> rest;
  for (const Range& piece : pieces) {
    if (BufferOf(piece.buffer).storage != BufferOf(range.buffer).storage || range.last <= piece.first ||
        piece.last <= range.first) {
      rest.push_back(piece);
      continue;
    }
    if (piece.first < range.first) rest.push_back({piece.buffer, piece.first, range.first});
    if (range.last < piece.last) rest.push_back({piece.buffer, range.last, piece.last});
  }
  pieces = std::move(rest);
}

void TransientPoison::Fill(int rank, const Range& range) const {
  std::byte* const buffer = recording_.bindings->addresses[rank][range.buffer.value()];
  std::memset(buffer + (range.first - BufferOf(range.buffer).offset), 0xff, range.last - range.first);
}

void TransientPoison::StartReplay() {
  std::vector<Range> pieces;
  for (const Life& life : lives_) pieces.push_back(RangeOf(life.buffer));
  for (const BufferId held : BuffersOf(recording_.schedule().start)) Subtract(RangeOf(held), pieces);
  for (int rank = 0; rank < recording_.ranks(); ++rank) {
    for (const Range& piece : pieces) Fill(rank, piece);
  }
}

void TransientPoison::BeginCommand(int rank, int command) const {
  const std::vector<BufferUse>& uses = recording_.schedule().commands[command].uses;
  std::vector<Range> pieces;
  for (const BufferUse& use : uses) {
    if (use.access == Access::kAssign && use.num_bytes > 0 && IsPoisoned(use.buffer)) {
      pieces.push_back(RangeOf(use));
    }
  }
  for (const BufferUse& use : uses) {
    if (use.access != Access::kAssign) Subtract(RangeOf(use), pieces);
  }
  for (const Range& piece : pieces) Fill(rank, piece);
}

void TransientPoison::EndCommand(int rank, int command) {
  for (const int life : lives_of_command_[command]) {
    if (--remaining_[rank][life] == 0 && !lives_[life].kept) Fill(rank, RangeOf(lives_[life].buffer));
  }
}

}  // namespace reprise::internal
