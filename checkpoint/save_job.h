// One save, from a plan to a committed folder: every rank writes its file, rank 0 writes the index and the
// manifest and renames the folder into place. The ranks send rank 0 what they have written, and rank 0 says
// twice how it went: three small messages, whatever the size of the model.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/collective.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "checkpoint/storage/manifest.h"

namespace hyperion::checkpoint {

// The source of the bytes of a rank's own items.
class ItemReader {
 public:
  virtual ~ItemReader() = default;
  // Called once, before any read(), on the thread of the save. An error ends the save on every rank.
  virtual void stage() {}
  // Calls `take` with the item's elements, in the entry's type, piece by piece in order. Pieces are valid
  // during the call only.
  using Take = std::function<void(const std::byte* data, uint64_t bytes)>;
  virtual void read(const SaveItem& item, const Take& take) = 0;
};

// A value, encoded for the file.
struct EncodedObject {
  std::string key;
  KeyPath path;
  std::string archive;  // empty once it was written
  Span where{};         // then
  static auto members(auto& self) {
    return std::tie(self.key, self.path, self.archive, self.where.file, self.where.offset, self.where.length);
  }
};
// Of the values that this rank writes: rank 0 those that all ranks share, every rank its own.
std::vector<EncodedObject> encode_objects(const std::vector<ObjectState>& objects, int rank);

struct SaveJob {
  int64_t step = 0;
  std::string save_id;
  CheckpointKind kind = CheckpointKind::kFull;
  std::map<std::string, std::string> facts;  // further lines of the manifest
  const SaveLayout* layout = nullptr;
  const SavePlan* plan = nullptr;  // of this rank
  std::vector<EncodedObject> objects;
  // Ranks without tensors to write send their objects to rank 0 instead of making files of their own.
  bool few_files = false;
  // Where the finished folder goes: its step's name, or (a probe) nowhere: it is verified and removed.
  bool commit = true;
  // Read everything back from disk after the commit and compare it with what was in memory.
  bool read_back = false;
  int ranks_per_node = 1;              // a rank reads back what another node wrote, where there is one
  std::optional<Dtype> model_dtype{};  // the weights are converted to it for this save
};

struct SaveReport {
  int64_t step = 0;
  CheckpointKind kind = CheckpointKind::kFull;
  uint64_t own_bytes = 0, total_bytes = 0;  // of files
  int files = 0;
  double write_seconds = 0;  // until every rank has written its file
  double commit_seconds = 0, read_back_seconds = 0;
  std::filesystem::path path;
};

// Collective. Throws the same Error on every rank, after the unfinished folder has been removed: kNonFinite
// when any rank's bytes hold a number that is NaN or infinite, kSaveFailed when any rank fails to write, what
// ItemReader::stage throws; kCommunication when a rank is lost.
SaveReport write_checkpoint(const SaveJob& job, ItemReader& items, CheckpointFolder& folder,
                            Coordinator& ranks);

// Runs a part of a save: what it throws becomes Error(kSaveFailed), except for Error(kNonFinite).
void run_save_part(const std::function<void()>& part);

// What a save of `step` that found such numbers says. `found`: rank and tensors; `model_dtype`: as in
// SaveJob.
std::string explain_not_finite(int64_t step, const std::string& found, std::optional<Dtype> model_dtype,
                               const CheckpointFolder& folder);

}  // namespace hyperion::checkpoint
