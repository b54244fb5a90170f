// Attention on a CPU by kernels of our own: blocked, with grouped queries and ranges of keys by query,
// for the instruction set of the processor (cpu_blocks.h). Its bits depend on the instruction set and
// the inputs, not on the number of threads.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::kernels::cpu {

enum class Instructions {
  kNone,        // what every processor of the architecture has
  kAvx2,        // and FMA
  kAvx512,      // F, CD, BW, DQ and VL
  kAvx512Bf16,  // and products of bf16; the others widen bf16 to fp32
};
// "none", "avx2", "avx512" or "avx512_bf16", as HYPERION_CPU_INSTRUCTIONS names them.
std::string_view text_of(Instructions instructions);
bool processor_has(Instructions instructions);

// The fastest that the processor has (processor::has_fast_bf16_pairs()), or what the environment variable
// HYPERION_CPU_INSTRUCTIONS names. Throws Error(kUsage) where that is no name, or the processor lacks it.
Instructions chosen_instructions();

// These do what those of models/kernels/attention/attention.h do, for the calls that AttentionKernel::kCpu
// serves. Results lie as [batch, seq, heads, head_dim].
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionMask& mask, Instructions instructions);
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionMask& mask,
                                      const AttentionResult& result, Instructions instructions);

}  // namespace hyperion::kernels::cpu
