// ExchangeLayout says which elements of matrices a rank sends and receives on their way to owners, in the
// order of the buffers. Pure: the exchange runs by it (matrix_exchange.h), and estimates count by it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/optim/matrix_plan.h"

namespace hyperion::optim {

// A rank in its two groups: the ranks that shard a tensor parallel part, and the tensor parallel ranks.
struct ExchangeRank {
  int shard = 0, shards = 1;
  int tensor = 0, tensors = 1;
};

// A Segment is a range of a matrix that one rank sends another in one stage.
struct Segment {
  size_t matrix;
  int64_t begin = 0, count = 0;  // in the buffer
  Range source{};                // in the sender's shard (first stage)
};

// The layout of one all-to-all of a group. The way back has it reversed.
struct StageLayout {
  std::vector<int64_t> sent{}, received{};  // elements for and from each rank
  std::vector<Segment> out{}, in{};         // out: of this rank to others; in: from others, by rank

  int64_t elements_sent() const;
  int64_t elements_received() const;
  // Elements that leave this rank, `rank` of the group; the results that come back are as many.
  int64_t sent_to_others(int rank) const { return elements_sent() - sent.at(static_cast<size_t>(rank)); }
  int64_t received_from_others(int rank) const {
    return elements_received() - received.at(static_cast<size_t>(rank));
  }
};

struct ExchangeLayout {
  StageLayout shards{}, parts{};

  // Returns the elements of the send and receive buffers. A group of one rank receives what it sends.
  int64_t buffer_elements(const ExchangeRank& rank) const;
};

// Returns the layout of a rank. `matrices` have owners; `elements_of` returns the elements of a parameter's
// local tensor, flat, that a rank of the shard group holds, by Matrix::parameter and rank.
ExchangeLayout exchange_layout(const std::vector<Matrix>& matrices, const ExchangeRank& rank,
                               const std::function<Range(size_t, int)>& elements_of);

// Returns the part of a matrix that a tensor parallel rank has.
const MatrixPart& part_of_rank(const Matrix& matrix, int tensor_rank);

}  // namespace hyperion::optim
