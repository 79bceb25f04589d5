#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan_text.h"
#include "reprise/graph/recorder.h"

namespace reprise {
namespace {

class TextExecutable : public Executable {
 public:
  absl::Status Replay() override { return absl::OkStatus(); }
};

class TextRecorder : public Recorder {
 public:
  TextRecorder(const Plan& plan, std::string* text) : plan_(plan), text_(text) {}

  absl::Status Begin(const Schedule& schedule) override {
    lines_ = internal::CommandLines(plan_, schedule);
    return absl::OkStatus();
  }

  absl::Status Record(CommandId id, const ScheduledCommand&) override {
    if (!id.valid() || static_cast<size_t>(id.value()) >= lines_.size()) {
      return absl::FailedPreconditionError(absl::StrCat("command #", id.value(), " was recorded, but the schedule has ",
                                                        lines_.size(), " commands; record what was begun"));
    }
    absl::StrAppend(text_, lines_[id.value()]);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Executable>> Finish() override { return std::make_unique<TextExecutable>(); }

 private:
  const Plan& plan_;
  std::string* const text_;
  std::vector<std::string> lines_;
};

}  // namespace

std::unique_ptr<Recorder> NewTextRecorder(const Plan& plan, std::string* text) {
  return std::make_unique<TextRecorder>(plan, text);
}

}  // namespace reprise
