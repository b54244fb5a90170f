// The command line of the program: which subcommand, with what. Nothing is opened or run here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/inference/sampling_options.h"
#include "checkpoint/tools/tools.h"
#include "trainer/config/job_config.h"
#include "trainer/config/overrides.h"

namespace hyperion::app {

struct CommandLine {
  enum class Action {
    kShow,      // print `text` and end with exit code 0 (--help, config --reference)
    kVersion,   // print the versions and end
    kTrain,     // train by config_file and overrides
    kCheck,     // check what a job of config_file and overrides would
    kConfig,    // print the configuration that config_file and overrides resolve to
    kTokenize,  // write token shards by `tokenize`
    kGenerate,  // continue a text by `generate`
    kEval,      // the loss on a data set by `eval`
    kCkpt,      // a tool for checkpoints by `ckpt`
    kReport,    // metrics of runs as a page by `report`
  };
  struct Tokenize {
    std::string out;                                                    // folder to write
    std::string tokenizer = config::JobConfig::Model().hf_assets_path;  // folder with tokenizer files
    std::string text_field = "text";                                    // of the lines
    std::vector<std::string> inputs;  // files, folders or globs of JSON lines
  };

  // Options that generate and eval have in common.
  struct Inference {
    std::string checkpoint;  // a step-N folder, or safetensors
    std::string config;      // TOML with the model, for checkpoints that do not name theirs
    std::string tokenizer;   // folder; empty: the one the checkpoint's configuration names
    checkpoint::Dtype dtype = checkpoint::Dtype::kFloat32;  // or kBFloat16: of weights and arithmetic
    bool ema = false;                                       // the averaged weights
    bool allow_other_tokenizer = false;                     // than the one the weights were trained with
  };
  struct Generate : Inference {
    std::string prompt;
    inference::SamplingOptions sampling;
  };
  struct Eval : Inference {
    std::string data;                 // as training.dataset_path
    std::string text_field = "text";  // as training.text_field
    int64_t seq_len = 2048;
    int64_t batch_size = 8;
    int64_t max_batches = 0;  // 0: all
    bool json = false;
  };
  struct Ckpt {
    enum class Tool { kLs, kVerify, kDigest, kDiff, kConvert, kPrune };
    Tool tool = Tool::kLs;
    // Of the tool that is named.
    checkpoint::ListOptions ls;
    checkpoint::VerifyOptions verify;
    checkpoint::DigestOptions digest;
    checkpoint::DiffOptions diff;  // a side may be a TOML file: the state that its job would have
    checkpoint::ConvertOptions convert;
    std::string config;  // convert: TOML with the model, for checkpoints that do not name theirs
    checkpoint::PruneOptions prune;
  };

  struct Report {
    std::vector<std::string> folders;    // of runs: their job.dump_folder
    std::string output = "report.html";  // the HTML file
  };

  Action action = Action::kShow;
  std::string text;
  std::string config_file;
  std::vector<config::Override> overrides;
  bool dump_state_dict = false;  // train: print the names, shapes and dtypes of the state and end
  int64_t ranks = 0;             // check: of the job; 0: those of the environment
  double gpu_memory = 0;         // check: GiB of the GPU of a rank; 0: those of this host's, if there is one
  bool allow_faults = false;     // failpoints named in the environment may act (tests)
  Tokenize tokenize;
  Generate generate;
  Eval eval;
  Ckpt ckpt;
  Report report;
};

// `arguments` without the program's name, in the forms that `hyperion --help` lists; without a subcommand
// those of train. `width`: columns that help is wrapped to. Throws Error(kUsage) for anything else. Names and
// values of overrides are checked by load_config().
CommandLine parse_command_line(std::vector<std::string> arguments, int width);

// Columns of the terminal on stdout: by the terminal, else COLUMNS, else 100.
int terminal_width();

}  // namespace hyperion::app
