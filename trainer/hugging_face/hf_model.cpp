#include "trainer/hugging_face/hf_model.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files.h"
#include "base/nearest.h"
#include "models/flavors/registry.h"
#include "trainer/config/input_path.h"
#include "trainer/config/schema.h"
#include "trainer/config/suggest.h"
#include "trainer/config/validate.h"
#include "trainer/hugging_face/config.h"

namespace hyperion::hugging_face {
namespace fs = std::filesystem;
namespace {

using models::ModelPart;

fs::path find_config(const config::JobConfig& config, const fs::path& base) {
  std::string looked_in;
  for (const std::string& folder :
       {config.checkpoint.initial_load_path.value_or(""), config.model.hf_assets_path}) {
    if (folder.empty()) continue;
    const fs::path file = config::resolve_input(folder, base) / "config.json";
    if (name_exists(file, ExitCode::kUsage)) return file;
    looked_in += (looked_in.empty() ? "" : " nor in ") + folder;
  }
  throw_config(
      "model.flavor = \"from_hf\": no config.json in {}; set checkpoint.initial_load_path or "
      "model.hf_assets_path to the model's folder",
      looked_in);
}

// Refuses an unknown flavour with the file and line of its key, which the registry does not know.
void require_known_flavor(const config::ResolvedConfig& resolved) {
  const config::JobConfig::Model& model = resolved.config.model;
  const std::vector<std::string> known = models::model_flavors(model.name);
  if (std::find(known.begin(), known.end(), model.flavor) != known.end()) return;
  const std::string unavailable = config::unavailable_word("model.flavor", model.flavor);
  config::Problems problems;
  problems.add(
      resolved, "model.flavor",
      fmt::format("{}; known: {}{}",
                  unavailable.empty() ? fmt::format("{} has no such flavour", model.name) : unavailable,
                  fmt::join(known, ", "),
                  unavailable.empty() ? did_you_mean(models::nearest_flavor(model.name, model.flavor)) : ""));
  problems.throw_if_any("The configuration cannot be run");
}

// Returns why a key of [model.args] has no effect in the model, with the remedy; "" if it has one.
std::string why_without_effect(const models::ModelArgs& args, std::string_view key, ModelPart part) {
  const bool latent = models::has_part(args, ModelPart::kLatent), yarn = args.rope.yarn;
  if (latent && (key == "head_dim" || key == "qk_norm"))
    return fmt::format("no effect with latent attention{}; leave it out",
                       key == "qk_norm" ? ", whose queries and keys have norms of their latents"
                                        : ", whose heads have qk_nope_head_dim + qk_rope_head_dim elements");
  if (latent && (key == "qkv_bias" || key == "output_bias"))
    return "no effect with latent attention, which has no biases; leave it out";
  if (models::has_part(args, ModelPart::kExperts) && key == "limited_groups" &&
      args.experts.expert_groups == 0)
    return "no effect without groups of experts; leave it out, or set expert_groups";
  const models::PartSwitch of_part = models::switch_of(part);
  if (key == of_part.key) return "";
  if (part == ModelPart::kScaling && yarn)
    return "no effect with YaRN; leave it out, or set rope_yarn = false";
  if (models::has_part(args, part)) return "";
  if (latent && part == ModelPart::kPlainYarn) return "no effect with latent attention; leave it out";
  return fmt::format("no effect without {}; leave it out, or set {}", of_part.part, of_part.key);
}

// Refuses keys without effect that the job sets to a value other than the flavour's.
void refuse_options_without_effect(const config::ResolvedConfig& resolved,
                                   const std::map<std::string, std::string>& set,
                                   config::Problems& problems) {
  const config::JobConfig::Model& model = resolved.config.model;
  const models::ModelArgs args = config::model_args(model, /*any_dimensions=*/true),
                          flavor = models::model_args(model.name, model.flavor, {}, true);
  const auto check = [&](const std::string& key, ModelPart part, bool differs) {
    if (!differs || !set.contains("model.args." + key)) return;
    if (key == "head_dim" && model.args.head_dim == args.attention.head_dim) return;  // what it is anyway
    const std::string why = why_without_effect(args, key, part);
    if (!why.empty()) problems.add(resolved, "model.args." + key, why);
  };
  models::for_each_dimension(
      [&](const char* key, ModelPart part, models::ResumeCheck, auto change, auto member) {
        check(key, part, (model.args.*change).value_or(member(flavor)) != member(flavor));
      });
}

// Reports each problem under a key that the job sets (`set`, which excludes keys read from config.json), or
// under the flavour.
void require_sound_dimensions(const config::ResolvedConfig& resolved,
                              const std::map<std::string, std::string>& set) {
  config::Problems problems;
  for (const models::DimensionProblem& problem :
       models::dimension_problems(config::model_args(resolved.config.model, /*any_dimensions=*/true))) {
    std::string set_key, text = problem.text;
    std::vector<std::string> inherited;
    for (const std::string& key : problem.keys) {
      const bool set = resolved.origins.contains("model.args." + key);
      if (!set) inherited.push_back(key);
      if (set && set_key.empty()) set_key = "model.args." + key;
    }
    if (!set_key.empty() && !inherited.empty())
      text += fmt::format("; model.flavor = \"{}\" gives {}, which model.args can set too",
                          resolved.config.model.flavor, fmt::join(inherited, " and "));
    problems.add(resolved, set_key.empty() ? "model.flavor" : set_key, text);
  }
  refuse_options_without_effect(resolved, set, problems);
  problems.throw_if_any("The configuration cannot be run");
}

void take_hf_dimensions(config::ResolvedConfig& resolved, const fs::path& base) {
  config::JobConfig::Model& model = resolved.config.model;
  const fs::path file = find_config(resolved.config, base);
  const models::ModelArgs args = read_hf_config(file);
  if (args.family != model.name)
    throw_config("model.name = \"{}\", but {} describes a {} model: set model.name = \"{}\"", model.name,
                 file.string(), args.family, args.family);
  models::ModelOverrides& to = model.args;
  const bool has_width_rule = to.multiple_of || to.ffn_dim_multiplier;
  models::for_each_dimension(
      [&](const std::string& key, ModelPart part, models::ResumeCheck, auto change, auto member) {
        if (!describes(args, part) || to.*change || (has_width_rule && key == "hidden_dim")) return;
        to.*change = member(args);
        resolved.origins["model.args." + key] = file.string();
      });
  if (const double coefficient = args.experts.losses.global; coefficient > 0 && !to.global_aux_loss_coeff) {
    to.global_aux_loss_coeff = coefficient;
    resolved.origins["model.args.global_aux_loss_coeff"] = file.string();
  }
}

}  // namespace

void resolve_hf_model(config::ResolvedConfig& resolved, const fs::path& base) {
  require_known_flavor(resolved);
  const std::map<std::string, std::string> set = resolved.origins;
  if (resolved.config.model.flavor == models::kFlavorFromHf) take_hf_dimensions(resolved, base);
  require_sound_dimensions(resolved, set);
}

models::ModelOverrides dimensions_of(const config::JobConfig::Model& model) {
  const models::ModelArgs args = config::model_args(model, /*any_dimensions=*/true);
  models::ModelOverrides dimensions;
  models::for_each_dimension(
      [&](const char* key, ModelPart part, models::ResumeCheck, auto change, auto member) {
        if (why_without_effect(args, key, part).empty()) dimensions.*change = member(args);
      });
  return dimensions;
}

ImportedSettings imported_settings(const config::JobConfig& config, const fs::path& base) {
  if (config.model.flavor != models::kFlavorFromHf) return {};
  return read_imported_settings(find_config(config, base).parent_path());
}

}  // namespace hyperion::hugging_face
