// Parses the command line into a subcommand and its options. Nothing is opened or run here.
#pragma once

#include <cstdint>
#include <optional>
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
    kCheck,     // run the checks of a job of config_file and overrides
    kConfig,    // print the configuration that config_file and overrides resolve to
    kPlan,      // print the best meshes for config_file and overrides
    kData,      // print sequences that a job of config_file and overrides reads
    kTokenize,  // write token shards by `tokenize`
    kGenerate,  // continue a text by `generate`
    kEval,      // compute the loss on a data set by `eval`
    kCkpt,      // run a checkpoint tool by `ckpt`
    kReport,    // write metrics of runs as a page by `report`
    kMonitor,   // show a run in the terminal by `monitor`
  };
  struct Tokenize {
    std::string out;                                                    // folder to write
    std::string tokenizer = config::JobConfig::Model().hf_assets_path;  // folder with tokenizer files
    std::string text_field = "text";                                    // field of the lines
    std::vector<std::string> inputs;                                    // as training.dataset_path
    std::string format = "shard";                                       // or "megatron"
  };

  struct Data {
    std::optional<int64_t> sequence;  // the one to show
    int64_t sequences = 2;            // how many to show from the first on
    bool full = false;                // long documents are not shortened
  };

  struct Plan {
    int64_t gpus = 8;
    std::string gpu = "h100";  // a card of scripts/cards.json, or FILE.json:NAME
    int64_t gpus_per_node = 8;
    double network = 400;      // Gb/s of a GPU between nodes
    int64_t seq_len = 0;       // 0: the file's
    int64_t global_batch = 0;  // sequences of a step; 0: the file's
    double tokens = 0;         // of the job; 0: not given
    bool configured = false;   // the file's own settings alone
    bool keep_mesh = false;    // keep the file's degrees
    int64_t explain = 0;       // the plan to print in full, counted from 1
    bool json = false;
    std::string write;  // the TOML file to write
    std::string html;   // the page to write
  };

  // Options of both generate and eval.
  struct Inference {
    std::string checkpoint;  // a step-N folder, or safetensors
    std::string config;      // TOML with the model, for checkpoints that do not name theirs
    std::string tokenizer;   // folder; empty: named by the checkpoint's configuration
    checkpoint::Dtype dtype = checkpoint::Dtype::kFloat32;  // or kBFloat16; for weights and arithmetic
    bool ema = false;                                       // use the averaged weights
    bool allow_other_tokenizer = false;                     // differing from the weights' own
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
    // Only the options of `tool` are used.
    checkpoint::ListOptions ls;
    checkpoint::VerifyOptions verify;
    checkpoint::DigestOptions digest;
    checkpoint::DiffOptions diff;  // a side may be a TOML file, for the state that its job would have
    checkpoint::ConvertOptions convert;
    std::string config;  // convert: TOML with the model, for checkpoints that do not name theirs
    checkpoint::PruneOptions prune;
  };

  struct Report {
    std::vector<std::string> folders;    // job.dump_folder of each run
    std::string output = "report.html";  // the HTML file
    std::vector<std::string> names;      // DIR=NAME, for runs that the page calls by another name
    std::string baseline;                // name or folder of the run that the others are compared with
    bool ratio = false;                  // compare by ratios, not by differences
    double watch = 0;                    // seconds between refreshes; 0: the page is written once
  };

  struct Monitor {
    std::string folder;   // job.dump_folder of the run, or a rank_N folder of it
    bool once = false;    // print the state as text and end
    double interval = 2;  // seconds between refreshes
  };

  Action action = Action::kShow;
  std::string text;
  std::string config_file;
  std::vector<config::Override> overrides;
  bool dump_state_dict = false;  // train: print the names, shapes and dtypes of the state and end
  int64_t ranks = 0;             // check: the job's ranks; 0: from the environment
  double gpu_memory = 0;         // check: GiB of a rank's GPU; 0: those of this host's GPU, if any
  bool allow_faults = false;     // failpoints named in the environment may act (tests)
  Data data;
  Plan plan;
  Tokenize tokenize;
  Generate generate;
  Eval eval;
  Ckpt ckpt;
  Report report;
  Monitor monitor;
};

// Parses `arguments`, which exclude the program's name, in the forms of `hyperion --help`; the default
// subcommand is train. Help is wrapped to `width` columns. Throws Error(kUsage) for anything else.
// load_config() checks names and values of overrides.
CommandLine parse_command_line(std::vector<std::string> arguments, int width);

// Returns the columns of the terminal on stdout, else COLUMNS, else 100.
int terminal_width();

}  // namespace hyperion::app
