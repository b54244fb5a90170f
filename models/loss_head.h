// The last unit of a model: final norm, head and cross-entropy.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/parallel_dims.h"

namespace hyperion::models {

class LossHead {
 public:
  // chunk_bytes bounds the logits held at once in the compute dtype, a chunk; 0 = 64 MiB on a CPU, 1 GiB on a
  // GPU, which adds each chunk's gradient to the head's; there 256 divides its rows. (A head that couples
  // rows takes all at once.) With a tensor parallel group logits are those of this rank's part of the
  // vocabulary, and two chunks of half the size are alive: one's statistics are exchanged while the next
  // one's are computed. Without loss parallel they are of the whole vocabulary, and there are up to two
  // copies of them.
  LossHead(Norm norm, ParameterPtr output, int64_t chunk_bytes, const ParallelDims& dims = {});

  // Cross-entropy of x [batch, seq, dim] against labels int64 [batch, seq] (-100 = ignored), summed: fp32
  // scalar (fp64 for an fp64 model), of all tokens and with the same bits on every rank of a tensor parallel
  // group. No gradients.
  at::Tensor loss_sum(const at::Tensor& x, const at::Tensor& labels) const;

  struct LossAndGrad {
    at::Tensor loss_sum;  // unscaled
    at::Tensor grad_x;    // gradient of scale * loss_sum
  };
  // Loss and gradient in one go, chunk by chunk: each chunk's logits turn into their own gradient in place,
  // so logits never exist whole in fp32. Adds the gradients of scale * loss_sum to the weights' .grad().
  // `scale`: 0-dim tensor.
  LossAndGrad loss_and_grad(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& scale) const;

  // x [batch, seq, dim] -> logits [batch, seq, vocab] in the compute dtype. No gradients. Not with a tensor
  // parallel group: Error(kBug).
  at::Tensor logits(const at::Tensor& x) const;

  Linear& output() { return output_; }

 private:
  struct Chunk;
  struct Rows;
  int64_t rows_per_chunk(const Rows& rows) const;
  Chunk start_chunk(Rows& rows, int64_t first, int64_t count) const;
  at::Tensor finish_chunk(Chunk& chunk, const at::Tensor* scale) const;
  template <typename EachChunk>
  at::Tensor add_up_loss(Rows& rows, const at::Tensor* scale, const EachChunk& each) const;

  int64_t chunk_bytes_;
  Norm norm_;
  Linear output_;
  bool loss_parallel_;
};

}  // namespace hyperion::models
