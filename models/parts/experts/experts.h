// Experts are the routed experts of a block. Each computes w2(activation(w1 x) * w3 x) for the rows that are
// routed to it. The matrices of all experts are stacks: w1, w2 and w3 are one parameter each. w1 and w3 are
// one product where their owner has laid them side by side (Parameter::pack). gpt_oss's compute
// w2(clamped_gate(w1 x + b1)) + b2 instead (ExpertStacks).
//
// Two autograd nodes surround the activation. They gather and sum rows of tokens themselves and keep no
// tensor of [rows, dim]: backward gathers again, which is cheaper than keeping top_k copies of a token.
//
// Expert tensor parallel (ETP) ranks shard the hidden width: each gets all tokens and computes a partial sum.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"
#include "models/args/model_args.h"
#include "models/layers/block_run.h"
#include "models/layers/parallel_dims.h"
#include "models/parts/experts/exchange/dispatch.h"
#include "models/parts/experts/exchange/expert_exchange.h"
#include "models/parts/experts/products/expert_products.h"
#include "models/parts/part_parameters.h"

namespace hyperion::models {

class Experts {
 public:
  // An expert parallel group shards the experts.
  Experts(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims);

  // Returns for each token of x [tokens, dim] the weighted sum of its experts' outputs, plus `shared`
  // [tokens, dim] if defined: [tokens, dim]. weights: [tokens, k], fp32 (fp64). The sum is in fp32 in the
  // order of the assignments, rounded once. A recomputation leaves its elements undefined. The gradient of an
  // expert without rows is zero. Without an EP group.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& shared,
                     const KeptRouting& routing, const BlockRun& run) const;
  // Does the same with an EP group, in two parts: send() starts the exchange of the rows of x, which work
  // before forward() hides. counts: see DispatchExchange.
  DispatchExchange send(const at::Tensor& x, const at::Tensor& weights, KeptRouting& routing,
                        std::optional<CountsExchange> counts, const BlockRun& run,
                        const NodeLevel& level = {}) const;
  at::Tensor forward(DispatchExchange rows, const at::Tensor& weights, const at::Tensor& shared,
                     const BlockRun& run) const;

  // Returns the multiple to which groups of rows like those of `x` are padded: for experts that are
  // multiplied in one launch, or in FP8. nullopt: groups are not padded.
  std::optional<int64_t> unit_of_rows(const at::Tensor& x) const;

  // Switches to FP8. Call it before the first forward.
  void set_float8(std::shared_ptr<const float8::GroupedMatmuls> float8);

  // Returns w1, w2 and w3, or w1, w2, b1 and b2.
  std::vector<ParameterPtr> parameters() const;

 private:
  // The part of forward() between the exchanges of a slice.
  at::Tensor forward_received(const at::Tensor& rows, const KeptRouting& routing, size_t slice,
                              const BlockRun& run, bool computes) const;
  // The part of forward() on local experts. x has the rows of these experts, or all tokens without an EP
  // group.
  at::Tensor forward_local(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& shared,
                           const std::shared_ptr<const Dispatch>& dispatch, const BlockRun& run,
                           bool computes) const;

  Exchange* ep_group_;   // rows travel between its ranks; null: all experts are local
  Exchange* etp_group_;  // shards the hidden width of each expert; null: not sharded
  ExpertProducts products_{};
  Activation activation_;
  bool score_before_;  // whether rows are multiplied by their weights before the experts, or after
  ExpertStacks stacks_;
};

}  // namespace hyperion::models
