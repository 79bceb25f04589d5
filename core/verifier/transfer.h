// What each command does, in values: what each of its uses must be and hold before, and what it holds after.
#ifndef REPRISE_CORE_VERIFIER_TRANSFER_H_
#define REPRISE_CORE_VERIFIER_TRANSFER_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/verifier/model_meaning.h"

namespace reprise::internal {

// Bytes of a use that hold bytes of a value, from its byte `from` on.
struct Piece {
  int64_t offset = 0, num_bytes = 0;
  Value value;
  int64_t from = 0;
};

// A use that a command must have. What it assigns and no piece of `after` covers holds nothing then.
struct Operand {
  Role role = Role::kControl;
  int32_t id = -1;
  AxisId peers = {};  // valid: like the operand before, of other ranks
  Access access = Access::kRead;
  int64_t num_bytes = 0;
  BufferId home = {};  // the one that outlives graphs in which it may be written, there alone
  int64_t home_offset = 0;
  int first_before = 0, first_after = 0, end = 0;  // of its pieces in Transfer
};

class Transfer {
 public:
  explicit Transfer(const ModelMeaning& model) : model_(model), plan_(model.plan()) {}

  // Finds the operands of a command of the schedule, which has passed CheckForm. Internal, with what must be otherwise,
  // where a field of the command cannot be as it is.
  absl::Status Find(const Schedule& schedule, const Command& command);

  absl::Span<const Operand> operands() const { return operands_; }
  absl::Span<const Piece> before(const Operand& operand) const {
    return absl::MakeConstSpan(pieces_).subspan(operand.first_before, operand.first_after - operand.first_before);
  }
  absl::Span<const Piece> after(const Operand& operand) const {
    return absl::MakeConstSpan(pieces_).subspan(operand.first_after, operand.end - operand.first_after);
  }

 private:
  absl::Status Of(const Begin& c);
  absl::Status Of(const NextMicrobatch& c);
  absl::Status Of(const StageInputs& c);
  absl::Status Of(const AllGather& c);
  absl::Status Of(const Forward& c);
  absl::Status Of(const Backward& c);
  absl::Status Of(const PackGradients& c);
  absl::Status Of(const ReduceScatter& c);
  absl::Status Of(const Accumulate& c);
  absl::Status Of(const RecordLoss& c);
  absl::Status Of(const SumNorm& c);
  absl::Status Of(const UpdateParameters& c);
  absl::Status Of(const RefreshShards& c);
  absl::Status Of(const PublishMetrics& c);
  absl::Status Of(const End& c);

  // Adds an operand, then pieces of it.
  void Add(Role role, int32_t id, Access access, int64_t num_bytes, BufferId home = {}, int64_t home_offset = 0);
  void Before(const Piece& piece);
  void After(const Piece& piece);
  // With one piece each, as far as it is given.
  void Reads(Role role, int32_t id, int64_t num_bytes, const Value& before, int64_t from = 0);
  void Assigns(Role role, int32_t id, int64_t num_bytes, const Value& after, BufferId home = {});
  void Updates(Role role, int32_t id, int64_t num_bytes, const Value& before, const Value& after, BufferId home);
  // The last operand also of other ranks, if the transport writes their memory.
  void AlsoOfPeers(Transport transport, AxisId axis);

  void ReadsControl();
  void ReadsParameters(const std::vector<ParameterId>& parameters);
  void UpdatesStates(const CallSpec& spec, const std::vector<int>& times, int64_t microbatch);
  void AddScratch(const CallSpec& spec);
  void UsesReduceBuffer(UnitId unit, int group, int64_t microbatch, Access access);
  absl::Status CheckTrains() const;
  absl::Status CheckPosition(int position) const;        // of a microbatch of the schedule
  absl::Status CheckSummedPosition(int position) const;  // or of one that the schedule before left

  const ModelMeaning& model_;
  const UnitBuffers& BuffersOf(UnitId unit) const { return plan_.unit_buffers[unit.value()]; }
  const TensorBuffers& BuffersOf(TensorId tensor) const { return plan_.tensor_buffers[tensor.value()]; }
  // Of a unit whose unsharded gradient is what is sent.
  BufferId InPlace(UnitId unit) const;

  const Plan& plan_;
  const Schedule* schedule_ = nullptr;
  std::vector<Operand> operands_;
  std::vector<Piece> pieces_;
};

}  // namespace reprise::internal

#endif  // REPRISE_CORE_VERIFIER_TRANSFER_H_
