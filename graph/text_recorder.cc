#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/plan_text.h"
#include "graph/recording_protocol.h"
#include "reprise/core/status_macros.h"
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
    if (text_ == nullptr) return protocol_.Keep(absl::InvalidArgumentError("there is no string to append text to"));
    REPRISE_RETURN_IF_ERROR(protocol_.Begin(plan_, schedule));
    lines_ = internal::CommandLines(plan_, schedule);
    return absl::OkStatus();
  }

  absl::Status Record(CommandId id, const ScheduledCommand& command) override {
    REPRISE_RETURN_IF_ERROR(protocol_.Record(id, command));
    absl::StrAppend(text_, lines_[id.value()]);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Executable>> Finish() override {
    REPRISE_RETURN_IF_ERROR(protocol_.Finish());
    return std::make_unique<TextExecutable>();
  }

 private:
  const Plan& plan_;
  std::string* const text_;
  internal::RecordingProtocol protocol_;
  std::vector<std::string> lines_;
};

}  // namespace

std::unique_ptr<Recorder> NewTextRecorder(const Plan& plan, std::string* text) {
  return std::make_unique<TextRecorder>(plan, text);
}

}  // namespace reprise
