// A SaveJob is one save, from a plan to a committed folder: every rank writes its file, rank 0 writes the
// index and the manifest and renames the folder into place. The ranks report their files to rank 0, and
// rank 0 reports the outcome twice: three small messages, whatever the size of the model.
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

// Supplies the bytes of a rank's items.
class ItemReader {
 public:
  virtual ~ItemReader() = default;
  // Called once, before any read(), on the save's thread. An error ends the save on every rank.
  virtual void stage() {}
  // Calls `take` with the item's elements, in the entry's type, piece by piece in order. Pieces are valid
  // during the call only.
  using Take = std::function<void(const std::byte* data, uint64_t bytes)>;
  virtual void read(const SaveItem& item, const Take& take) = 0;
};

// A value encoded for the file.
struct EncodedObject {
  std::string key;
  KeyPath path;
  std::string archive;  // empty once written
  Span where{};         // set once written
  static auto members(auto& self) {
    return std::tie(self.key, self.path, self.archive, self.where.file, self.where.offset, self.where.length);
  }
};
// Encodes the values that this rank writes: rank 0 the shared ones, every rank its own.
std::vector<EncodedObject> encode_objects(const std::vector<ObjectState>& objects, int rank);

struct SaveJob {
  int64_t step = 0;
  std::string save_id;
  CheckpointKind kind = CheckpointKind::kFull;
  std::map<std::string, std::string> facts;  // further lines of the manifest
  const SaveLayout* layout = nullptr;
  const SavePlan* plan = nullptr;  // this rank's plan
  std::vector<EncodedObject> objects;
  // If true, ranks without tensors to write send their objects to rank 0 instead of creating files.
  bool few_files = false;
  // If true, the finished folder gets its step's name; else (a probe) it is verified and removed.
  bool commit = true;
  // If true, everything is read back from disk after the commit and compared with memory.
  bool read_back = false;
  int ranks_per_node = 1;              // a rank reads back another node's file, if there are several nodes
  std::optional<Dtype> model_dtype{};  // if set, this save converts weights to it
};

struct SaveReport {
  int64_t step = 0;
  CheckpointKind kind = CheckpointKind::kFull;
  uint64_t local_bytes = 0, total_bytes = 0;  // of files
  int files = 0;
  double write_seconds = 0;  // time until every rank has written its file
  double commit_seconds = 0, read_back_seconds = 0;
  std::filesystem::path path;
};

// Collective. Throws the same Error on every rank, after removing the unfinished folder: kNonFinite if any
// rank's bytes hold a NaN or infinite number, kSaveFailed if any rank fails to write, the Error that
// ItemReader::stage() throws; kCommunication if a rank is lost.
SaveReport write_checkpoint(const SaveJob& job, ItemReader& items, CheckpointFolder& folder,
                            Coordinator& group);

// Runs a part of a save. Its exceptions become Error(kSaveFailed), except Error(kNonFinite).
void run_save_part(const std::function<void()>& part);

// The message of a save of `step` that found NaN or infinite numbers. `found` is rank and tensors;
// `model_dtype` as in SaveJob.
std::string explain_not_finite(int64_t step, const std::string& found, std::optional<Dtype> model_dtype,
                               const CheckpointFolder& folder);

}  // namespace hyperion::checkpoint
