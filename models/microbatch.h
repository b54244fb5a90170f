// What a model is run on.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::models {

// What every block of one microbatch shares.
struct SequenceContext {
  at::Tensor cos, sin;  // RoPE angles, fp32 [seq, pairs] or [batch, seq, pairs] of each head
  kernels::Documents documents;
  double attention_factor = 1;  // of the scores, in addition to 1/sqrt(head_dim)
};

// The context of packed documents from that of plain sequences of the same length. positions: int32 or int64
// [batch, seq] on the context's device, counted inside each document, which are `documents`.
SequenceContext inside_documents(const SequenceContext& plain, const at::Tensor& positions,
                                 const kernels::Documents& documents);

// One microbatch on the compute device.
struct Microbatch {
  at::Tensor tokens;  // int64 [batch, seq]
  at::Tensor labels;  // int64 [batch, seq], -100 = ignored; undefined on a rank without the head
  SequenceContext context;
};

}  // namespace hyperion::models
