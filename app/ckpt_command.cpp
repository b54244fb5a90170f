#include <algorithm>

#include "app/commands.h"
#include "app/model_source.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/printable.h"
#include "checkpoint/content_reader.h"
#include "checkpoint/storage/index_files.h"
#include "checkpoint/tools/folders.h"
#include "checkpoint/tools/tools.h"
#include "data/tokenizer/tokenizer.h"
#include "models/transformer.h"
#include "trainer/checkpointing/hugging_face_weights.h"
#include "trainer/checkpointing/stored_weights.h"
#include "trainer/config/input_path.h"
#include "trainer/config/load.h"
#include "trainer/config/validate.h"
#include "trainer/data/job_data.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/hf_model.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::app {
namespace fs = std::filesystem;
namespace {

// One side of a comparison.
struct DiffSide {
  checkpoint::NameList names;
  std::optional<checkpoint::OpenCheckpoint> stored{};  // of a checkpoint
  std::map<std::string, std::string> aliases{};        // of a job: second name -> first
};

// The model weights that a job of this configuration has.
DiffSide names_of_job(const fs::path& toml) {
  config::ResolvedConfig resolved = config::load_config(toml, {});
  hugging_face::resolve_hf_model(resolved, config::install_root());
  DiffSide side{{toml.string(), {}}};
  const models::ModelArgs args = config::model_args(resolved.config.model);
  trainer::require_memory(args, /*bytes_per_parameter=*/0, trainer::rank_memory(at::kCPU, 1));
  for (const ParameterPtr& parameter : checkpointing::saved_parameters(models::Transformer(args))) {
    const checkpoint::TensorRecord record{checkpoint::Dtype::kFloat32, parameter->shape, {}};
    side.names.tensors.emplace(parameter->fqn, record);
    for (const std::string& alias : parameter->aliases) {
      side.names.tensors.emplace(alias, record);
      side.aliases.emplace(alias, parameter->fqn);
    }
  }
  return side;
}

bool is_toml(const fs::path& path) {
  return path.native().ends_with(".toml");
}

DiffSide names_at(const fs::path& path) {
  if (is_toml(path)) return names_of_job(path);
  checkpoint::require_checkpoint(path);
  checkpoint::OpenCheckpoint opened = checkpoint::open_checkpoint(path);
  DiffSide side{{opened.folder.string(), opened.index.tensors}, std::move(opened)};
  std::erase_if(side.names.tensors, [](const auto& tensor) {
    return checkpoint::component_of(tensor.first) != checkpoint::kModelComponent;
  });
  return side;
}

// Takes second names out of a job's where the other side has another tensor under them.
void remove_unequal_aliases(DiffSide& job, const DiffSide& other) {
  for (const auto& [alias, name] : job.aliases) {
    const auto& tensors = other.names.tensors;
    const auto a = tensors.find(name), b = tensors.find(alias);
    if (a == tensors.end() || b == tensors.end() || other.aliases.contains(alias)) continue;
    const bool equal = other.stored && a->second.shape == b->second.shape &&
                       a->second.dtype == b->second.dtype &&
                       checkpoint::equal_in_box(*other.stored, name, a->second, alias, b->second,
                                                whole_box(a->second.shape));
    if (!equal) job.names.tensors.erase(alias);
  }
}

ExitCode diff_names(const fs::path& a, const fs::path& b, bool json) {
  DiffSide side_a = names_at(a), side_b = names_at(b);
  remove_unequal_aliases(side_a, side_b);
  remove_unequal_aliases(side_b, side_a);
  return checkpoint::diff_names(side_a.names, side_b.names, json, stdout);
}

// The names of a checkpoint's tensors -> their keys.
std::map<std::string, std::string> keys_of(const checkpoint::OpenCheckpoint& checkpoint) {
  std::map<std::string, std::string> keys;
  for (const auto& [key, record] : checkpoint.index.tensors) keys.emplace(key, key);
  return keys;
}

// Returns the weights of Hugging Face's format that ours become.
std::vector<checkpoint::ConvertedTensor> tensors_for_hugging_face(const models::ModelArgs& args,
                                                                  const checkpoint::OpenCheckpoint& source,
                                                                  bool ema) {
  checkpointing::require_complete_model(args, source, checkpointing::own_names(source, keys_of(source), ema));
  std::vector<checkpoint::ConvertedTensor> tensors;
  for (const ParameterPtr& parameter : checkpointing::saved_parameters(models::Transformer(args))) {
    const std::string& fqn = parameter->fqn;
    for (const hugging_face::HfTensor& stored : hugging_face::hf_tensors(args, fqn)) {
      checkpoint::RowMap rows;
      if (stored.head_dim > 0) rows = [stored](int64_t row) { return hugging_face::our_row(stored, row); };
      tensors.push_back({.from = fqn,
                         .to = stored.name,
                         .row_map = rows,
                         .part = stored.part,
                         .keeps_dtype = hugging_face::hf_keeps_float32(fqn),
                         .shape = parameter->shape});
    }
  }
  return tensors;
}

// The tensors to convert, with the Hugging Face tensors that they are read from.
std::vector<checkpoint::ConvertedTensor> tensors_of_hugging_face(const models::ModelArgs& args,
                                                                 const checkpoint::OpenCheckpoint& source) {
  const checkpoint::StoredNames names = checkpointing::hugging_face_names(args, keys_of(source), source);
  checkpointing::log_left_out(names, source.folder);
  checkpointing::require_complete_model(args, source, names);
  std::vector<checkpoint::ConvertedTensor> tensors;
  for (const ParameterPtr& parameter : checkpointing::saved_parameters(models::Transformer(args))) {
    const std::string& fqn = parameter->fqn;
    const auto key = names.keys.find(fqn);
    const auto replacement = names.records.find(fqn);
    std::vector<std::string> all = parameter->aliases;
    all.insert(all.begin(), fqn);
    for (const std::string& name : all)
      tensors.push_back(
          {.from = key != names.keys.end() ? key->second : hugging_face::hf_tensors(args, fqn).front().name,
           .to = name,
           .row_map = names.row_map(fqn),
           .record = replacement != names.records.end() ? replacement->second : nullptr,
           .keeps_dtype = hugging_face::hf_keeps_float32(fqn),
           .shape = parameter->shape});
  }
  return tensors;
}

// The tokenizer to export with the weights, so that other programs can open the folder; null, with a warning,
// when it is missing or not the one that the weights were trained with.
std::unique_ptr<data::Tokenizer> tokenizer_for(const checkpoint::ConvertOptions& convert,
                                               const ModelOrigin& origin, const fs::path& path) {
  try {
    if (!path_exists(path)) {
      log_warning("{}: its tokenizer, as {} names it, is not there: {}; copy the tokenizer's files into {}",
                  convert.source.string(), origin.tokenizer_by, printable(path),
                  convert.destination.string());
      return nullptr;
    }
    auto tokenizer = data::Tokenizer::load(path);
    const checkpointing::TokenizerRecord& stored = origin.record.tokenizer;
    if (stored.hash.empty() || stored.hash == tokenizer->hash()) return tokenizer;
    log_warning(
        "{} (hash {:.8}, chosen by {}) is not the tokenizer that the weights were trained with, which was {} "
        "(hash {:.8}): it is not exported; copy that one's files into {}",
        path.string(), tokenizer->hash(), origin.tokenizer_by, printable(fs::path(stored.path)), stored.hash,
        convert.destination.string());
  } catch (const Error& error) {
    log_warning("{}; copy the tokenizer's files into {}", error.what(), convert.destination.string());
  }
  return nullptr;
}

void convert_to_hugging_face(const std::string& config, checkpoint::ConvertOptions& convert) {
  const ModelOrigin origin = model_origin(convert.source, config);
  const models::ModelArgs args = config::model_args(origin.model);
  convert.tensors = [args, ema = convert.ema](const checkpoint::OpenCheckpoint& source) {
    return tensors_for_hugging_face(args, source, ema);
  };
  const fs::path path = config::resolve_input(origin.tokenizer, config::install_root());
  const auto tokenizer = tokenizer_for(convert, origin, path);
  const auto weights = checkpoint::open_checkpoint(convert.source).index.tensors;
  const auto weight = std::ranges::find(weights, checkpoint::kModelComponent,
                                        [](const auto& one) { return checkpoint::component_of(one.first); });
  const checkpoint::Dtype dtype = convert.dtype             ? *convert.dtype
                                  : weight == weights.end() ? checkpoint::Dtype::kFloat32
                                                            : weight->second.dtype;
  const hugging_face::HuggingFaceFiles exported = hugging_face::hugging_face_files(
      origin.model, dtype, tokenizer.get(), path, origin.record.imported, origin.seq_len);
  convert.more_files = exported.files;
  for (const std::string& remark : exported.remarks) log_info("{}", remark);
  const std::string hash = tokenizer ? tokenizer->hash() : origin.record.tokenizer.hash;
  if (!hash.empty()) convert.facts = checkpointing::tokenizer_note(hash);
}

void convert_from_hugging_face(const std::string& config, checkpoint::ConvertOptions& convert) {
  ModelOrigin origin = model_origin(convert.source, config);
  const models::ModelArgs args = config::model_args(origin.model);
  convert.tensors = [args](const checkpoint::OpenCheckpoint& source) {
    return tensors_of_hugging_face(args, source);
  };
  origin.record.model = origin.model;
  convert.facts = checkpointing::record_facts(origin.record);
}

// From safetensors to safetensors: keeps config.json and the tokenizer.
void keep_hugging_face_files(checkpoint::ConvertOptions& convert) {
  const fs::path& source = convert.source;
  const fs::path folder = is_folder(source) ? source : source.parent_path();
  const checkpointing::JobRecord record = checkpointing::read_record(checkpoint::open_checkpoint(source));
  if (record.tokenizer.recorded && !record.tokenizer.hash.empty())
    convert.facts = checkpointing::tokenizer_note(record.tokenizer.hash);
  const auto& [config_text, generation_text] = record.imported;
  if (config_text.empty()) return;
  convert.more_files = data::tokenizer_files(folder);
  nlohmann::json config = nlohmann::json::parse(config_text);
  for (const char* key : {"dtype", "torch_dtype"})
    if (convert.dtype) config[key] = checkpoint::torch_name(*convert.dtype);
  convert.more_files["config.json"] = config.dump(2) + "\n";
  if (!generation_text.empty())
    convert.more_files["generation_config.json"] = nlohmann::json::parse(generation_text).dump(2) + "\n";
}

ExitCode convert_weights(checkpoint::ConvertOptions convert, const std::string& config) {
  checkpoint::require_checkpoint(convert.source);
  const bool from_dcp = !checkpoint::find_index_files(convert.source).empty();
  const bool to_dcp = convert.format == checkpoint::WeightFormat::kDcp;
  if (from_dcp == to_dcp && !config.empty())
    throw_config("--config {}: has no use here: source and destination have the same names", config);
  if (from_dcp && !to_dcp) convert_to_hugging_face(config, convert);
  if (!from_dcp && to_dcp) convert_from_hugging_face(config, convert);
  if (!from_dcp && !to_dcp) keep_hugging_face_files(convert);
  if (from_dcp && to_dcp) {
    const checkpoint::OpenCheckpoint source = checkpoint::open_checkpoint(convert.source);
    checkpointing::JobRecord record = checkpointing::read_record(source);
    record.model = checkpointing::saved_model(source);
    convert.facts = checkpointing::record_facts(record);
  }
  return checkpoint::convert_checkpoint(convert, stdout);
}

}  // namespace

ExitCode ckpt_command(const CommandLine::Ckpt& options) {
  using Tool = CommandLine::Ckpt::Tool;
  switch (options.tool) {
    case Tool::kLs:
      return checkpoint::list_checkpoints(options.ls, stdout);
    case Tool::kVerify:
      return checkpoint::verify_checkpoints(options.verify, stdout);
    case Tool::kDigest:
      return checkpoint::print_digest(options.digest, stdout);
    case Tool::kDiff: {
      const auto& [a, b, only, json] = options.diff;
      if (is_toml(a) || is_toml(b)) return diff_names(a, b, json);
      return checkpoint::diff_checkpoints(options.diff, stdout);
    }
    case Tool::kConvert:
      return convert_weights(options.convert, options.config);
    case Tool::kPrune:
      return checkpoint::prune_checkpoints(options.prune, stdout);
  }
  throw_bug("unknown checkpoint tool");
}

}  // namespace hyperion::app
