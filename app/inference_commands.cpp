#include "app/commands.h"

#include <cstdlib>

#include <fmt/format.h>

#include "app/inference/evaluate.h"
#include "app/inference/generate.h"
#include "app/model_source.h"
#include "base/device/device.h"
#include "base/device/device_library.h"
#include "base/error.h"
#include "base/shell.h"
#include "base/standard_streams.h"
#include "models/kernels/kernels.h"
#include "trainer/checkpointing/job_state.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::app {
namespace {

at::Device inference_device() {
  const char* wanted = std::getenv("HYPERION_DEVICE");
  const auto choice = wanted != nullptr ? std::optional<std::string>(wanted) : std::nullopt;
  if (choose_device(choice, probe_driver(), load_device_library) == DeviceKind::kCpu) return at::kCPU;
  device_library().set_device(0);
  kernels::choose_kernels(kernels::KernelChoice::kAuto, at::kCUDA);
  return {at::kCUDA, 0};
}

inference::InferenceEngine make_engine(const CommandLine::Inference& options, const ModelSource& source) {
  const at::Device device = inference_device();
  const at::ScalarType dtype = checkpointing::scalar_type(options.dtype);
  trainer::require_memory(source.args, static_cast<double>(c10::elementSize(dtype)),
                          trainer::rank_memory(device, 1));
  return {source.args, device, dtype, source.load};
}

// The part of a job's configuration that finds the tokenizer.
config::JobConfig job_config(const CommandLine::Inference& options, const ModelSource& source) {
  config::JobConfig config;
  config.model.hf_assets_path = options.tokenizer.empty() ? source.origin.tokenizer : options.tokenizer;
  return config;
}

// The tokenizer of the command, which is the one that the weights were trained with.
trainer::DataSetup matching_tokenizer(const CommandLine::Inference& options, const ModelSource& source) {
  const bool named = !options.tokenizer.empty();
  trainer::DataSetup data;
  try {
    data = trainer::load_tokenizer(job_config(options, source));
  } catch (const Error& error) {
    if (named) throw;
    throw Error(
        error.code(),
        fmt::format("{}: its tokenizer, as {} names it, cannot be used: {}; name the folder that it is in "
                    "now with --tokenizer",
                    options.checkpoint, source.origin.tokenizer_by, error.what()));
  }
  checkpointing::require_same_tokenizer(
      options.checkpoint, source.origin.record.tokenizer,
      {.path = data.tokenizer_path,
       .hash = data.tokenizer->hash(),
       .chosen_by = named ? "--tokenizer" : source.origin.tokenizer_by,
       .choose =
           [](const std::string& path) {
             return "start with " + shell_command({"--tokenizer", path});
           },
       .allow = "start with --allow-other-tokenizer",
       .allowed_by = options.allow_other_tokenizer ? "--allow-other-tokenizer" : ""});
  return data;
}

}  // namespace

ExitCode generate_command(const CommandLine::Generate& options, const ModelSource& source) {
  const trainer::DataSetup data = matching_tokenizer(options, source);
  const inference::InferenceEngine engine = make_engine(options, source);
  print_outside_text(options.prompt);
  inference::print_generated(engine, *data.tokenizer,
                             hugging_face::imported_ids(source.origin.record.imported, "eos_token_id"),
                             options.prompt, options.sampling);
  return ExitCode::kOk;
}

ExitCode eval_command(const CommandLine::Eval& options, const ModelSource& source) {
  if (options.seq_len > source.args.max_seq_len)
    throw_config("--seq-len {}: expected at most the model's {} positions", options.seq_len,
                 source.args.max_seq_len);
  config::JobConfig config = job_config(options, source);
  config.validation.enable = true;
  config.validation.dataset_path = options.data;
  config.validation.seq_len = options.seq_len;
  config.validation.local_batch_size = options.batch_size;
  config.validation.text_field = options.text_field;
  const trainer::DataSetup data = matching_tokenizer(options, source);
  const trainer::DataKeys keys = {"--data", "--text-field"};
  trainer::check_validation_documents(config, keys);
  const auto loaders =
      trainer::validation_loaders(config, data, {.vocab_size = source.args.vocab_size}, keys);
  inference::InferenceEngine engine = make_engine(options, source);
  const inference::Evaluation result =
      inference::evaluate(engine, *loaders.front().loader, options.max_batches);
  print_text(options.json ? inference::evaluation_json(result, options.checkpoint, options.data)
                          : inference::evaluation_table(result, options.checkpoint, options.data));
  return ExitCode::kOk;
}

}  // namespace hyperion::app
