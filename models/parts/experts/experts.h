// The experts of a block: for each one w2(activation(w1 x) * w3 x) of the rows that were sent to it. Their
// matrices are stacks, one parameter each for w1, w2 and w3. Two nodes, between which the activation is: each
// of them gathers rows of tokens or adds them up itself and keeps none of [rows, dim]: backward gathers them
// a second time, which is cheaper than holding top_k copies of a token.
//
// Tensor parallel ranks that divide experts divide their hidden width: each is given all tokens and has its
// part of the sum's terms.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"
#include "models/args/model_args.h"
#include "models/layers/block_run.h"
#include "models/layers/parallel_dims.h"
#include "models/parts/experts/dispatch.h"
#include "models/parts/experts/expert_products.h"
#include "models/parts/part_parameters.h"

namespace hyperion::models {

class Experts {
 public:
  // With an expert parallel group this rank has its part of them.
  Experts(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims);

  // x [tokens, dim]; weights [tokens, k] of each slot, in fp32 (fp64) -> the sum of each token's experts by
  // their weights, in fp32 in the order of the slots, plus `shared` [tokens, dim] where that is defined;
  // rounded once: [tokens, dim]. In a run that recomputes its elements are undefined. An expert without rows
  // has a gradient of zeros.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& shared,
                     const KeptRouting& routing, const BlockRun& run) const;

  // What groups of rows like those of `x` are padded to multiples of: where experts are multiplied in one
  // launch, or in FP8. None: they are not padded.
  std::optional<int64_t> unit_of_rows(const at::Tensor& x) const;

  // Multiplies in FP8 from now on. Before the first forward.
  void set_float8(std::shared_ptr<const float8::GroupedMatmuls> float8);

  std::vector<ParameterPtr> parameters() const { return {w1_, w2_, w3_}; }

 private:
  // The same of experts that are all here.
  at::Tensor of_all(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& shared,
                    const std::shared_ptr<const Dispatch>& dispatch, const BlockRun& run,
                    bool computes) const;

  Exchange* ranks_;        // null: every expert is here
  Exchange* width_ranks_;  // that divide the hidden width, where it is divided
  ExpertProducts products_{};
  Activation activation_;
  bool score_before_;          // rows are multiplied by their weights before the experts, else after
  ParameterPtr w1_, w2_, w3_;  // [experts, hidden, dim], [experts, dim, hidden], [experts, hidden, dim]
};

}  // namespace hyperion::models
