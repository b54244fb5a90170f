// Maps our parameters to the names and row orders of Hugging Face's checkpoints of llama, qwen2, qwen3,
// qwen3_moe, deepseek_v3, llama4_text, mistral and gpt_oss models.
//
// Hugging Face's RoPE rotates elements (j, j + head_dim/2) of a head, our llama3 rotates (2j, 2j + 1), so the
// rows of wq and wk have different orders. Within each head, our row 2j + p is their row p * head_dim/2 + j.
// DeepSeek's and Llama 4's files rotate neighbours, as ours do.
//
// We stack the experts of a block in three tensors. qwen3_moe and deepseek_v3 store each expert's matrix as a
// separate tensor; llama4 stores stacks of transposed matrices, with w1 and w3 next to each other, and
// gpt_oss such stacks in bf16 files. In its MXFP4 files the matrices are not transposed, and their names end
// in kFloat4Suffix.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/types/stored_part.h"
#include "models/args/model_args.h"
#include "models/description.h"

namespace hyperion::hugging_face {

// The place in Hugging Face's files of one of our parameters, or of one matrix of a stack.
struct HfTensor {
  std::string name;
  int64_t head_dim = 0;  // above 0: rows are reordered within heads of this size
  checkpoint::StoredPart part{};
  bool operator==(const HfTensor&) const = default;
};

// Maps "layers.3.attention.wq.weight" to "model.layers.3.self_attn.q_proj.weight", and a stack of experts to
// each of its matrices. Returns none if Hugging Face's model lacks the parameter: expert_bias except for
// deepseek_v3. Takes names of parameters, not the second name of a tied table, which Hugging Face does not
// store. Throws Error(kBug) for other names.
std::vector<HfTensor> hf_tensors(const models::ModelArgs& args, std::string_view fqn);

// Returns the name in its block of a parameter that Hugging Face's model lacks; "" if it has them all.
std::string without_hf_tensor(const models::ModelDescription& model);

// The block scales of an fp8 tensor have the tensor's name with this suffix.
inline constexpr std::string_view kScaleSuffix = "_scale_inv";
// A stack of matrices in MXFP4 is two tensors: uint8 [matrices, rows, columns / 32, 16], two numbers per
// byte, and uint8 [matrices, rows, columns / 32], a scale for each 32 numbers.
inline constexpr std::string_view kFloat4Suffix = "_blocks", kFloat4ScaleSuffix = "_scales";

// Returns whether a Hugging Face checkpoint may hold the tensor although we have no such parameter: rotary
// frequencies of old files, and DeepSeek-V3's block for multi-token prediction.
bool hf_may_ignore(const models::ModelArgs& args, std::string_view name);

// Returns whether Hugging Face keeps a parameter in fp32 for every dtype of the model.
bool hf_keeps_float32(std::string_view fqn);

int64_t hf_row(const HfTensor& tensor, int64_t our_row);
int64_t our_row(const HfTensor& tensor, int64_t hf_row);

}  // namespace hyperion::hugging_face
