// MatrixPlan lists the matrices that an optimizer updates, the part of each that a rank holds, and the rank
// that computes each update: its owner. Pure; every rank computes the same plan.
//
// A parameter is one matrix, a stack of them (experts), or rows that are several (heads). Tensor parallel
// ranks cut its rows or columns; then the ranks of a shard group cut what is left into flat ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/box.h"
#include "base/parameter_description.h"

namespace hyperion::optim {

// The part of a matrix that one tensor parallel rank has: a box, which lies row by row from `offset` on in
// that rank's local tensor (LayerShard::local).
struct MatrixPart {
  Range rows{}, columns{};
  int64_t offset = 0;

  int64_t numel() const { return rows.count * columns.count; }
  Range elements() const { return {offset, numel()}; }
};

struct Matrix {
  size_t parameter = 0;  // index in the caller's list
  int64_t rows = 0, columns = 0;
  std::vector<MatrixPart> parts{};  // by tensor parallel rank; one if all of them hold the same matrix
  int shard_owner = 0;              // rank in the shard group
  int tensor_owner = 0;             // and in the tensor parallel group
};

// Returns the matrices of a parameter of two or three dimensions, without owners; of experts those of this
// rank's expert parallel part. `tensor_ranks` divide it if it has a cut for them (LayerShard::cuts).
std::vector<Matrix> matrices_of(const LayerShard& parameter, size_t index, int tensor_ranks);

// Gives every matrix an owner, the largest first to the rank with the least FLOPs so far. The most loaded
// rank has at most the mean and its largest matrix. `tensor_ranks`: those that can own a matrix with so many
// parts.
void choose_owners(std::vector<Matrix>& matrices, int shard_ranks, int64_t steps);

// Returns the FLOPs of each owner, [shard rank][tensor parallel rank]. A matrix that every tensor parallel
// rank has counts for each of them.
std::vector<double> loads_of_owners(const std::vector<Matrix>& matrices, int shard_ranks, int tensor_ranks,
                                    int64_t steps);

// Deals the matrices of each owner evenly into at most four exchanges, so that every exchange is as balanced
// as their sum: while one is under way, the matrices of the one before are multiplied.
std::vector<std::vector<Matrix>> deal_into_exchanges(std::vector<Matrix> matrices);

// Returns the common elements of two ranges; its count is 0 if there are none.
Range common(const Range& a, const Range& b);

}  // namespace hyperion::optim
