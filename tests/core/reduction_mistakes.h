// Mistakes of one reduction of a plan, for tests of what Verify finds.
#ifndef REPRISE_TESTS_CORE_REDUCTION_MISTAKES_H_
#define REPRISE_TESTS_CORE_REDUCTION_MISTAKES_H_

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "reprise/core/plan.h"
#include "tests/testing/random_model.h"

namespace reprise::testing {

// A reduction and its accumulate, which is the next command of its lane.
struct Pair {
  Plan& plan;
  Schedule& schedule;
  ScheduledCommand& reduction;
  ScheduledCommand& sum;
  Random& random;

  ReduceScatter& reduce() const { return std::get<ReduceScatter>(reduction.command); }
  Accumulate& accumulate() const { return std::get<Accumulate>(sum.command); }
  // The uses of the reduction that are its unit's gradients.
  std::vector<BufferUse*> Gradients() const {
    std::vector<BufferUse*> gradients;
    for (BufferUse& use : reduction.uses) {
      if (use.role == Role::kReduceBuffer) gradients.push_back(&use);
    }
    return gradients;
  }
  bool InPlace() const { return plan.buffer(Gradients()[0]->buffer).storage == Storage::kGradients; }
  // The first use of the role, which every accumulate has of all but kReduceBuffer.
  BufferUse& UseOfSum(Role role) const {
    return *std::find_if(sum.uses.begin(), sum.uses.end(), [&](const BufferUse& use) { return use.role == role; });
  }
  bool Exchanges() const { return reduce().sum == Sum::kRankOrder; }
  void EraseFromSum(Role role) const {
    std::erase_if(sum.uses, [&](const BufferUse& use) { return use.role == role; });
  }
};

struct Mistake {
  std::string name;
  std::function<bool(const Pair&)> make;  // false: this pair has no room for it
  std::vector<std::string> words;
  bool in_place = false;  // of reductions that read a unsharded gradient where it is
};
inline void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

// Of what the reduction reads, in every kind of plan and where it reads a unsharded gradient in place.
std::vector<Mistake> GradientMistakes();

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_CORE_REDUCTION_MISTAKES_H_
