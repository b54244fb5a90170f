// The differentiable nodes of linear layers and of the embedding, whole on one rank or divided over the ranks
// of a tensor parallel group (Linear::ranks, size T). column_linear.h and row_linear.h have the nodes of
// layers, linear_node.h what these share.
//
// Without a group x is [..., in] and a result [..., out]. With one, a rank has its part of every weight and,
// between nodes that gather and nodes that scatter, of all tokens: a column node takes this rank's part of
// every sequence, [batch, seq / T, in], and gives rows that lie rank by rank, [T, batch, seq / T, part of
// out]; a row node takes such rows and gives [batch, seq / T, out]. Every rank of the group must run the same
// nodes in the same order, backward too.
//
// Gradients of weights are those of this rank's part. Each sum over ranks is rounded once, to the compute
// dtype.
//
// Layers in pieces (Linear::in_pieces) multiply rank by rank while rows of another rank travel: a column
// node's input, the gradient of a row node's result, and the products whose sum is scattered
// (models/products_in_pieces.h). The same bytes travel, and the same is kept and saved. Two gathers stay one
// operation: one that only backward needs, of an input whose results were all saved, and one for FP8 layers
// with one scale per tensor beside others, each of which casts the gathered rows as a whole.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "base/parameter.h"
#include "models/linear.h"

namespace hyperion::models {

// What a node's layers multiply, of all ranks: started by the constructor.
class GatheredRows {
 public:
  // What the rows are to the layers; in FP8 it decides the format.
  enum class Role { kInput, kGradient };

  // shard [..., n], this rank's tokens -> [T * tokens, n], rank by rank; without a group the rows of `shard`.
  // Where all `layers` multiply in FP8 with one scale per tensor, the scale is that of all ranks' rows and
  // FP8 bytes travel; otherwise the compute dtype does.
  GatheredRows(const at::Tensor& shard, const std::vector<const Linear*>& layers, Role role);
  // In pieces: multiply(r, rows of rank r) is called for each rank, this one first; then all rows are there.
  GatheredRows(const at::Tensor& shard, const std::vector<const Linear*>& layers, Role role,
               const std::function<void(int rank, Operand& rows)>& multiply);
  explicit GatheredRows(Operand present) : rows_(std::move(present)) {}
  Operand& wait() {
    pending_.wait();
    return rows_;
  }

 private:
  void make_room(const std::vector<const Linear*>& layers, Role role);

  Operand rows_;
  at::Tensor own_, all_;  // as they travel; alive while the exchange has them
  Pending pending_;
};

// The sum over the ranks of rows [T * tokens, n] that lie rank by rank, this rank's [tokens, n] of it:
// started by the constructor. The rows must stay as they are until wait().
class ScatteredRows {
 public:
  ScatteredRows(const at::Tensor& rows, Exchange& ranks);
  const at::Tensor& wait() {
    pending_.wait();
    return sum_;
  }

 private:
  at::Tensor partial_, sum_;
  Pending pending_;
};

// As how many branches (ops::SumAndNorm) the layers of a column node read the norm x: each layer its own
// where a GPU's kernel then adds up their gradients, else one for all.
int64_t branches_of_input(const std::vector<const Linear*>& layers, const at::Tensor& x);

// Rows of the table for tokens int64 [batch, seq], the same on all ranks -> this rank's part of every
// sequence, [batch, seq / T, dim]. table: this rank's part of the vocabulary.
at::Tensor embedding_over_ranks(const at::Tensor& tokens, const Parameter& table, Exchange& ranks);

// Tokens [batch, seq] in the order of gathered rows -> 1-D.
at::Tensor in_rank_order(const at::Tensor& tokens, int64_t ranks);

}  // namespace hyperion::models
