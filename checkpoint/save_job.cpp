#include "checkpoint/save_job.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/gpu_fault.h"
#include "base/printable.h"
#include "base/resources.h"
#include "checkpoint/finite.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/save_index.h"
#include "checkpoint/storage/shard_reader.h"
#include "checkpoint/storage/shard_writer.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

// The result of one rank's writes.
struct WriteResult {
  std::optional<FileRecord> file;
  std::vector<EncodedObject> objects{};  // written to its file; without a file, forwarded to rank 0
  static auto members(auto& self) { return std::tie(self.file, self.objects); }
};

void write_item(const SaveLayout& layout, const SaveItem& item, ItemReader& items, ShardWriter& file,
                NotFinite& not_finite) {
  const Dtype dtype = layout.entries[item.entry].dtype;
  const Dims shape = item_box(layout, item).shape;
  if (file.position() != item.offset)
    throw_bug("save: {} lies at byte {}, planned was {}", layout.entries[item.entry].key, file.position(),
              item.offset);
  const std::string head = tensor_archive_head(dtype, shape);
  file.append(head.data(), head.size());
  uint32_t crc = 0;
  items.read(item, [&](const std::byte* data, uint64_t bytes) {
    // Pieces are so small that the scan for NaN and the copy find them in the L1 cache, where the checksum
    // has loaded them: that saves more time than the scan takes.
    constexpr uint64_t kPiece = uint64_t{8} << 10;
    for (uint64_t at = 0; at < bytes; at += kPiece) {
      const uint64_t length = std::min(kPiece, bytes - at);
      crc = crc32(crc, data + at, length);
      not_finite.scan(layout.entries[item.entry].key, dtype, data + at, length);
      file.append(data + at, length);
    }
  });
  const std::string tail = tensor_archive_tail(dtype, shape, crc);
  file.append(tail.data(), tail.size());
}

// The save of one rank, phase by phase.
class RankSave {
 public:
  RankSave(const SaveJob& job, ItemReader& items, const CheckpointFolder& folder, Coordinator& group)
      : job_(job),
        items_(items),
        folder_(folder),
        group_(group),
        rank_(group.rank()),
        incoming_(folder.incoming(job.save_id)) {
    report_.step = job.step;
    report_.kind = job.kind;
    report_.path = job.commit ? folder.step_path(job.step) : incoming_;
  }

  // Every rank writes its file. Rank 0 keeps its file open for forwarded objects.
  void write_files() {
    Clock::time_point begin;
    try {
      results_ = collectively(group_, [&] {
        items_.stage();
        begin = Clock::now();
        write_own_file();
        // All ranks send as many bytes as the largest contribution: rank 0 keeps its list of objects, the
        // longest.
        return lead() ? WriteResult{.file = own_.file} : own_;
      });
    } catch (const std::exception& error) {
      if (lead()) folder_.abandon(incoming_);
      const auto* known = dynamic_cast<const Error*>(&error);
      if (known == nullptr || known->code() != ExitCode::kNonFinite) throw;
      throw Error(ExitCode::kNonFinite, from_rank_0(group_, [&] {
                    return explain_not_finite(job_.step, error.what(), job_.model_dtype, folder_);
                  }));
    }
    report_.write_seconds = seconds_since(begin);
    if (own_.file) report_.local_bytes = own_.file->bytes;
  }

  // Rank 0 turns the files into a checkpoint.
  void commit() {
    const Clock::time_point begin = Clock::now();
    if (!lead()) failpoint("ckpt.await_commit");
    std::tie(report_.files, report_.total_bytes) = from_rank_0(group_, [&] {
      try {
        run_save_part([&] {
          finish_first_file();
          write_index();
          if (job_.commit) folder_.commit(incoming_, job_.step);
        });
      } catch (const Error& error) {
        folder_.abandon(incoming_);
        throw Error(error.code(), with_rank(rank_, error.what()));
      }
      std::pair<int, uint64_t> files_and_bytes;
      for (const WriteResult& result : results_) {
        if (!result.file) continue;
        ++files_and_bytes.first;
        files_and_bytes.second += result.file->bytes;
      }
      return files_and_bytes;
    });
    report_.commit_seconds = seconds_since(begin);
  }

  // Every rank compares the files on disk with memory.
  void read_back() {
    const Clock::time_point begin = Clock::now();
    try {
      collectively(group_, [&] { run_save_part([&] { verify_share(); }); });
    } catch (const Error& error) {
      if (lead() && error.code() == ExitCode::kSaveFailed) folder_.discard(report_.path);
      throw;
    }
    report_.read_back_seconds = seconds_since(begin);
  }

  // Removes a checkpoint that was written only to be verified.
  void discard_probe() {
    if (lead() && !job_.commit) folder_.discard(report_.path);
  }

  const SaveReport& report() const { return report_; }

 private:
  bool lead() const { return rank_ == 0; }

  // Non-finite numbers take precedence over every other failure: no other disk would help.
  void write_own_file() {
    NotFinite not_finite;
    std::exception_ptr failure;
    try {
      run_save_part([&] {
        failpoint("ckpt.before_data");
        folder_.begin(job_.save_id, lead());
        write_items_and_objects(not_finite);
        if (file_ && !(lead() && job_.few_files)) own_.file = file_->close();
        failpoint("ckpt.after_data");
      });
    } catch (const Error&) {
      failure = std::current_exception();
    }
    if (!not_finite.empty()) throw Error(ExitCode::kNonFinite, not_finite.text());
    if (failure) std::rethrow_exception(failure);
  }

  // No file is created if there is nothing to write.
  void write_items_and_objects(NotFinite& not_finite) {
    const std::vector<SaveItem>& items = job_.plan->local_items;
    if (items.empty() && job_.few_files && !lead()) {
      own_.objects = job_.objects;
      return;
    }
    if (items.empty() && job_.objects.empty()) return;
    const std::vector<uint64_t>& bytes = job_.plan->file_bytes;
    file_ = std::make_unique<ShardWriter>(incoming_, shard_file_name(rank_), rank_,
                                          std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}));
    for (size_t i = 0; i < items.size(); ++i) {
      write_item(*job_.layout, items[i], items_, *file_, not_finite);
      if (i == items.size() / 2) failpoint("ckpt.mid_data");
    }
    for (const EncodedObject& object : job_.objects) append_object(object);
  }

  void append_object(EncodedObject object) {
    object.where = {shard_file_name(rank_), file_->position(), object.archive.size()};
    file_->append(object.archive.data(), object.archive.size());
    object.archive.clear();
    own_.objects.push_back(std::move(object));
  }

  // Rank 0 writes forwarded objects to its file.
  void finish_first_file() {
    if (file_ && job_.few_files) {
      for (WriteResult& result : results_)
        if (!result.file)
          for (EncodedObject& object : std::exchange(result.objects, {})) append_object(std::move(object));
      own_.file = file_->close();
      report_.local_bytes = own_.file->bytes;
    }
    results_[0] = std::move(own_);
  }

  // Rank 0 writes the index, then the manifest; both are on disk when it returns.
  void write_index() const {
    failpoint("ckpt.before_meta");
    CheckpointIndex index;  // without tensors, which come from the plan
    index.save_id = job_.save_id;
    Manifest manifest;
    manifest.save_id = job_.save_id;
    manifest.step = job_.step;
    manifest.world_size = group_.size();
    manifest.kind = job_.kind;
    manifest.unix_time = static_cast<int64_t>(std::time(nullptr));
    manifest.facts = job_.facts;
    const auto fact = [&](const char* key) {
      const auto found = job_.facts.find(key);
      return found == job_.facts.end() ? std::string() : found->second;
    };
    manifest.config_hash = fact("config_hash");
    manifest.writer = fact("version");
    for (const WriteResult& result : results_) {
      if (result.file) manifest.files.push_back(*result.file);
      for (const EncodedObject& object : result.objects) {
        index.objects[object.key] = {object.where};
        index.paths[object.key] = object.path;
      }
    }
    ShardWriter metadata(incoming_, ".metadata", 0);
    encode_save_index(*job_.layout, *job_.plan, index,
                      [&](std::string_view piece) { metadata.append(piece.data(), piece.size()); });
    manifest.files.push_back(metadata.close());
    ShardWriter file(incoming_, kManifestFile, 0);
    const std::string text = to_json(manifest);
    file.append(text.data(), text.size());
    file.close();
    failpoint("ckpt.after_meta");
  }

  // Verifies, against the manifest on disk, the file of the same rank on the next node (on one node: of the
  // next rank), so that no rank reads from its own page cache; rank 0 also verifies the index.
  void verify_share() const {
    const int size = group_.size(), distance = size > job_.ranks_per_node ? job_.ranks_per_node : 1;
    const std::string name = shard_file_name((rank_ + distance) % size);
    for (const FileRecord& file : read_manifest(report_.path).files)
      if (file.name == name || (lead() && file.name == ".metadata")) verify_file(report_.path, file);
  }

  const SaveJob& job_;
  ItemReader& items_;
  const CheckpointFolder& folder_;
  Coordinator& group_;
  const int rank_;
  const fs::path incoming_;
  std::unique_ptr<ShardWriter> file_;  // this rank's; null if it has nothing to write
  WriteResult own_;
  std::vector<WriteResult> results_;  // by rank; empty except on rank 0
  SaveReport report_;
};

}  // namespace

std::vector<EncodedObject> encode_objects(const std::vector<ObjectState>& objects, int rank) {
  std::vector<EncodedObject> encoded;
  for (const ObjectState& object : objects) {
    if (rank == 0 || object.per_rank)
      encoded.push_back({object.key, object.path, object_archive(object.value)});
  }
  return encoded;
}

void run_save_part(const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    if (const auto* known = dynamic_cast<const Error*>(&error);
        known && known->code() == ExitCode::kNonFinite)
      throw;
    if (gpu_fault(error)) throw;
    const auto resource = exhausted_resource(error);
    throw Error(ExitCode::kSaveFailed, resource ? resource->what : error.what());
  }
}

std::string explain_not_finite(int64_t step, const std::string& found, std::optional<Dtype> model_dtype,
                               const CheckpointFolder& folder) {
  std::string stays = "no checkpoint that training could resume from is";
  try {
    for (const StepFolder& one : folder.scan())
      if (one.step <= step && one.resumable())
        stays = fmt::format("the newest checkpoint, which stays, is step-{}", one.step);
  } catch (const Error& error) {
    stays = fmt::format("what stays cannot be listed ({})", error.what());
  }
  const bool narrow = model_dtype && *model_dtype != Dtype::kFloat32;
  const std::string type = narrow ? std::string(torch_name(*model_dtype)) : "";
  return fmt::format(
      "the state after step {}{} holds NaN or infinite numbers and is not saved: {}; {} in {}; look at "
      "optimizer.lr and the data before training continues{}",
      step, narrow ? " as " + type : "", found, stays, printable(folder.path()),
      narrow
          ? fmt::format("; numbers that are only too large for {} need checkpoint.export_dtype = \"float32\"",
                        type)
          : "");
}

SaveReport write_checkpoint(const SaveJob& job, ItemReader& items, CheckpointFolder& folder,
                            Coordinator& group) {
  RankSave save(job, items, folder, group);
  save.write_files();
  save.commit();
  if (job.read_back) save.read_back();
  save.discard_probe();
  return save.report();
}

}  // namespace hyperion::checkpoint
