#include "trainer/hugging_face/names.h"

#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "trainer/hugging_face/model_types.h"

namespace hyperion::hugging_face {
std::vector<HfTensor> hf_tensors(const models::ModelArgs& args, std::string_view fqn) {
  const std::optional<models::NamedShape> found = models::find_shape(args, fqn);
  if (!found) throw_bug("parameter \"{}\" has no name in Hugging Face's {}", fqn, args.family);
  const models::ParameterShape& shape = found->shape;
  const models::HuggingFaceTensor& theirs = shape.hugging_face;
  if (theirs.name.empty()) return {};
  std::string name = theirs.name;
  if (const size_t star = name.find('*'); star != name.npos) name.replace(star, 1, found->layer);
  if (theirs.fused_width > 0)
    return {{.name = name, .part = {.width = theirs.fused_width, .first = theirs.fused_first}}};
  if (const size_t number = name.find('#'); number != name.npos) {
    std::vector<HfTensor> matrices;
    for (int64_t expert = 0; expert < shape.dims[0]; ++expert)
      matrices.push_back(
          {.name = std::string(name).replace(number, 1, std::to_string(expert)), .part = {.matrix = expert}});
    return matrices;
  }
  const bool reordered =
      model_type_of(args).reorders_heads && args.rope.style == models::RopeStyle::kInterleaved;
  return {{.name = name, .head_dim = theirs.rotated && reordered ? args.attention.head_dim : 0}};
}

std::string without_hf_tensor(const models::ModelDescription& model) {
  for (const models::BlockDescription& kind : model.kinds) {
    std::string name;
    kind.for_each_parameter([&](const models::ParameterShape& shape) {
      if (shape.hugging_face.name.empty()) name = shape.name;
    });
    if (!name.empty()) return name;
  }
  return "";
}

bool hf_may_ignore(const models::ModelArgs& args, std::string_view name) {
  const bool next_token = model_type_of(args).next_token_block &&
                          name.starts_with(fmt::format("model.layers.{}.", args.n_layers));
  return next_token || name.ends_with(".rotary_emb.inv_freq");
}

bool hf_keeps_float32(std::string_view fqn) {
  return fqn.starts_with("layers.") && fqn.ends_with(".moe.expert_bias");
}

int64_t hf_row(const HfTensor& tensor, int64_t our_row) {
  if (tensor.head_dim == 0) return our_row;
  const int64_t in_head = our_row % tensor.head_dim;
  return our_row - in_head + in_head % 2 * (tensor.head_dim / 2) + in_head / 2;
}

int64_t our_row(const HfTensor& tensor, int64_t hf_row) {
  if (tensor.head_dim == 0) return hf_row;
  const int64_t in_head = hf_row % tensor.head_dim, half = tensor.head_dim / 2;
  return hf_row - in_head + 2 * (in_head % half) + in_head / half;
}

}  // namespace hyperion::hugging_face
