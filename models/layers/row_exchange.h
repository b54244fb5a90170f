// The collectives of linear layers over a tensor parallel group of T ranks (Linear::tp_group()): an
// all-gather of rows before their products, or a reduce-scatter of rows after them.
//
// Each rank has its part of every sequence and its shard of every weight. Gathered rows are in rank order:
// [T, batch, seq / T, n], flattened to [T * batch * seq / T, n].
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "models/layers/linear.h"

namespace hyperion::models {

inline at::Tensor as_rows(const at::Tensor& x) {
  return x.flatten(0, -2);
}

// Reorders tokens [batch, seq] to the order of gathered rows -> 1-D.
at::Tensor in_rank_order(const at::Tensor& tokens, int64_t ranks);

enum class Gather {
  kNone,       // no group: this rank has all rows
  kAllGather,  // one all-gather before the products
  kChunked,    // the rows of one rank at a time, each in flight during the products of another rank's rows
};

// OperandKind says what the rows are in the layers' products, which decides their FP8 format.
enum class OperandKind { kInput, kGradient };

// Returns how these layers gather rows. Chunked layers use kChunked, unless FP8 layers with one scale per
// tensor share the rows with other layers: each of them casts the gathered rows as one tensor.
Gather gather_of(const std::vector<const Linear*>& layers, OperandKind kind);

// GatheredRows are the rows of all ranks, which some layers multiply.
class GatheredRows {
 public:
  // shard: [..., n], this rank's tokens. Starts the all-gather of kAllGather. If all `layers` multiply in FP8
  // with one scale per tensor, the scale covers the rows of all ranks and FP8 bytes travel; otherwise rows
  // travel in the compute dtype.
  GatheredRows(const at::Tensor& shard, const std::vector<const Linear*>& layers, OperandKind kind,
               Gather how);
  // Takes rows that need no gather.
  explicit GatheredRows(Operand rows) : rows_(std::move(rows)), how_(Gather::kNone) {}

  // The rows, which may still be in flight.
  Operand& operand() { return rows_; }
  // Waits for the rows. Chunks have arrived only after multiply().
  Operand& wait() {
    pending_.wait();
    return rows_;
  }

  // Returns product(i, rows), [rows, n_i], of all rows for each i < count. Chunked rows are multiplied rank
  // by rank, as soon as they arrive.
  std::vector<at::Tensor> multiply(size_t count, const std::function<at::Tensor(size_t, Operand&)>& product);

 private:
  Operand rows_;
  Gather how_;
  Exchange* tp_group_ = nullptr;
  at::Tensor shard_, gathered_;  // the buffers of the collective
  Pending pending_;
};

// ScatteredSum is a reduce-scatter of rows [T * tokens, n] to this rank's [tokens, n]. The constructor starts
// it. The rows must not be written until wait().
class ScatteredSum {
 public:
  ScatteredSum(const at::Tensor& rows, Exchange* tp_group);  // null: the sum is `rows`
  // Reduce-scatters product(operands), where the operands have the rows of all ranks. A chunked layer
  // multiplies the rows of one rank at a time, and each product is in flight during the next one.
  ScatteredSum(const Linear& layer, std::span<Operand> operands,
               const std::function<at::Tensor(std::span<Operand>)>& product);
  const at::Tensor& wait() {
    pending_.wait();
    return sum_;
  }

 private:
  at::Tensor partial_, sum_;
  Pending pending_;
};

}  // namespace hyperion::models
