// The flavours a TOML file can name (model.name, model.flavor), and how [model.args] changes one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/args/model_args.h"

namespace hyperion::models {

// The flavour that has no dimensions but those that overrides give it (trainer/hugging_face/hf_model.h).
constexpr const char* kFlavorFromHf = "from_hf";

// A part of a model that has dimensions of its own.
enum class ModelPart {
  kModel,     // every model
  kTraining,  // every model: how it is trained, which no config.json says
  kRescaled,  // rescaled rotary frequencies, by either of the next two
  kScaling,   // Llama 3.1's rescaling
  kYarn,
  kYarnChoice,  // every model: whether it has YaRN, which latent attention alone may set
  kLatent,      // latent attention
  kExperts,
  kBalance,  // the balance of experts, which no config.json says
};
bool has_part(const ModelArgs& args, ModelPart part);

// How a resume notices another value of a dimension (overrides.def).
enum class ResumeCheck { kSetting, kShape, kNone };

// Changes to a flavour's dimensions; an unset field keeps the flavour's value.
struct ModelOverrides {
#define OVERRIDE(type, key, ...) std::optional<type> key{};
#include "models/flavors/overrides.def"
};

// Calls visit(key of [model.args], ModelPart, ResumeCheck, member of ModelOverrides, member of ModelArgs) for
// each dimension of a model; the rules for hidden_dim are none.
template <typename Visit>
void for_each_dimension(const Visit& visit) {
#define OVERRIDE(type, key, part, resume, ...) \
  visit(#key, ModelPart::part, ResumeCheck::resume, &ModelOverrides::key, &ModelArgs::key);
#define WIDTH_RULE(...)
#include "models/flavors/overrides.def"
}

// The dimensions of a named flavour with overrides applied. A new dim or n_heads without head_dim keeps
// head_dim = dim / n_heads where the flavour had it so; multiple_of or ffn_dim_multiplier recompute
// hidden_dim by Llama's rule. Throws Error(kUsage) for an unknown name (listing the known ones) and, unless
// `any_dimensions`, for dimensions that do not fit together.
ModelArgs model_args(std::string_view name, std::string_view flavor, const ModelOverrides& overrides = {},
                     bool any_dimensions = false);

// Why dimensions are none of a model. `keys`: the fields of ModelOverrides that decide it, the likeliest
// culprit first.
struct DimensionProblem {
  std::vector<std::string> keys;
  std::string text;  // "n_heads is 5, expected a multiple of n_kv_heads = 2"
};
std::vector<DimensionProblem> dimension_problems(const ModelArgs& args);

std::vector<std::string> model_names();
// From the smallest to the largest; kFlavorFromHf, which has no size, is the last.
std::vector<std::string> model_flavors(std::string_view name);
// The flavour that was meant by an unknown one: the nearest size ("7B": 8B), else the nearest name; "" for
// none.
std::string nearest_flavor(std::string_view name, std::string_view flavor);

}  // namespace hyperion::models
