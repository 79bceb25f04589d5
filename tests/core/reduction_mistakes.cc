#include "tests/core/reduction_mistakes.h"

#include "absl/strings/str_cat.h"

namespace reprise::testing {

std::vector<Mistake> GradientMistakes() {
  std::vector<Mistake> mistakes = {
      {"NoGradients",
       [](const Pair& p) {
         std::erase_if(p.reduction.uses, [](const BufferUse& use) { return use.role == Role::kReduceBuffer; });
         return true;
       },
       {"reduce_scatter", "has no use as reduce_buffer "}},
      {"AGradientLeftOut",
       [](const Pair& p) {
         const std::vector<BufferUse*> gradients = p.Gradients();
         if (gradients.size() == 1) return false;
         const int32_t id = gradients[p.random.Below(static_cast<int64_t>(gradients.size()))]->id;
         for (ScheduledCommand* command : {&p.reduction, &p.sum}) {
           std::erase_if(command->uses,
                         [&](const BufferUse& u) { return u.role == Role::kReduceBuffer && u.id == id; });
         }
         return true;
       },
       {"reduce_scatter", "has no use as reduce_buffer "}},
      {"AGradientTwice",
       [](const Pair& p) {
         p.reduction.uses.push_back(*p.Gradients()[0]);
         return true;
       },
       {"reduce_scatter", "uses bytes", "as reduce_buffer ", "which it does not need"}},
      {"AByteLeftOut",
       [](const Pair& p) {
         --p.Gradients().back()->num_bytes;
         return true;
       },
       {"reduce_scatter", "reads bytes", "as reduce_buffer ", "but must read "}},
      {"AByteTooEarly",
       [](const Pair& p) {
         BufferUse& use = *p.Gradients().back();
         if (use.offset == 0) return false;
         --use.offset;
         return true;
       },
       {"reduce_scatter", "bytes"}},
      {"AGradientAssigned",
       [](const Pair& p) {
         p.Gradients()[0]->access = Access::kAssign;
         return true;
       },
       {"reduce_scatter", "assigns bytes", "as reduce_buffer ", "but must read "}},
      {"GradientsInTwoBuffers",
       [](const Pair& p) {
         if (p.Gradients().size() == 1) return false;
         BufferUse& use = *p.Gradients().back();
         p.plan.buffers.push_back(p.plan.buffer(use.buffer));
         use.buffer = BufferId(static_cast<int64_t>(p.plan.buffers.size()) - 1);
         return true;
       },
       {}},
      {"GradientsOfAnotherUnit",
       [](const Pair& p) {
         const int64_t units = static_cast<int64_t>(p.plan.model.units().size());
         const UnitId other((p.reduce().unit.value() + 1) % units);
         const std::vector<FlatGroup>& groups = p.plan.layout.units[other.value()].groups;
         const auto trains = [](const FlatGroup& group) { return group.trainable; };
         if (units == 1 || std::none_of(groups.begin(), groups.end(), trains)) return false;
         p.reduce().unit = p.accumulate().unit = other;
         return true;
       },
       {"reduce_scatter"}},
      {"SlotsAndTheirAbsence",
       [](const Pair& p) {
         p.reduce().slot = p.InPlace() ? 0 : -1;
         return true;
       },
       {"reduce_scatter", "slot, but ", " takes "}},
  };
  std::vector<Mistake> in_place = {
      {"UnshardedGradientOfAnotherUnit",
       [](const Pair& p) {
         BufferId& mine = p.plan.unit_buffers[p.reduce().unit.value()].unsharded_gradient;
         for (UnitBuffers& unit : p.plan.unit_buffers) {
           if (!unit.unsharded_gradient.valid() || unit.unsharded_gradient == mine) continue;
           std::swap(unit.unsharded_gradient, mine);
           return true;
         }
         return false;
       },
       {"unsharded_gradient.u"}},
      {"UnshardedGradientInAnotherDType",
       [](const Pair& p) {
         for (FlatGroup& group : p.plan.layout.units[p.reduce().unit.value()].groups)
           group.reduce_dtype = DType::kBFloat16;
         return true;
       },
       {"the plan's layout is not that of its model on "}},
      {"UnshardedGradientWhereCollectivesCannotRead",
       [](const Pair& p) {
         Buffer& buffer = p.plan.buffers[p.Gradients()[0]->buffer.value()];
         int64_t& room = p.plan.memory.num_bytes[static_cast<int>(Storage::kSession)];
         buffer.storage = Storage::kSession;
         buffer.offset = (room + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
         room = buffer.offset + buffer.num_bytes;
         return true;
       },
       {"unsharded_gradient.u", "is to hold the unsharded gradient of u", "in storage gradients, but has",
        "in storage session"}},
      {"OfOneMicrobatch",
       [](const Pair& p) {
         ++p.reduce().position;
         ++p.accumulate().position;
         return true;
       },
       {"reduce_scatter"}},
      {"ByMicrobatch",
       [](const Pair& p) {
         p.accumulate().mode = AccumulateMode::kByMicrobatch;
         return true;
       },
       {"accumulate", "does not always assign, but the plan reduces once per step"}},
      {"InAGraphOfMicrobatches",
       [](const Pair& p) {
         p.schedule.microbatches = 1;
         return true;
       },
       {"finish has 1 microbatches, not 0"}},
  };
  for (Mistake& mistake : in_place) mistake.in_place = true;
  // Every mistake with a gradient can be made with one that is reduced in place.
  for (Mistake mistake : mistakes) {
    mistake.name += "InPlace";
    mistake.in_place = true;
    in_place.push_back(mistake);
  }
  mistakes.insert(mistakes.end(), in_place.begin(), in_place.end());
  return mistakes;
}

}  // namespace reprise::testing
