// LossHead is the last unit of a model: final norm, head and cross-entropy.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/parallel_dims.h"

namespace hyperion::models {

class LossHead {
 public:
  // The head computes logits in chunks of rows. chunk_bytes bounds the logits in memory, in the compute
  // dtype; 0 means 64 MiB on a CPU and 1 GiB on a GPU. A GPU's chunk has a multiple of 256 rows, unless fewer
  // fit. A head that couples rows (Linear::couples_rows()) takes all rows as one chunk.
  //
  // With loss parallel each tensor parallel rank computes the logits of its shard of the vocabulary, in
  // chunks of half the size: while the statistics of one chunk are exchanged, the next chunk is computed.
  // Without loss parallel logits are all-gathered over the vocabulary, and up to two copies exist.
  //
  // z_loss: the coefficient of the mean of (log-sum-exp of the logits)^2 in the loss, which only
  // loss_and_grad() computes.
  LossHead(Norm norm, ParameterPtr output, int64_t chunk_bytes, const ParallelDims& dims = {},
           double z_loss = 0);

  // Returns the summed cross-entropy of x [batch, seq, dim] against labels int64 [batch, seq] (-100 =
  // ignored): an fp32 scalar (fp64 for an fp64 model). It covers all tokens and has the same bits on every
  // tensor parallel rank. Computes no gradients.
  at::Tensor loss_sum(const at::Tensor& x, const at::Tensor& labels) const;

  struct LossAndGrad {
    at::Tensor loss_sum;    // unscaled, without the z-loss
    at::Tensor grad_x;      // the gradient of scale * (loss_sum + z_loss_sum)
    at::Tensor z_loss_sum;  // 0-dim, unscaled, with its coefficient; undefined without z-loss
  };
  // Computes loss and gradients chunk by chunk. Each chunk's gradient overwrites its logits, so the logits of
  // all rows never exist in fp32. Adds the gradients of the same sum to the weights' .grad(). `scale` is
  // 0-dim.
  LossAndGrad loss_and_grad(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& scale) const;

  // Returns the logits [batch, seq, vocab] of x [batch, seq, dim] in the compute dtype. Computes no
  // gradients. Throws Error(kBug) with a tensor parallel group.
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
  double z_loss_;
};

}  // namespace hyperion::models
