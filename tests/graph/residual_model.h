// A residual branch of plain loops, whose compute functions tests break.
#ifndef REPRISE_TESTS_GRAPH_RESIDUAL_MODEL_H_
#define REPRISE_TESTS_GRAPH_RESIDUAL_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "reprise/core/status_macros.h"
#include "reprise/graph/host_world.h"
#include "reprise/graph/train_session.h"

namespace reprise::testing {

inline constexpr int64_t kSize = 6;
inline constexpr int kRanks = 2;

// y = w x; branch = 2 y; loss = sum of y branch. In backward "join" assigns the gradient of y, and "branch" adds to it.
template <class T>
class Residual {
 public:
  using Body = std::function<void()>;

  Residual() {
    constexpr DType dtype = DTypeOf<T>::value;
    const UnitId unit = builder_.AddUnit("u");
    w = builder_.AddParameter(unit, {.name = "w", .shape = {kSize}, .dtype = dtype});
    x = builder_.AddInput({.name = "x", .shape = {kSize}, .dtype = dtype});
    y = builder_.AddActivation({.name = "y", .shape = {kSize}, .dtype = dtype});
    branch = builder_.AddActivation({.name = "b", .shape = {kSize}, .dtype = dtype});
    loss = builder_.AddOutput({.name = "loss", .dtype = DType::kFloat32});
    make_call = builder_.AddCall({.name = "make", .units = {unit}, .inputs = {x}, .outputs = {y}, .saved = {x}});
    branch_call = builder_.AddCall({.name = "branch", .inputs = {y}, .outputs = {branch}, .scratch_bytes = 64});
    join_call = builder_.AddCall({.name = "join", .inputs = {y, branch}, .outputs = {loss}, .saved = {y, branch}});
    builder_.SetLoss(loss);
    model = *builder_.Build();
    compute[make_call] = {
        [this](ComputeContext& c) {
          return Enqueue(c, [x = c.input<T>(x), w = c.parameter<T>(w), y = c.output<T>(y)] {
            for (int64_t i = 0; i < kSize; ++i) y.data[i] = T(float(x.data[i]) * float(w.data[i]));
          });
        },
        [this](ComputeContext& c) {
          return Enqueue(c, [dy = c.output_gradient<T>(y), x = c.saved<const T>(x), dw = c.parameter_gradient<T>(w)] {
            for (int64_t i = 0; i < kSize; ++i) Store(dw, i, float(dy.data[i]) * float(x.data[i]));
          });
        }};
    compute[branch_call] = {[this](ComputeContext& c) {
                              return Enqueue(c, [y = c.input<T>(y), b = c.output<T>(branch)] {
                                for (int64_t i = 0; i < kSize; ++i) b.data[i] = T(2 * float(y.data[i]));
                              });
                            },
                            [this](ComputeContext& c) {
                              return Enqueue(c, [db = c.output_gradient<T>(branch), dy = c.input_gradient<T>(y)] {
                                for (int64_t i = 0; i < kSize; ++i) Store(dy, i, 2 * float(db.data[i]));
                              });
                            }};
    compute[join_call] = {
        [this](ComputeContext& c) {
          return Enqueue(c, [y = c.input<T>(y), b = c.input<T>(branch), loss = c.output<float>(loss)] {
            float sum = 0;
            for (int64_t i = 0; i < kSize; ++i) sum += (float(y.data[i]) + 1) * (float(b.data[i]) + 1);
            loss.data[0] = sum;
          });
        },
        [this](ComputeContext& c) {
          return Enqueue(c,
                         [dloss = c.output_gradient<float>(loss), y = c.saved<const T>(y), b = c.saved<const T>(branch),
                          dy = c.input_gradient<T>(y), db = c.input_gradient<T>(branch)] {
                           for (int64_t i = 0; i < kSize; ++i) {
                             Store(dy, i, dloss.data[0] * (float(b.data[i]) + 1));
                             Store(db, i, dloss.data[0] * (float(y.data[i]) + 1));
                           }
                         });
        }};
  }

  static absl::Status Enqueue(ComputeContext& c, Body body) {
    REPRISE_RETURN_IF_ERROR(c.status());
    c.stream().host_queue().Enqueue(std::move(body));
    return absl::OkStatus();
  }
  static void Store(Gradient<T> to, int64_t i, float value) {
    if (!to) return;
    to.data[i] = T(to.mode == WriteMode::kAdd ? float(to.data[i]) + value : value);
  }

  absl::Status Create(TrainOptions options = {}, ReplayOrder order = ReplayOrder::kIssue) const {
    REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, CreateHostWorld({.size = kRanks, .order = order}));
    REPRISE_ASSIGN_OR_RETURN(std::shared_ptr<ShardedParameters> parameters,
                             ShardedParameters::Create(std::move(world), model));
    REPRISE_RETURN_IF_ERROR(parameters->Initialize(Constant(3)));
    return TrainSession::Create(parameters, model, compute, std::move(options)).status();
  }

 private:
  ModelBuilder builder_;

 public:
  Model model;
  ComputeTable compute;
  ParameterId w;
  TensorId x, y, branch, loss;
  CallId make_call, branch_call, join_call;
};

}  // namespace reprise::testing

#endif  // REPRISE_TESTS_GRAPH_RESIDUAL_MODEL_H_
