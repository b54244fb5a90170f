// Names and row orders of the same weights in Hugging Face's checkpoints of llama and qwen3 models.
//
// Hugging Face rotates elements (j, j + head_dim/2) of a head, llama3 here (2j, 2j + 1): the rows of wq and
// wk are in another order there. Head by head, our row 2j + p is row p * head_dim/2 + j of theirs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/flavors/model_args.h"

namespace hyperion::hugging_face {

// One of our parameters as Hugging Face stores it; shape and element order inside a row are the same.
struct HfTensor {
  std::string name;
  int64_t head_dim = 0;  // above 0: rows are reordered in heads of this many
  bool operator==(const HfTensor&) const = default;
};

// "layers.3.attention.wq.weight" -> "model.layers.3.self_attn.q_proj.weight". For parameters, not for the
// second name of a tied table, which Hugging Face does not store. Throws Error(kBug) for other names.
HfTensor hf_tensor(const models::ModelArgs& args, std::string_view fqn);

// The reverse: our name of Hugging Face's tensor, or nothing when the model has no such parameter.
std::optional<std::string> parameter_of_hf(const models::ModelArgs& args, std::string_view name);

// Tensors that a Hugging Face checkpoint may hold without a parameter of ours: the rotary frequencies of old
// files, and lm_head.weight of a tied model.
bool hf_may_ignore(const models::ModelArgs& args, std::string_view name);

int64_t hf_row(const HfTensor& tensor, int64_t our_row);
int64_t our_row(const HfTensor& tensor, int64_t hf_row);

}  // namespace hyperion::hugging_face
