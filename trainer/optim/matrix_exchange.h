// Brings the shards of matrices to their owners, and the owners' results back to the shards, by all-to-alls:
// first among the ranks that shard a tensor parallel part, then among the tensor parallel ranks.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "trainer/optim/exchange_layout.h"
#include "trainer/optim/matrix_plan.h"

namespace hyperion::optim {

// The process groups whose ranks share matrices. Null: one rank.
struct MatrixGroups {
  parallel::Communicator *shard = nullptr, *tensor = nullptr;
};

class MatrixExchange {
 public:
  // `matrices` are of `parameters` and have owners. Buffers are in `dtype` on the parameters' device.
  MatrixExchange(std::vector<Matrix> matrices, const std::vector<parallel::ShardedParameterPtr>& parameters,
                 const MatrixGroups& groups, at::ScalarType dtype);

  const std::vector<Matrix>& matrices() const { return matrices_; }
  // Returns the bytes of the buffers, which live as long as the exchange.
  int64_t buffer_bytes() const;

  // Starts to send this rank's shards of `values`, by parameter, flat, in any float dtype. Collective, as are
  // the others.
  void start(const std::vector<at::Tensor>& values);
  // Returns the matrices that this rank owns, in order, whole: [rows, columns].
  std::vector<at::Tensor> gathered();
  // Starts to send back `results`, of the same order and shapes.
  void start_back(const std::vector<at::Tensor>& results);
  // A flat range of a parameter's shard and the result's values for it.
  struct Piece {
    size_t matrix;
    Range range;  // of the shard
    at::Tensor values;
  };
  std::vector<Piece> returned();

 private:
  // One all-to-all of a group.
  struct Stage : StageLayout {
    parallel::Communicator* group = nullptr;  // null: what is sent is what is received
    at::Tensor send_buffer, receive_buffer;
    Pending pending;

    void start();
    void start_back();
  };
  // A matrix that this rank owns, with the segments of parts_.in.
  struct Owned {
    size_t matrix;
    std::vector<std::pair<Segment, const MatrixPart*>> parts{};
    bool by_columns;  // the parts lie side by side
  };

  std::vector<Matrix> matrices_;
  std::vector<Owned> owned_;
  std::vector<std::vector<Segment>> pieces_;  // for each of parts_.out, the segments of shards_.in
  Stage shards_, parts_;
};

}  // namespace hyperion::optim
