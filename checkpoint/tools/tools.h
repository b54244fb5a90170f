// Implements `hyperion ckpt ...`: inspects and converts checkpoints without a job. The commands read
// checkpoints of Hyperion, of PyTorch's Distributed Checkpoint (torchtitan) and safetensors.
//
// Each prints to `out` (a human-readable table, or one JSON value) and returns kOk, or kBadData if it found
// damage or a difference. Throws Error(kUsage) for invalid options, Error(kBadData) for a checkpoint that
// cannot be read.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/finite.h"
#include "checkpoint/tools/content.h"
#include "checkpoint/types/choices.h"
#include "checkpoint/types/stored_part.h"

namespace hyperion::checkpoint {

// --- ls: lists checkpoints, from metadata only ---
struct ListOptions {
  std::filesystem::path path;  // a job's folder of checkpoints, one checkpoint, or a .safetensors file
  bool json = false;
};
ExitCode list_checkpoints(const ListOptions& options, std::FILE* out);

// --- verify: checks that checkpoints are intact and their numbers finite ---
struct VerifyOptions {
  std::filesystem::path path;  // one checkpoint, or a job's folder: all of its checkpoints
  bool quick = false;          // compare sizes and ids only; else every byte is read
  bool json = false;
};
ExitCode verify_checkpoints(const VerifyOptions& options, std::FILE* out);

struct Damage {
  std::string file;
  std::string what;                 // one sentence that names path and bytes
  uint64_t begin = 0, end = 0;      // byte range in the file; both 0: the entire file
  std::vector<std::string> keys{};  // tensors and values in that range, as far as the index is readable
};

struct VerifiedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string compared;  // "size", "size, checksums, CRCs, numbers"
  bool finite = true;    // no NaN or infinite number was found, if numbers were compared
};

struct Verification {
  std::filesystem::path folder;
  CheckpointKind kind = CheckpointKind::kDamaged;  // the manifest's, if readable
  std::vector<VerifiedFile> files;
  std::vector<Damage> damages;
  NotFinite not_finite;            // tensors with NaN or infinite numbers
  std::vector<std::string> notes;  // oddities that are not damage
  bool intact() const { return damages.empty() && not_finite.empty(); }
};

// Checks manifest, save id, sizes, that the index points inside the files, the checksums of all blocks, the
// CRCs of all archives, and that all numbers of tensors are finite (a view's together with its storage's).
// `quick` checks manifest, save id, sizes and index only. Every failure to read is a Damage; the state of
// the disk never makes it throw.
Verification verify_checkpoint(const std::filesystem::path& folder, bool quick = false);

// --- digest: hashes contents, independent of files, ranks and the writing program ---
struct DigestOptions {
  std::filesystem::path path;
  Selection only{};
  bool json = false;
};
ExitCode print_digest(const DigestOptions& options, std::FILE* out);

// A text that is equal for equal values: keys of dicts and items of sets are sorted, numbers keep their
// kind and all digits.
std::string canonical_text(const Object& object);

struct DigestEntry {
  std::string key;
  bool is_tensor = true;
  Dtype dtype = Dtype::kFloat32;  // for tensors
  Dims shape;
  uint64_t hash = 0;  // XXH3-64 of the tensor's row-major bytes, or of canonical_text()

  std::string line() const;  // "0123456789abcdef  bfloat16  layers.0.norm.weight  [64]"
};
struct Digest {
  std::vector<DigestEntry> entries;  // by key
  uint64_t total() const;            // XXH3-64 of all lines, with line feeds
};

// Reads all contents, in bounded memory, with a progress line. Throws Error(kBadData).
Digest digest_of(const OpenCheckpoint& checkpoint, const Selection& only = {});

// --- diff: compares names, shapes, types and values of two checkpoints ---
struct DiffOptions {
  std::filesystem::path a, b;
  Selection only{};
  bool json = false;
};
ExitCode diff_checkpoints(const DiffOptions& options, std::FILE* out);

// Accumulates differences between the values of two tensors a and b of one shape while they are streamed.
class ValueDifference {
 public:
  ValueDifference(Dtype a, Dtype b) : a_(a), b_(b) {}

  // Adds the next `count` elements of both. The types must be equal, or both floating-point.
  void add(const std::byte* a, const std::byte* b, uint64_t count);

  // The number of elements that differ: in bits if both have one type, else in value.
  uint64_t different() const { return different_; }
  bool is_float() const;                       // else the figures below have no meaning
  double max_abs() const { return max_abs_; }  // NaN if only one side is NaN or infinite somewhere
  double relative_l2() const;                  // |a - b| / |a|; infinite for a = 0

 private:
  void add_numbers(const double* a, const double* b, uint64_t count);

  Dtype a_, b_;
  uint64_t different_ = 0;
  double max_abs_ = 0, square_ = 0, square_a_ = 0;
};

// Compares names only: a configuration has names and no values.
struct NameList {
  std::string label;                            // the source, for messages
  std::map<std::string, TensorRecord> tensors;  // by name
};
ExitCode diff_names(const NameList& a, const NameList& b, bool json, std::FILE* out);

// --- convert: converts model weights between DCP and safetensors, and between types ---
// One tensor to write, with the source's shape and type: row r of `to` is row row_map(r) of the source's
// tensor `from`; without a map rows keep their order.
struct ConvertedTensor {
  std::string from, to;
  RowMap row_map{};
  // Without a map: the position of `from` in `to`, which several tensors of the same size may fill.
  StoredPart part{};
  // A record that replaces the index's: combined from several tensors, or in another form. A record without
  // chunks is zero.
  std::shared_ptr<const TensorRecord> record{};
  bool keeps_dtype = false;  // ignores ConvertOptions::dtype
  Dims shape{};              // required shape of `from`; empty: any
};
struct ConvertOptions {
  std::filesystem::path source, destination;  // the destination must not exist
  WeightFormat format = WeightFormat::kSafetensors;
  std::optional<Dtype> dtype{};  // type of floating-point tensors; nullopt: unchanged
  bool ema = false;              // convert the EMA instead of the weights
  // Selects the tensors to write, given the source. Empty: all model weights, under their own names. Throws
  // the message for the user if the weights do not fit its model.
  std::function<std::vector<ConvertedTensor>(const OpenCheckpoint& source)> tensors{};
  std::map<std::string, std::string>
      more_files{};  // name -> content, written next to safetensors: config.json, a tokenizer
  // Facts about the weights, written to __metadata__ of safetensors, or to a DCP manifest together with the
  // source's facts.
  std::map<std::string, std::string> facts{};
};
// Creates the destination atomically. Throws Error(kSaveFailed) if a write fails.
ExitCode convert_checkpoint(const ConvertOptions& options, std::FILE* out);

// --- prune: removes old checkpoints by the rule that saves follow ---
struct PruneOptions {
  std::filesystem::path path;  // a job's folder
  int64_t keep = 0;            // must be above 0
  bool dry_run = false;        // print only, remove nothing
};
ExitCode prune_checkpoints(const PruneOptions& options, std::FILE* out);

}  // namespace hyperion::checkpoint
