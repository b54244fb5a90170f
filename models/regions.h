// The ranks that share the work of one batch with this one. Without any (the default) every layer is whole on
// this rank.
//
// With a tensor parallel group of T ranks each of them is given the same whole microbatch, [batch, seq] with
// seq a multiple of T, and has its part of every sequence, [batch, seq / T, dim], between blocks. Gradients
// of parameters that all T ranks have (Parameter::split is unset: the norms, and those of queries and keys)
// are of this rank's tokens and heads alone: whoever runs the model adds them up over the group. All others
// are complete for this rank's part. The loss is the whole one on every rank.
#pragma once

#include "base/exchange.h"

namespace hyperion::models {

struct Regions {
  // Tensor parallelism: its ranks divide every matrix (Parameter::split) and, between matrices, the sequence.
  // Outlives the model; null: one rank.
  Exchange* tensor = nullptr;
  // Whether each rank computes the logits and the loss of its own part of the vocabulary; else logits are
  // gathered.
  bool loss_parallel = true;
  // Whether what the blocks exchange travels in as many pieces as there are ranks, each under the product of
  // another piece, instead of before or after one product (models/products_in_pieces.h): for GPUs. The bytes
  // are the same; results differ by the order of sums inside products and over ranks alone.
  bool in_pieces = false;
};

}  // namespace hyperion::models
