// ckpt verify
#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/printable.h"
#include "base/progress.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/safetensors/safetensors.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "checkpoint/storage/index_files.h"
#include "checkpoint/storage/shard_reader.h"
#include "checkpoint/tools/aligned_table.h"
#include "checkpoint/tools/folders.h"
#include "checkpoint/tools/tools.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

// A tensor's chunk or a value in a file.
struct Entry {
  uint64_t begin = 0, end = 0;
  const std::string* key = nullptr;
  const TensorRecord* tensor = nullptr;  // null for a value
  const Chunk* chunk = nullptr;
};

class Verifier {
 public:
  Verifier(fs::path folder, bool quick) : quick_(quick) {
    result_.folder = checkpoint_.folder = std::move(folder);
  }

  Verification run() {
    read_manifest_file();
    read_index_files();
    find_files();
    uint64_t total = 0;
    for (const auto& [name, entries] : entries_) total += sizes_[name];
    Progress progress("verify", total, "B");
    progress_ = &progress;
    for (const auto& [name, entries] : entries_) check_file(name, entries);
    if (checkpoint_.manifest) {
      for (const std::string& name : extra_files(result_.folder, *checkpoint_.manifest))
        result_.notes.push_back(fmt::format("{} is no part of the checkpoint: ignored", name));
    }
    if (index_files_.size() > 1)
      result_.notes.push_back("of what several ranks wrote, a copy each, the first rank's was read");
    return std::move(result_);
  }

 private:
  // Runs `action`; its error becomes a damage of these bytes of a file.
  template <typename Action>
  bool record_damage(const std::string& file, uint64_t begin, uint64_t end, const Action& action) {
    try {
      action();
      return true;
    } catch (const Error& error) {
      add_damage({file, error.what(), begin, end, keys_at(file, begin, end)});
      return false;
    }
  }

  // A file that is read twice (the index first) fails twice with the same message: one problem.
  void add_damage(Damage damage) {
    for (Damage& known : result_.damages) {
      if (known.file != damage.file || known.what != damage.what) continue;
      if (known.end == 0) known = std::move(damage);
      return;
    }
    result_.damages.push_back(std::move(damage));
  }

  std::vector<std::string> keys_at(const std::string& file, uint64_t begin, uint64_t end) const {
    std::vector<std::string> keys;
    const auto found = entries_.find(file);
    if (found == entries_.end()) return keys;
    for (const Entry& entry : found->second)
      if (end == 0 || (entry.begin < end && begin < entry.end)) keys.push_back(*entry.key);
    return keys;
  }

  void read_manifest_file() {
    std::error_code error;
    has_manifest_file_ = fs::exists(fs::symlink_status(result_.folder / kManifestFile, error));
    if (!has_manifest_file_) return;
    record_damage(kManifestFile, 0, 0, [&] { checkpoint_.manifest = read_manifest(result_.folder); });
    if (!checkpoint_.manifest) return;
    result_.kind = checkpoint_.manifest->kind;
    const auto step = step_of_name((result_.folder / "").parent_path().filename().native());
    if (step && *step != checkpoint_.manifest->step)
      result_.damages.push_back(
          {kManifestFile,
           fmt::format("{}: its manifest is of step {}: the folder was renamed or its files were swapped",
                       result_.folder.string(), checkpoint_.manifest->step)});
  }

  void read_index_files() {
    const fs::path& folder = result_.folder;
    const std::optional<Manifest>& manifest = checkpoint_.manifest;
    if (!has_manifest_file_) result_.kind = CheckpointKind::kForeign;
    if (!record_damage(".metadata", 0, 0, [&] { index_files_ = find_index_files(folder); })) return;
    if (index_files_.empty()) {
      result_.kind = CheckpointKind::kSafetensors;
      record_damage(folder.filename().string(), 0, 0, [&] { checkpoint_.index = read_safetensors(folder); });
      std::error_code error;
      if (fs::is_regular_file(folder, error)) checkpoint_.folder = result_.folder = folder.parent_path();
      return;
    }
    OpenCheckpoint described{folder, {}, manifest};
    if (manifest && std::ranges::count(manifest->files, ".metadata", &FileRecord::name) == 0) {
      result_.damages.push_back({".metadata", folder.string() + ": hyperion.json does not list .metadata"});
      described.manifest.reset();
    }
    const bool decoded = record_damage(index_files_.front(), 0, 0, [&] {
      checkpoint_.index = decode_metadata(folder, read_index(described));
      if (manifest) require_same_save(folder, *manifest, checkpoint_.index);
    });
    if (!decoded)  // which of several it was
      for (const std::string& name : index_files_)
        if (result_.damages.back().what.starts_with(printable(folder / name) + ": "))
          result_.damages.back().file = name;
  }

  // Every file that manifest or index name, with its contents, by offset.
  void find_files() {
    if (checkpoint_.manifest)
      for (const FileRecord& record : checkpoint_.manifest->files) entries_[record.name];
    else
      for (const std::string& name : index_files_) entries_[name];
    for (const auto& [key, record] : checkpoint_.index.tensors)
      for (const Chunk& chunk : record.chunks)
        entries_[chunk.where.file].push_back(
            {chunk.where.offset, chunk.where.offset + chunk.where.length, &key, &record, &chunk});
    for (const auto& [key, record] : checkpoint_.index.objects)
      entries_[record.where.file].push_back(
          {record.where.offset, record.where.offset + record.where.length, &key});
    for (auto& [name, entries] : entries_) {
      std::ranges::sort(entries, {}, &Entry::begin);
      std::error_code error;
      const uint64_t bytes = fs::file_size(result_.folder / name, error);
      sizes_[name] = error ? 0 : bytes;
    }
  }

  void check_file(const std::string& name, const std::vector<Entry>& entries) {
    const FileRecord* record = nullptr;
    std::optional<ShardReader> reader;
    record_damage(name, 0, 0, [&] {
      record = checkpoint_.record(name);
      reader.emplace(result_.folder, name, record, links());
      for (const Entry& entry : entries)
        if (entry.end > reader->size())
          throw_data("{}: has {} bytes, {} lies at bytes {} to {}", reader->name(), reader->size(),
                     printable(*entry.key), entry.begin, entry.end);
    });
    VerifiedFile file{name, sizes_[name], bare() ? "header, size" : record != nullptr ? "size" : "index"};
    const size_t damages = result_.damages.size();
    if (reader && record != nullptr && !quick_) {
      check_blocks(name, *reader);
      file.compared += ", checksums";
    }
    if (reader && !entries.empty() && !quick_) {
      const uint64_t before = result_.not_finite.total();
      check_entries(name, entries, damages);
      file.finite = result_.not_finite.total() == before;
      file.compared += bare() ? ", numbers" : ", CRCs, numbers";
    }
    done_ += file.bytes;
    progress_->update(done_);
    result_.files.push_back(std::move(file));
  }

  // The files are read from the disk, not from the page cache.
  void check_blocks(const std::string& name, ShardReader& file) {
    evict(result_.folder / name);
    std::vector<std::byte> block(std::min(kBlockBytes, file.size()));
    for (uint64_t at = 0; at < file.size(); at += kBlockBytes) {
      const uint64_t bytes = std::min(kBlockBytes, file.size() - at);
      record_damage(name, at, at + bytes, [&] { file.read(at, block.data(), bytes); });
      progress_->update(done_ + at);
    }
  }

  void check_entries(const std::string& name, const std::vector<Entry>& entries, size_t known_damages) {
    record_damage(name, 0, 0, [&] {
      ShardReader file(result_.folder, name, nullptr, links());
      for (const Entry& entry : entries) {
        if (entry.end <= file.size() && !is_damaged(name, entry, known_damages))
          record_damage(name, entry.begin, entry.end, [&] { check_entry(entry, file); });
        progress_->update(done_ + entry.begin);
      }
    });
  }

  // Among the damages from number `first` on: what a checksum has already shown.
  bool is_damaged(const std::string& name, const Entry& entry, size_t first) const {
    return std::any_of(result_.damages.begin() + static_cast<ptrdiff_t>(first), result_.damages.end(),
                       [&](const Damage& damage) {
                         return damage.file == name && entry.begin < damage.end && damage.begin < entry.end;
                       });
  }

  void check_entry(const Entry& entry, ShardReader& file) {
    SliceSource slice(file, entry.begin, entry.end - entry.begin);
    if (entry.tensor == nullptr) return void(read_object_archive(slice));
    if (bare() && entry.begin == entry.end) return;  // a tensor without elements
    const TensorArchive archive = bare()
                                      ? row_major_archive(entry.tensor->dtype, entry.chunk->shape, 0)
                                      : open_tensor_archive(slice, *entry.key, *entry.tensor, *entry.chunk);
    NotFinite numbers;
    check_crc(slice, archive.data, [&](const char* data, uint64_t bytes) {
      numbers.scan(*entry.key, archive.dtype, data, bytes);
    });
    for (const auto& [key, count] : numbers.tensors()) result_.not_finite.add(key, count);
  }

  bool bare() const { return checkpoint_.index.layout == CheckpointIndex::Layout::kBareBytes; }
  Links links() const { return bare() ? Links::kFollow : Links::kRefuse; }

  bool quick_;
  Verification result_;
  bool has_manifest_file_ = false;
  OpenCheckpoint checkpoint_;  // index and manifest as far as they can be read
  std::vector<std::string> index_files_;
  std::map<std::string, std::vector<Entry>> entries_;  // by file
  std::map<std::string, uint64_t> sizes_;
  Progress* progress_ = nullptr;
  uint64_t done_ = 0;
};

// --- printing ---

Json to_json(const Verification& one) {
  Json json = {{"folder", one.folder.string()}, {"kind", text_of(one.kind)}, {"whole", one.intact()}};
  json["files"] = json["damages"] = json["not_finite"] = Json::array();
  for (const VerifiedFile& file : one.files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"compared", file.compared}});
  for (const Damage& damage : one.damages) {
    Json item = {{"file", damage.file}, {"what", damage.what}, {"keys", damage.keys}};
    if (damage.end > 0) item["bytes"] = {damage.begin, damage.end};
    json["damages"].push_back(std::move(item));
  }
  for (const auto& [key, count] : one.not_finite.tensors())
    json["not_finite"].push_back({{"key", key}, {"numbers", count}});
  json["notes"] = one.notes;
  return json;
}

std::string list_keys(const std::vector<std::string>& keys) {
  constexpr size_t kNamed = 8;
  std::string text;
  for (const std::string& key : std::span(keys).first(std::min(keys.size(), kNamed)))
    text += (text.empty() ? "" : ", ") + printable(key);
  return keys.size() > kNamed ? fmt::format("{} and {} more", text, keys.size() - kNamed) : text;
}

void print_damages(const Verification& one, std::FILE* out) {
  for (const Damage& damage : one.damages) {
    fmt::print(out, "{}\n", escape_control_bytes(damage.what, "\n"));
    if (!damage.keys.empty()) fmt::print(out, "  there: {}\n", list_keys(damage.keys));
  }
  for (const auto& [key, count] : one.not_finite.tensors())
    fmt::print(out, "{}: tensor {} holds {} that {} NaN or infinite\n", printable(one.folder), printable(key),
               counted(count, "number"), count == 1 ? "is" : "are");
  for (const std::string& note : one.notes) fmt::print(out, "note: {}\n", escape_control_bytes(note, "\n"));
}

std::string summarize(const Verification& one, bool quick) {
  uint64_t bytes = 0;
  for (const VerifiedFile& file : one.files) bytes += file.bytes;
  const size_t not_finite = one.not_finite.tensors().size();
  if (!one.damages.empty())
    return fmt::format("DAMAGED: {}{}", counted(one.damages.size(), "problem"),
                       not_finite > 0 ? "; NOT FINITE: " + counted(not_finite, "tensor") : "");
  if (not_finite > 0) return "NOT FINITE: " + counted(not_finite, "tensor");
  const std::string seen = fmt::format("{}, {}", counted(one.files.size(), "file"), format_bytes(bytes));
  if (quick) return fmt::format("sizes agree: {}, no content was read (--quick)", seen);
  if (one.kind == CheckpointKind::kSafetensors)
    return fmt::format(
        "no damage seen: {}, headers and sizes fit and all numbers are finite; not compared: the bytes of "
        "the numbers (safetensors have no checksums), config.json and the tokenizer's files",
        seen);
  if (one.kind == CheckpointKind::kForeign)
    return fmt::format(
        "no damage seen: {}, the CRCs of all tensors fit and all numbers are finite; no manifest "
        "(hyperion.json), so the index and files of another save would not be noticed",
        seen);
  return fmt::format("intact: {}, every byte compared", seen);
}

void print_one(const Verification& one, bool quick, std::FILE* out) {
  AlignedTable table({"file", ">size", "compared", "result"});
  for (const VerifiedFile& file : one.files) {
    const bool bad = std::ranges::find(one.damages, file.name, &Damage::file) != one.damages.end();
    table.add({file.name, format_bytes(file.bytes), file.compared + (quick ? " only" : ""),
               bad            ? "DAMAGED"
               : !file.finite ? "NOT FINITE"
               : quick        ? "agrees"
               : one.kind == CheckpointKind::kSafetensors || one.kind == CheckpointKind::kForeign
                   ? "no damage seen"
                   : "right"});
  }
  fmt::print(out, "{}: {}\n\n", printable(one.folder), kind_label(one.kind));
  if (!table.empty()) fmt::print(out, "{}\n", table.text_for(out));
  print_damages(one, out);
  fmt::print(out, "{}\n", summarize(one, quick));
}

void print_all(const std::vector<Verification>& results, bool quick, std::FILE* out) {
  AlignedTable table({"checkpoint", "kind", "result"});
  for (const Verification& one : results)
    table.add({one.folder.filename().string(), kind_label(one.kind), summarize(one, quick)});
  fmt::print(out, "{}", table.text_for(out));
  for (const Verification& one : results) print_damages(one, out);
}

}  // namespace

Verification verify_checkpoint(const fs::path& folder, bool quick) {
  return Verifier(folder, quick).run();
}

ExitCode verify_checkpoints(const VerifyOptions& options, std::FILE* out) {
  std::vector<Verification> results;
  const bool one = is_checkpoint(options.path);
  if (one) {
    results.push_back(verify_checkpoint(options.path, options.quick));
  } else {
    for (const StepFolder& found : CheckpointFolder(options.path).scan())
      results.push_back(verify_checkpoint(found.path, options.quick));
  }
  // Nothing was verified: that must not look like success to a script.
  if (results.empty()) throw_config("{}", no_checkpoints(options.path));
  if (options.json) {
    Json list = Json::array();
    for (const Verification& each : results) list.push_back(to_json(each));
    print_json(one ? list[0] : list, out);
  } else if (one) {
    print_one(results.front(), options.quick, out);
  } else {
    print_all(results, options.quick, out);
  }
  return std::ranges::all_of(results, &Verification::intact) ? ExitCode::kOk : ExitCode::kBadData;
}

}  // namespace hyperion::checkpoint
