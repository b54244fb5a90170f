// Runs experts on rows in chunks, so that a rank to which the router sends many rows holds the hidden rows of
// a few at a time: forward keeps the rows alone, and backward computes gate and up of a chunk again.
//
// Rows and their gradients have the bits that they have in one run, where a product of fewer rows has them,
// and so has wgrad of an expert in one chunk. A cut may divide an expert's rows: its wgrad is then a sum over
// chunks in fp32, rounded once, of terms in the compute dtype; FP8 scales the columns of each term alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"
#include "models/args/activation.h"
#include "models/parts/experts/exchange/dispatch.h"
#include "models/parts/experts/products/expert_products.h"

namespace hyperion::models {

// Returns whether a rank that received `received` rows runs them in chunks; `mean` is that of all ranks.
constexpr bool runs_in_chunks(int64_t received, int64_t mean) {
  return received > 2 * mean;
}

// Consecutive rows, and the experts that have some of them.
struct RowChunk {
  int64_t first_row, rows, first_expert, experts;
  bool divides_last;  // the last expert has rows in the next chunk
};
// ends: of the experts' groups, which are contiguous.
std::vector<RowChunk> cut_rows(const std::vector<int64_t>& ends, int64_t rows_of_chunk);

// Returns the experts' outputs for the rows of `x`, [rows, dim], each of which is one assignment. `ends`: of
// the dispatch's groups. Where groups are padded, the rows of a chunk are a multiple of the unit. A split
// backward does not defer the wgrads: it keeps those of the three stacks until its second half, instead of
// the rows.
at::Tensor experts_in_chunks(const at::Tensor& x, const ExpertStacks& stacks, const ExpertProducts& products,
                             Activation activation, const std::shared_ptr<const Dispatch>& dispatch,
                             std::vector<int64_t> ends, int64_t rows_of_chunk, bool computes);

}  // namespace hyperion::models
