// The model types of Hugging Face whose config.json is read and written, one row each. A row has what all
// models of the type share, which reading takes over and an export checks, and functions for the keys that no
// FIELD of config_keys.def describes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "models/args/model_args.h"

namespace hyperion::hugging_face {

// The layers that may have a sliding window.
enum class Windows {
  kNone,
  kAllLayers,
  kLastLayers,  // from AttentionArgs::window_first_layer on
  kPattern,     // all but every window_full_every-th one
};
// The biases that attention may have.
enum class Biases {
  kNone,
  kQkv,        // always of queries, keys and values, and never of the output
  kAllOrNone,  // of queries, keys, values and the output together
};
// The quantized weights of a type's files.
enum class Quantization {
  kFp8Blocks,  // fp8 with a scale for each 128 x 128 block
  kMxfp4,
};

// The routers and experts of all models of a type. A member without a value may differ.
struct ExpertRules {
  bool are_present = false;
  models::ScoreFunction score_func = models::ScoreFunction::kSoftmax;
  bool score_before_experts = false;
  std::optional<bool> route_norm{};
  std::optional<int64_t> shared_experts = 0;  // nullopt: one or more
  bool may_group = false;        // groups of experts, and a factor on the weights of a token's experts
  bool may_begin_dense = false;  // the first layers have no experts
  bool may_alternate = false;    // only every moe_every-th layer has experts
  bool clamped = false, router_bias = false;
  bool balance_bias = false;  // transformers has ExpertBalance::bias
  bool router_loss = false;   // transformers computes router_aux_loss_coef as this program does
};

struct ModelType {
  std::string_view name;          // model_type of config.json
  std::string_view architecture;  // transformers' class
  std::string_view family;        // ModelArgs::family
  void (*read)(const JsonNode& config, models::ModelArgs& args);
  void (*write)(const models::ModelArgs& args, nlohmann::json& config);

  // The values of keys that a config.json leaves out.
  std::optional<int64_t> head_dim = 0;  // 0: hidden_size / num_attention_heads; nullopt: read() reads it
  int64_t n_kv_heads = 0;               // 0: num_attention_heads
  double rope_theta = 1e4;              // inside and outside of the RoPE parameters
  bool flavor_rope = false;             // RoPE parameters are those of the family's flavours
  bool attention_biases = false;        // attention_bias

  bool latent = false;
  bool qk_norm = false;
  bool sinks = false;
  Biases biases = Biases::kAllOrNone;
  std::string_view why_no_bias{};  // if attention_bias = true is refused: the reason
  Windows windows = Windows::kNone;
  bool heads_divide_width = false;  // transformers refuses num_attention_heads that do not divide hidden_size
  models::RopeStyle rope_style = models::RopeStyle::kInterleaved;
  bool reorders_heads = false;         // the files rotate halves of heads where rope_style rotates neighbours
  bool may_equal_frequencies = false;  // low_freq_factor may equal high_freq_factor
  bool next_token_block = false;       // the files may have a block for multi-token prediction
  Quantization quantization = Quantization::kFp8Blocks;  // the only one that is read
  ExpertRules experts{};
};

std::span<const ModelType> model_types();
// Returns the row of a model. If its family has none with experts, or none without, returns the other one.
const ModelType& model_type_of(const models::ModelArgs& args);

// Returns the entries of layer_types.
std::vector<std::string> layer_types(const models::ModelArgs& args);

}  // namespace hyperion::hugging_face
