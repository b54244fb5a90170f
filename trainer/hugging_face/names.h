// Names and orders of the same weights in Hugging Face's checkpoints of llama, qwen3, qwen3_moe, deepseek_v3
// and llama4_text models.
//
// Hugging Face rotates elements (j, j + head_dim/2) of a head, llama3 here (2j, 2j + 1): the rows of wq and
// wk are in another order there. Head by head, our row 2j + p is row p * head_dim/2 + j of theirs. DeepSeek's
// and Llama 4's files rotate neighbours, as here.
//
// The experts of a block are three stacks here. qwen3_moe and deepseek_v3 store each matrix as a tensor of
// its own; llama4 stores stacks of the transposed matrices, those of w1 and w3 next to each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/types/stored_part.h"
#include "models/args/model_args.h"

namespace hyperion::hugging_face {

// Where Hugging Face stores one of our parameters, or a matrix of one.
struct HfTensor {
  std::string name;
  int64_t head_dim = 0;  // above 0: rows are reordered in heads of this many
  checkpoint::StoredPart part{};
  bool operator==(const HfTensor&) const = default;
};

// "layers.3.attention.wq.weight" -> "model.layers.3.self_attn.q_proj.weight"; of a stack of experts each
// matrix. None for what Hugging Face's model does not have: expert_bias, but for deepseek_v3. For parameters,
// not for the second name of a tied table, which Hugging Face does not store. Throws Error(kBug) for other
// names.
std::vector<HfTensor> hf_tensors(const models::ModelArgs& args, std::string_view fqn);

// What follows the name of an fp8 tensor in that of its block scales.
inline constexpr std::string_view kScaleSuffix = "_scale_inv";

// Tensors that a Hugging Face checkpoint may hold without a parameter of ours: the rotary frequencies of old
// files, and the block by which DeepSeek-V3 predicts a second token.
bool hf_may_ignore(const models::ModelArgs& args, std::string_view name);

// Whether Hugging Face keeps a parameter in fp32 whatever type the model has.
bool hf_keeps_float32(std::string_view fqn);

int64_t hf_row(const HfTensor& tensor, int64_t our_row);
int64_t our_row(const HfTensor& tensor, int64_t hf_row);

}  // namespace hyperion::hugging_face
