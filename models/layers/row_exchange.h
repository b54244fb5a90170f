// How linear layers exchange the rows that they multiply over the ranks of a tensor parallel group
// (Linear::ranks, T of them): gathered before their products, or added up and scattered after them.
//
// Each rank has its part of every sequence and its part of every weight. Gathered rows lie rank by rank:
// those of all ranks are [T, batch, seq / T, n], flattened to [T * batch * seq / T, n].
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

// Tokens [batch, seq] in the order of gathered rows -> 1-D.
at::Tensor in_rank_order(const at::Tensor& tokens, int64_t ranks);

enum class Gather {
  kNone,     // one rank has all rows
  kWhole,    // one all-gather before the products
  kChunked,  // a rank's rows at a time, each under the products of another rank's
};

// What rows are to the layers that multiply them; in FP8 it decides the format.
enum class Role { kInput, kGradient };

// kChunked for chunked layers, but not where FP8 layers with one scale per tensor share their input with
// others: each of those casts the gathered rows as one tensor.
Gather gather_of(const std::vector<const Linear*>& layers, Role role);

// Rows that some layers multiply, of all ranks.
class GatheredRows {
 public:
  // shard [..., n], this rank's tokens. A whole gather starts here. Where all `layers` multiply in FP8 with
  // one scale per tensor, the scale is that of all ranks' rows and FP8 bytes travel; otherwise the compute
  // dtype does.
  GatheredRows(const at::Tensor& shard, const std::vector<const Linear*>& layers, Role role, Gather how);
  // Rows that are there already.
  explicit GatheredRows(Operand rows) : rows_(std::move(rows)), how_(Gather::kNone) {}

  // They may still be on their way.
  Operand& operand() { return rows_; }
  // Once they are there; chunks are after multiply() alone.
  Operand& wait() {
    pending_.wait();
    return rows_;
  }

  // The results of product(i, rows), [rows, n_i], with all rows, for i < count: in order, or for chunks with
  // each rank's rows as soon as they are there.
  std::vector<at::Tensor> multiply(size_t count, const std::function<at::Tensor(size_t, Operand&)>& product);

 private:
  Operand rows_;
  Gather how_;
  Exchange* ranks_ = nullptr;
  at::Tensor own_, all_;  // as they travel; alive while the exchange has them
  Pending pending_;
};

// The sum over the ranks of rows [T * tokens, n]: this rank's [tokens, n] of it. Started by the constructor;
// what it was given must stay as it is until wait().
class ScatteredSum {
 public:
  ScatteredSum(const at::Tensor& rows, Exchange* ranks);  // null: the rows themselves
  // Of product(operands), whose operands have the rows of all ranks. A chunked layer's products are of a
  // rank's rows at a time, and are on their way under the next one.
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
