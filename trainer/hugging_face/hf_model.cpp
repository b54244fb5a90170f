#include "trainer/hugging_face/hf_model.h"

#include <algorithm>

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

// The registry knows no file and line.
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

// Each problem is one of the key that the job sets, or of the flavour.
void require_sound_dimensions(const config::ResolvedConfig& resolved) {
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
  for_each_hf_dimension<models::ModelArgs>(HfParts::of(args),
                                           [&](const std::string& key, auto override, auto dimension) {
                                             if (to.*override || (has_width_rule && key == "hidden_dim"))
                                               return;
                                             to.*override = args.*dimension;
                                             resolved.origins["model.args." + key] = file.string();
                                           });
}

}  // namespace

void resolve_hf_model(config::ResolvedConfig& resolved, const fs::path& base) {
  require_known_flavor(resolved);
  if (resolved.config.model.flavor == models::kFlavorFromHf) take_hf_dimensions(resolved, base);
  require_sound_dimensions(resolved);
}

ImportedSettings imported_settings(const config::JobConfig& config, const fs::path& base) {
  if (config.model.flavor != models::kFlavorFromHf) return {};
  return read_imported_settings(find_config(config, base).parent_path());
}

}  // namespace hyperion::hugging_face
