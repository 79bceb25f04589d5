#include "graph/host/adversarial_replay.h"

#include <algorithm>

#include "graph/command_error.h"
#include "graph/host/transient_poison.h"
#include "reprise/core/status_macros.h"

namespace reprise::internal {
namespace {

// Priorities are drawn anew once in so many moves: a favoured lane runs far ahead, or one command stays open long.
// Uniformly random moves find fewer missing waits, because lanes then drift together.
constexpr uint64_t kMovesPerDraw = 16;

class AdversarialReplay {
 public:
  AdversarialReplay(const HostRecording& recording, SplitMix64& random, ReplayTimes& times)
      : recording_(recording),
        random_(random),
        times_(times),
        poison_(recording),
        complete_(recording.ranks(), std::vector<bool>(recording.commands(), false)),
        begun_(recording.commands(), 0) {
    for (int rank = 0; rank < recording.ranks(); ++rank) {
      const size_t first = actors_.size();
      actors_.resize(first + kNumLanes);
      for (int c = 0; c < recording.commands(); ++c) {
        actors_[first + static_cast<int>(recording.schedule().commands[c].lane)].commands.push_back(c);
      }
      for (size_t i = first; i < actors_.size(); ++i) actors_[i].rank = rank;
    }
    DrawPriorities();
  }

  absl::Status Run() {
    poison_.StartReplay();
    while (true) {
      if (random_.Next() % kMovesPerDraw == 0) DrawPriorities();
      Actor* const actor = ChooseActor();
      if (actor == nullptr) break;
      if (actor->begun) {
        REPRISE_RETURN_IF_ERROR(EndCommand(*actor));
      } else {
        BeginCommand(*actor);
      }
    }
    return absl::OkStatus();
  }

 private:
  // One lane of one rank.
  struct Actor {
    int rank = 0;
    std::vector<int> commands = {};
    size_t next = 0;
    bool begun = false;  // commands[next] has begun
    uint64_t begin_priority = 0, end_priority = 0;
  };

  const ScheduledCommand& CommandAt(int c) const { return recording_.schedule().commands[c]; }

  void DrawPriorities() {
    for (Actor& actor : actors_) {
      actor.begin_priority = random_.Next();
      actor.end_priority = random_.Next();
    }
  }

  bool CanMove(const Actor& actor) const {
    if (actor.next == actor.commands.size()) return false;
    const int c = actor.commands[actor.next];
    if (actor.begun) return !IsCollective(CommandAt(c).command) || begun_[c] == recording_.ranks();
    const std::vector<Wait>& waits = CommandAt(c).waits;
    return std::all_of(waits.begin(), waits.end(),
                       [&](const Wait& wait) { return complete_[actor.rank][wait.command.value()]; });
  }

  // Null if none can move.
  Actor* ChooseActor() {
    const auto priority = [](const Actor& actor) { return actor.begun ? actor.end_priority : actor.begin_priority; };
    Actor* chosen = nullptr;
    for (Actor& actor : actors_) {
      if (CanMove(actor) && (chosen == nullptr || priority(actor) > priority(*chosen))) chosen = &actor;
    }
    return chosen;
  }

  void BeginCommand(Actor& actor) {
    const int c = actor.commands[actor.next];
    actor.begun = true;
    ++begun_[c];
    times_.Begin(actor.rank, c);
    poison_.BeginCommand(actor.rank, c);
  }

  absl::Status EndCommand(Actor& actor) {
    const int c = actor.commands[actor.next];
    if (!IsCollective(CommandAt(c).command)) {
      REPRISE_RETURN_IF_ERROR(RunPart(actor.rank, c));
      Complete(actor);
      return absl::OkStatus();
    }
    for (int rank = 0; rank < recording_.ranks(); ++rank) REPRISE_RETURN_IF_ERROR(RunPart(rank, c));
    for (Actor& other : actors_) {
      if (other.begun && other.commands[other.next] == c) Complete(other);
    }
    return absl::OkStatus();
  }

  absl::Status RunPart(int rank, int c) const {
    const HostWork& work = recording_.work[c][rank];
    if (work == nullptr) return absl::OkStatus();
    return AtCommand(*recording_.bindings->plan, CommandId(c), CommandAt(c).command, work());
  }

  void Complete(Actor& actor) {
    const int c = actor.commands[actor.next];
    poison_.EndCommand(actor.rank, c);
    times_.End(actor.rank, c);
    complete_[actor.rank][c] = true;
    actor.begun = false;
    ++actor.next;
  }

  const HostRecording& recording_;
  SplitMix64& random_;
  ReplayTimes& times_;
  TransientPoison poison_;
  std::vector<std::vector<bool>> complete_;  // by rank and command
  std::vector<int> begun_;                   // by command: ranks on which it has begun
  std::vector<Actor> actors_;
};

}  // namespace

absl::Status ReplayAdversarially(const HostRecording& recording, SplitMix64& random, ReplayTimes& times) {
  return AdversarialReplay(recording, random, times).Run();
}

}  // namespace reprise::internal
