#include "graph/host/host_collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/command_uses.h"
#include "graph/launch_command.h"
#include "reprise/core/control_block.h"
#include "reprise/core/status_macros.h"
#include "reprise/kernels/step.h"

namespace reprise::internal {
namespace {

using Parts = std::vector<HostWork>;

// A part made of steps on plain memory, which cannot fail.
HostWork WorkOf(std::vector<std::function<void()>> steps) {
  return [steps = std::move(steps)] {
    for (const std::function<void()>& step : steps) step();
    return absl::OkStatus();
  };
}

// Copies `bytes` from each source to consecutive places.
std::function<void()> Concatenate(std::vector<const std::byte*> sources, int64_t bytes, std::byte* to) {
  return [=, sources = std::move(sources)] {
    if (bytes == 0) return;
    for (size_t s = 0; s < sources.size(); ++s) std::memcpy(to + s * bytes, sources[s], bytes);
  };
}

// The sum of the sources in order, in float, rounded once.
template <class T>
std::function<void()> SumOf(std::vector<const std::byte*> sources, int64_t count, std::byte* to) {
  return [=, sources = std::move(sources)] {
    constexpr int64_t kBlock = 1024;
    float sum[kBlock];
    T* const result = reinterpret_cast<T*>(to);
    for (int64_t first = 0; first < count; first += kBlock) {
      const int64_t n = std::min(kBlock, count - first);
      for (size_t s = 0; s < sources.size(); ++s) {
        const T* const values = reinterpret_cast<const T*>(sources[s]) + first;
        for (int64_t i = 0; i < n; ++i) {
          const float value = static_cast<float>(values[i]);
          sum[i] = s == 0 ? value : sum[i] + value;
        }
      }
      for (int64_t i = 0; i < n; ++i) result[first + i] = T(sum[i]);
    }
  };
}

class Collectives {
 public:
  Collectives(const Bindings& bindings, const ScheduledCommand& command) : bindings_(bindings), command_(command) {}

  absl::StatusOr<Parts> operator()(const AllGather& gather) const {
    Parts parts;
    for (int rank = 0; rank < ranks(); ++rank) {
      std::vector<std::function<void()>> steps;
      for (const BufferUse& gathered : UsesOf(rank).All(Role::kGathered)) {
        const FlatGroup& group = GroupAt(gather.unit, gathered.id);
        std::vector<const std::byte*> shards;
        for (int source = 0; source < ranks(); ++source) {
          REPRISE_ASSIGN_OR_RETURN(shards.emplace_back(),
                                   UsesOf(source).Address<const std::byte>(Role::kShard, gathered.id));
        }
        steps.push_back(Concatenate(std::move(shards), group.shard_elements * SizeOf(group.dtype),
                                    UsesOf(rank).Pointer<std::byte>(gathered)));
      }
      parts.push_back(WorkOf(std::move(steps)));
    }
    return parts;
  }

  absl::StatusOr<Parts> operator()(const ReduceScatter& reduce) const {
    const Plan& plan = *bindings_.plan;
    Parts parts;
    for (int rank = 0; rank < ranks(); ++rank) {
      std::vector<std::function<void()>> steps;
      for (const BufferUse& received : UsesOf(rank).All(Role::kReceived)) {
        const FlatGroup& group = GroupAt(reduce.unit, received.id);
        const DType dtype = plan.reduce_dtype(group);
        const int64_t part_bytes = group.shard_elements * SizeOf(dtype);
        std::vector<const std::byte*> sources;
        for (int source = 0; source < ranks(); ++source) {
          REPRISE_ASSIGN_OR_RETURN(const std::byte* const reduce_buffer,
                                   UsesOf(source).Address<const std::byte>(Role::kReduceBuffer, received.id));
          sources.push_back(reduce_buffer + rank * part_bytes);
        }
        std::byte* const to = UsesOf(rank).Pointer<std::byte>(received);
        switch (reduce.sum) {
          case Sum::kRankOrder:
            sources.erase(sources.begin() + rank);
            steps.push_back(Concatenate(std::move(sources), part_bytes, to));
            break;
          case Sum::kNccl:
            steps.push_back(dtype == DType::kBFloat16 ? SumOf<BFloat16>(std::move(sources), group.shard_elements, to)
                                                      : SumOf<float>(std::move(sources), group.shard_elements, to));
            break;
        }
      }
      parts.push_back(WorkOf(std::move(steps)));
    }
    return parts;
  }

  absl::StatusOr<Parts> operator()(const SumNorm&) const {
    std::vector<absl::Span<const double>> partials;
    std::vector<const ControlBlock*> controls;
    std::vector<StepState*> states;
    std::vector<NormPart*> norm_parts;
    for (int rank = 0; rank < ranks(); ++rank) {
      REPRISE_ASSIGN_OR_RETURN(const BufferUse use, UsesOf(rank).First(Role::kNormPartials));
      partials.emplace_back(UsesOf(rank).Pointer<const double>(use), use.num_bytes / sizeof(double));
      REPRISE_ASSIGN_OR_RETURN(controls.emplace_back(), UsesOf(rank).Address<const ControlBlock>(Role::kControl));
      REPRISE_ASSIGN_OR_RETURN(states.emplace_back(), UsesOf(rank).Address<StepState>(Role::kStepState));
      REPRISE_ASSIGN_OR_RETURN(norm_parts.emplace_back(), UsesOf(rank).Address<NormPart>(Role::kNormParts));
    }
    Parts parts;
    for (int rank = 0; rank < ranks(); ++rank) {
      parts.push_back([=] {
        NormPart* const mine = norm_parts[rank];
        NormPart* const all = mine + 1;
        for (size_t source = 0; source < states.size(); ++source) {
          double norm_squared = 0;
          for (const double partial : partials[source]) norm_squared += partial;
          all[source] = {norm_squared, states[source]->loss_sum, controls[source]->agreed};
        }
        *mine = all[rank];
        ImmediateHostQueue queue;
        return kernels::FinishNorm(Stream(&queue), controls[rank], states[rank], all, static_cast<int>(states.size()));
      });
    }
    return parts;
  }

  template <OneRankCommand Command>
  absl::StatusOr<Parts> operator()(const Command&) const {
    return absl::InternalError(absl::StrCat(Describe(*bindings_.plan, command_.command), " is not a collective"));
  }

 private:
  int ranks() const { return static_cast<int>(bindings_.ranks.size()); }
  CommandUses UsesOf(int rank) const { return CommandUses(bindings_, rank, command_); }
  const FlatGroup& GroupAt(UnitId unit, int32_t group) const {
    return bindings_.plan->layout.units[unit.value()].groups[group];
  }

  const Bindings& bindings_;
  const ScheduledCommand& command_;
};

}  // namespace

absl::StatusOr<std::vector<HostWork>> CollectiveWork(const Bindings& bindings, const ScheduledCommand& command) {
  return std::visit(Collectives(bindings, command), command.command);
}

}  // namespace reprise::internal
