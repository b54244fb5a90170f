// The commands behind `hyperion ckpt ...`: inspect and convert checkpoints without a job. They read those of
// Hyperion, of PyTorch's Distributed Checkpoint (torchtitan) and safetensors.
//
// Each prints to `out` (a human-readable table, or one JSON value) and returns kOk, or kBadData when it found
// damage or a difference. Throws Error(kUsage) for options that cannot be used, Error(kBadData) for a
// checkpoint that cannot be read.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/tools/content.h"
#include "checkpoint/types/choices.h"
#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

// --- ls: what is there, by metadata alone ---
struct ListOptions {
  std::filesystem::path path;  // a job's folder of checkpoints, one checkpoint, or a .safetensors file
  bool json = false;
};
ExitCode list_checkpoints(const ListOptions& options, std::FILE* out);

// --- verify: is it intact, and are its numbers finite ---
struct VerifyOptions {
  std::filesystem::path path;  // one checkpoint, or a job's folder: all of its checkpoints
  bool quick = false;          // compare sizes and ids alone; else every byte is read
  bool json = false;
};
ExitCode verify_checkpoints(const VerifyOptions& options, std::FILE* out);

// --- digest: contents as text, equal for equal contents however they are cut (digest.h) ---
struct DigestOptions {
  std::filesystem::path path;
  Selection only{};
  bool json = false;
};
ExitCode print_digest(const DigestOptions& options, std::FILE* out);

// --- diff: names, shapes, types and values of two checkpoints ---
struct DiffOptions {
  std::filesystem::path a, b;
  Selection only{};
  bool json = false;
};
ExitCode diff_checkpoints(const DiffOptions& options, std::FILE* out);

// The same for names alone: a configuration has names and no values.
struct NameList {
  std::string label;                            // where it comes from
  std::map<std::string, TensorRecord> tensors;  // by name
};
ExitCode diff_names(const NameList& a, const NameList& b, bool json, std::FILE* out);

// --- convert: model weights, between DCP and safetensors and between types ---
// One tensor to write: row r of `to` is row row_map(r) of the source's tensor `from`; without a map, rows are
// the same. `shape` and type are the source's.
struct ConvertedTensor {
  std::string from, to;
  RowMap row_map{};
};
struct ConvertOptions {
  std::filesystem::path source, destination;  // the destination must not exist
  using Format = WeightFormat;
  Format format = Format::kSafetensors;
  std::optional<Dtype> dtype{};  // of floating-point tensors; nothing: as they are
  bool ema = false;              // the averages instead of the weights
  // Which tensors are written, given all model weights of the source (averages without their "ema."). Empty:
  // all, under their own names. Throws what the user shall read when the weights do not fit its model.
  std::function<std::vector<ConvertedTensor>(const std::map<std::string, TensorRecord>& weights)> tensors{};
  std::map<std::string, std::string>
      more_files{};  // name -> content, written next to safetensors: config.json, a tokenizer
  // Facts about the weights: in __metadata__ of safetensors, or in a DCP manifest together with the source's
  // facts.
  std::map<std::string, std::string> facts{};
};
// The destination appears atomically. Throws Error(kSaveFailed) for failures to write.
ExitCode convert_checkpoint(const ConvertOptions& options, std::FILE* out);

// --- prune: removes old checkpoints by the rule that saves follow ---
struct PruneOptions {
  std::filesystem::path path;  // a job's folder
  int64_t keep = 0;            // above 0
  bool dry_run = false;        // say it, do nothing
};
ExitCode prune_checkpoints(const PruneOptions& options, std::FILE* out);

}  // namespace hyperion::checkpoint
