#include "trainer/ckpt_command.h"

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/tools/tools.h"
#include "models/hugging_face.h"
#include "models/hugging_face_config.h"
#include "models/transformer.h"
#include "trainer/config/load.h"
#include "trainer/config/validate.h"
#include "trainer/data/tokenizer.h"
#include "trainer/data_setup.h"
#include "trainer/hf_model.h"
#include "trainer/model_source.h"
#include "trainer/options.h"
#include "trainer/runtime.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

// The model weights that a job of this configuration has.
NameList names_of(const std::string& toml) {
  ResolvedConfig resolved = load_config(toml, {});
  resolve_hf_model(resolved, install_root());
  NameList list{toml, {}};
  const ModelArgs args = model_args(resolved.config.model);
  require_memory(args, /*bytes_per_parameter=*/0, rank_memory(at::kCPU, 1));
  for (const ParameterPtr& parameter : Transformer(args).parameters()) {
    list.tensors.push_back({parameter->fqn, Dtype::kFloat32, parameter->shape});
    for (const std::string& alias : parameter->aliases)
      list.tensors.push_back({alias, Dtype::kFloat32, parameter->shape});
  }
  return list;
}

bool is_toml(const std::string& path) {
  return path.ends_with(".toml");
}

// Of one side of a comparison of names.
NameList names_at(const std::string& path) {
  if (is_toml(path)) return names_of(path);
  NameList stored = names_in(path);
  std::erase_if(stored.tensors,
                [](const NamedTensor& tensor) { return component_of(tensor.name) != "model"; });
  return stored;
}

ExitCode diff(const CommandLine::Ckpt& options) {
  if (is_toml(options.path) || is_toml(options.other))
    return diff_names(names_at(options.path), names_at(options.other), options.json, stdout);
  return diff_checkpoints({options.path, options.other, {}, options.json}, stdout);
}

// Which of our weights become which of Hugging Face's.
std::vector<ConvertedTensor> to_hugging_face(const ModelArgs& args) {
  std::vector<ConvertedTensor> tensors;
  for (const ParameterPtr& parameter : Transformer(args).parameters()) {
    const HfTensor stored = hf_tensor(args, parameter->fqn);
    ConvertedTensor tensor{parameter->fqn, stored.name};
    if (stored.head_dim > 0) tensor.row_map = [stored](int64_t row) { return our_row(stored, row); };
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<ConvertedTensor> from_hugging_face(const ModelArgs& args) {
  std::vector<ConvertedTensor> tensors;
  for (const ParameterPtr& parameter : Transformer(args).parameters()) {
    const HfTensor stored = hf_tensor(args, parameter->fqn);
    ConvertedTensor tensor{stored.name, parameter->fqn};
    if (stored.head_dim > 0) tensor.row_map = [stored](int64_t row) { return hf_row(stored, row); };
    tensors.push_back(tensor);
    for (const std::string& alias : parameter->aliases) {
      tensor.to = alias;
      tensors.push_back(tensor);
    }
  }
  return tensors;
}

// The tokenizer's files, so that the folder is a model that programs open by its name alone.
std::map<std::string, std::string> tokenizer_for(const CommandLine::Ckpt& options) {
  const std::string path = tokenizer_of(options.path, options.config);
  try {
    auto files = tokenizer_files(resolve_input(path, install_root()));
    if (!files.empty()) return files;
    log_warning("{}: there is no tokenizer: copy its files into {}", path, options.other);
  } catch (const Error& error) {
    log_warning("{}; copy the tokenizer's files into {}", error.what(), options.other);
  }
  return {};
}

ExitCode convert(const CommandLine::Ckpt& options) {
  ConvertOptions convert;
  convert.source = options.path;
  convert.destination = options.other;
  convert.format = options.to == "dcp" ? ConvertOptions::Format::kDcp : ConvertOptions::Format::kSafetensors;
  if (!options.dtype.empty()) convert.dtype = dtype_from_torch(options.dtype);
  convert.ema = options.ema;
  const bool from_dcp = fs::exists(fs::path(options.path) / ".metadata");
  const bool to_dcp = convert.format == ConvertOptions::Format::kDcp;
  if (from_dcp != to_dcp) {  // between our names and Hugging Face's
    const ModelArgs args = model_of(options.path, options.config);
    convert.tensors = [args, from_dcp](const auto&) {
      return from_dcp ? to_hugging_face(args) : from_hugging_face(args);
    };
    if (from_dcp) {
      convert.more_files = tokenizer_for(options);
      convert.more_files["config.json"] =
          hf_config(args, {.dtype = options.dtype.empty() ? "float32" : options.dtype});
    }
  } else if (!options.config.empty()) {
    throw_config("--config {}: has no use here: source and destination have the same names", options.config);
  }
  return convert_checkpoint(convert, stdout);
}

}  // namespace

ExitCode ckpt_command(const CommandLine::Ckpt& options) {
  using Tool = CommandLine::Ckpt::Tool;
  switch (options.tool) {
    case Tool::kLs:
      return list_checkpoints({options.path, options.json}, stdout);
    case Tool::kVerify:
      return verify_checkpoints({options.path, options.quick, options.json}, stdout);
    case Tool::kDigest:
      return print_digest({options.path, {.prefix = options.prefix}, options.json}, stdout);
    case Tool::kDiff:
      return diff(options);
    case Tool::kConvert:
      return convert(options);
    case Tool::kPrune:
      return prune_checkpoints({options.path, options.keep, options.dry_run}, stdout);
  }
  throw_bug("unknown checkpoint tool");
}

}  // namespace hyperion
