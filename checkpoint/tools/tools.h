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

struct Damage {
  std::string file;
  std::string what;                 // one sentence that names path and bytes
  uint64_t begin = 0, end = 0;      // bytes of the file; both 0: all of it
  std::vector<std::string> keys{};  // tensors and values in those bytes, as far as the index can be read
};

struct VerifiedFile {
  std::string name;
  uint64_t bytes = 0;
  std::string compared;  // what was: "size", "size, checksums, CRCs, numbers"
  bool finite = true;    // no number in it is NaN or infinite, as far as that was compared
};

struct Verification {
  std::filesystem::path folder;
  CheckpointKind kind = CheckpointKind::kDamaged;  // the manifest's, where it can be read
  std::vector<VerifiedFile> files;
  std::vector<Damage> damages;
  NotFinite not_finite;            // tensors that hold NaN or infinite numbers
  std::vector<std::string> notes;  // what is odd but no damage
  bool intact() const { return damages.empty() && not_finite.empty(); }
};

// Manifest, save id, sizes, that the index points inside the files, the checksums of all blocks, the CRCs of
// all archives, and that all numbers of tensors are finite (a view's with those of its storage). `quick`:
// manifest, save id, sizes and index alone. Every failure to read is a Damage; nothing is thrown for what
// is on disk.
Verification verify_checkpoint(const std::filesystem::path& folder, bool quick = false);

// --- digest: hashes of the contents, which do not depend on files, ranks or the program that wrote them ---
struct DigestOptions {
  std::filesystem::path path;
  Selection only{};
  bool json = false;
};
ExitCode print_digest(const DigestOptions& options, std::FILE* out);

// One text for each value, the same for equal ones: keys of dicts and items of sets are sorted, numbers keep
// their kind and all digits.
std::string canonical_text(const Object& object);

struct DigestEntry {
  std::string key;
  bool is_tensor = true;
  Dtype dtype = Dtype::kFloat32;  // of tensors
  Dims shape;
  uint64_t hash = 0;  // XXH3-64 of the tensor's row-major bytes, or of canonical_text()

  std::string line() const;  // "0123456789abcdef  bfloat16  layers.0.norm.weight  [64]"
};
struct Digest {
  std::vector<DigestEntry> entries;  // by key
  uint64_t total() const;            // XXH3-64 of all lines, each with its end
};

// Reads all contents, in bounded memory, with a progress line. Throws Error(kBadData).
Digest digest_of(const OpenCheckpoint& checkpoint, const Selection& only = {});

// --- diff: names, shapes, types and values of two checkpoints ---
struct DiffOptions {
  std::filesystem::path a, b;
  Selection only{};
  bool json = false;
};
ExitCode diff_checkpoints(const DiffOptions& options, std::FILE* out);

// Differences between the values of two tensors of one shape, a and b, summed up as they are streamed.
class ValueDifference {
 public:
  ValueDifference(Dtype a, Dtype b) : a_(a), b_(b) {}

  // The next `count` elements of both. The types must be equal, or both floating-point.
  void add(const std::byte* a, const std::byte* b, uint64_t count);

  // Elements that differ: in bits where both have one type, else in value.
  uint64_t different() const { return different_; }
  bool is_float() const;                       // else the figures below have no meaning
  double max_abs() const { return max_abs_; }  // NaN when one side alone is NaN or infinite somewhere
  double relative_l2() const;                  // |a - b| / |a|; infinite for a = 0

 private:
  void add_numbers(const double* a, const double* b, uint64_t count);

  Dtype a_, b_;
  uint64_t different_ = 0;
  double max_abs_ = 0, square_ = 0, square_a_ = 0;
};

// The same for names alone: a configuration has names and no values.
struct NameList {
  std::string label;                            // where it comes from
  std::map<std::string, TensorRecord> tensors;  // by name
};
ExitCode diff_names(const NameList& a, const NameList& b, bool json, std::FILE* out);

// --- convert: model weights, between DCP and safetensors and between types ---
// One tensor to write, of the source's shape and type: row r of `to` is row row_map(r) of the source's tensor
// `from`; without a map, rows are the same.
struct ConvertedTensor {
  std::string from, to;
  RowMap row_map{};
  // Without a map: where `from` is in `to`; several tensors of the same size may fill one.
  StoredPart part{};
  // A record in place of the index's: made of several tensors, or in another form. One without chunks is
  // zero.
  std::shared_ptr<const TensorRecord> made{};
  bool keeps_dtype = false;  // whatever type is asked for
  Dims shape{};              // that `from` must have; empty: any
};
struct ConvertOptions {
  std::filesystem::path source, destination;  // the destination must not exist
  WeightFormat format = WeightFormat::kSafetensors;
  std::optional<Dtype> dtype{};  // of floating-point tensors; nothing: as they are
  bool ema = false;              // the averages instead of the weights
  // Which tensors are written, given the source. Empty: all model weights, under their own names. Throws what
  // the user shall read when the weights do not fit its model.
  std::function<std::vector<ConvertedTensor>(const OpenCheckpoint& source)> tensors{};
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
