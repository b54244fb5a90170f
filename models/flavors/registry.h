// The registry of flavours, which a TOML file names by model.name and model.flavor. [model.args] overrides
// their dimensions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/args/model_args.h"

namespace hyperion::models {

// The flavour whose dimensions all come from overrides (trainer/hugging_face/hf_model.h).
constexpr const char* kFlavorFromHf = "from_hf";

// ResumeCheck says how a resume detects that a dimension has changed (overrides.def).
enum class ResumeCheck { kSetting, kShape, kNone };

// The overrides of a flavour's dimensions. An unset field keeps the flavour's value.
struct ModelOverrides {
#define OVERRIDE(type, key, ...) std::optional<type> key{};
#include "models/flavors/overrides.def"
};

// Calls visit(key of [model.args], ModelPart, ResumeCheck, member of ModelOverrides, member) for each
// dimension of a model, where member(args) is a reference to the dimension in a ModelArgs. The rules for
// hidden_dim are not dimensions.
template <typename Visit>
void for_each_dimension(const Visit& visit) {
#define OVERRIDE(type, key, path, part, resume, ...)                    \
  visit(                                                                \
      #key, ModelPart::part, ResumeCheck::resume, &ModelOverrides::key, \
      [](auto& args) -> auto& { return args.path; });
#define WIDTH_RULE(...)
#include "models/flavors/overrides.def"
}

// Returns the dimensions of a flavour with overrides applied. If dim or n_heads is overridden without
// head_dim, head_dim stays dim / n_heads if it is so in the flavour. multiple_of and ffn_dim_multiplier
// recompute hidden_dim by Llama's rule. Throws Error(kUsage) for an unknown name, with the known names, and
// for inconsistent dimensions unless `any_dimensions`.
ModelArgs model_args(std::string_view name, std::string_view flavor, const ModelOverrides& overrides = {},
                     bool any_dimensions = false);

// Returns what is wrong with the dimensions; empty if they define a model.
std::vector<DimensionProblem> dimension_problems(const ModelArgs& args);

std::vector<std::string> model_names();
// Returns the flavours from the smallest to the largest; kFlavorFromHf, which has no size, is the last.
std::vector<std::string> model_flavors(std::string_view name);
// Suggests a flavour for an unknown one: the nearest size (8B for "7B"), else the nearest name; "" if there
// is none.
std::string nearest_flavor(std::string_view name, std::string_view flavor);

}  // namespace hyperion::models
