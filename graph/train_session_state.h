// TrainSession's state, for the sessions that may use its arena.
#ifndef REPRISE_GRAPH_TRAIN_SESSION_STATE_H_
#define REPRISE_GRAPH_TRAIN_SESSION_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "graph/session_core.h"
#include "reprise/graph/train_session.h"

namespace reprise {

// Between steps and after a failure, Arena::open_step is -1 and `thread`, `values`, `version`, `run` and
// `is_finished` mean nothing.
struct TrainSession::State {
  ~State() {
    if (core != nullptr) core->arena()->open_step = -1;
  }

  absl::Status RequireStep(absl::string_view call) const;
  absl::Status RequireNoStep(absl::string_view call) const;
  // Refuses threads that did not begin the step, if one is open.
  absl::Status RequireThread(absl::string_view call) const;
  // "1 of 2 microbatches of step 3 have run", as the beginning of a message.
  std::string Progress(absl::string_view call) const;
  absl::Status Finish();
  void CloseStep();
  // What must be the same on all ranks for the step that begins, and a hash of it.
  std::vector<internal::AgreedValue> AgreedValues(const StepValues& begun) const;
  uint64_t HashOf(absl::Span<const internal::AgreedValue> values) const;
  // The last entries of the ring, which may hold steps that were not updated because ranks differ: kept as the
  // session's failure.
  absl::Status CheckPublished();
  const MetricsRing& ring() const;

  std::unique_ptr<internal::SessionCore> core;
  int64_t steps = 0;    // ended; the next one's number
  int64_t polled = 0;   // steps whose metrics were returned or lost
  int64_t checked = 0;  // by CheckPublished, or lost

  ControlBlock control;                  // as the last BeginStep wrote it
  std::optional<ControlBlock> replayed;  // what the last graph of microbatches started from

  std::thread::id thread;  // that began the step
  StepValues values;
  int64_t version = 0;       // of the parameters when the step began
  int run = 0;               // calls of RunMicrobatch
  bool is_finished = false;  // `finish` has been launched
  int64_t ticket = 0;        // of the step's announcement
};

}  // namespace reprise

#endif  // REPRISE_GRAPH_TRAIN_SESSION_STATE_H_
