#include "checkpoint/save_job.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <numeric>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/failpoint.h"
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

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

struct PlacedObject {
  std::string key;
  KeyPath path;
  Span where;
};

// What one rank has written.
struct Written {
  std::optional<FileRecord> file;
  std::vector<PlacedObject> objects;
  std::vector<EncodedObject> forwarded;  // for rank 0 to write
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
    // In pieces so small that the scan for NaN and the copy find them in the first-level cache, where the
    // checksum has brought them: that saves more time than the scan takes.
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

void append_object(const EncodedObject& object, const std::string& name, ShardWriter& file,
                   std::vector<PlacedObject>& placed) {
  placed.push_back({object.key, object.path, {name, file.position(), object.archive.size()}});
  file.append(object.archive.data(), object.archive.size());
}

// This rank's file, not closed yet; null when it has nothing to write.
std::unique_ptr<ShardWriter> write_own_file(const SaveJob& job, ItemReader& items, const fs::path& incoming,
                                            int rank, Written& written, NotFinite& not_finite) {
  const std::vector<SaveItem>& own = job.plan->own;
  if (own.empty() && job.few_files && rank != 0) {
    written.forwarded = job.objects;
    return nullptr;
  }
  if (own.empty() && job.objects.empty()) return nullptr;
  const std::string name = shard_file_name(rank);
  const std::vector<uint64_t>& bytes = job.plan->file_bytes;
  auto file = std::make_unique<ShardWriter>(incoming, name, rank,
                                            std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}));
  for (size_t i = 0; i < own.size(); ++i) {
    write_item(*job.layout, own[i], items, *file, not_finite);
    if (i == own.size() / 2) failpoint("ckpt.mid_data");
  }
  for (const EncodedObject& object : job.objects) append_object(object, name, *file, written.objects);
  return file;
}

std::string to_hex(const std::string& bytes) {
  return fmt::format("{:02x}", fmt::join(std::as_bytes(std::span(bytes)), ""));
}

std::string from_hex(const std::string& text) {
  std::string bytes(text.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

Json path_to_json(const KeyPath& path) {
  Json parts = Json::array();
  for (const auto& part : path) std::visit([&](const auto& value) { parts.push_back(value); }, part);
  return parts;
}

KeyPath path_from_json(const Json& parts) {
  KeyPath path;
  for (const Json& part : parts) {
    if (part.is_string())
      path.emplace_back(part.get<std::string>());
    else
      path.emplace_back(part.get<int64_t>());
  }
  return path;
}

// Rank 0 keeps its own list of objects, which is long, to itself.
std::string to_text(const Written& written, int rank) {
  Json json = {{"what", "written"}};
  if (written.file) json["file"] = Json::parse(to_json(*written.file));
  if (rank != 0) {
    for (const PlacedObject& object : written.objects)
      json["objects"].push_back(
          {object.key, path_to_json(object.path), object.where.offset, object.where.length});
    for (const EncodedObject& object : written.forwarded)
      json["forwarded"].push_back({object.key, path_to_json(object.path), to_hex(object.archive)});
  }
  return json.dump();
}

Written from_text(const std::string& text, int rank) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("what", "") != "written")
    throw_bug("save: rank {} sent something else than its result: {}", rank, text.substr(0, 200));
  Written written;
  if (json.contains("file")) written.file = file_record_from_json(json.at("file").dump());
  for (const Json& object : json.value("objects", Json::array()))
    written.objects.push_back(
        {object.at(0), path_from_json(object.at(1)), {shard_file_name(rank), object.at(2), object.at(3)}});
  for (const Json& object : json.value("forwarded", Json::array()))
    written.forwarded.push_back({object.at(0), path_from_json(object.at(1)), from_hex(object.at(2))});
  return written;
}

// Rank 0: the objects that other ranks sent go into its file.
void finish_file(ShardWriter& file, std::vector<Written>& all) {
  for (Written& written : all)
    for (const EncodedObject& object : written.forwarded)
      append_object(object, shard_file_name(0), file, all[0].objects);
  all[0].file = file.close();
}

// Rank 0: the index, then the manifest, both on disk when it returns.
void write_index(const SaveJob& job, const std::vector<Written>& all, const fs::path& incoming) {
  failpoint("ckpt.before_meta");
  CheckpointIndex index;  // the tensors are the plan's
  index.save_id = job.save_id;
  Manifest manifest;
  manifest.save_id = job.save_id;
  manifest.step = job.step;
  manifest.world_size = static_cast<int>(all.size());
  manifest.kind = job.kind;
  manifest.unix_time = static_cast<int64_t>(std::time(nullptr));
  manifest.facts = job.facts;
  if (const auto found = job.facts.find("config_hash"); found != job.facts.end())
    manifest.config_hash = found->second;
  if (const auto found = job.facts.find("version"); found != job.facts.end()) manifest.writer = found->second;
  for (const Written& written : all) {
    if (written.file) manifest.files.push_back(*written.file);
    for (const PlacedObject& object : written.objects) {
      index.objects[object.key] = {object.where};
      index.paths[object.key] = object.path;
    }
  }
  ShardWriter metadata(incoming, ".metadata", 0);
  encode_save_index(*job.layout, *job.plan, index,
                    [&](std::string_view piece) { metadata.append(piece.data(), piece.size()); });
  manifest.files.push_back(metadata.close());
  ShardWriter file(incoming, kManifestFile, 0);
  const std::string text = to_json(manifest);
  file.append(text.data(), text.size());
  file.close();
  failpoint("ckpt.after_meta");
}

// Which file this rank reads back: that of the same rank on the next node, or the next rank's on one node, so
// that no rank reads from its own page cache.
int rank_to_verify(int rank, int size, int ranks_per_node) {
  return (rank + (size > ranks_per_node ? ranks_per_node : 1)) % size;
}

// Of what the manifest on disk lists, this rank's share; rank 0 also the index.
void read_back(const SaveJob& job, const fs::path& path, int rank, int size) {
  const Manifest manifest = read_manifest(path);
  const std::string name = shard_file_name(rank_to_verify(rank, size, job.ranks_per_node));
  for (const FileRecord& file : manifest.files)
    if (file.name == name || (rank == 0 && file.name == ".metadata")) verify_file(path, file);
}

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
                            Coordinator& ranks) {
  const int rank = ranks.rank();
  const bool lead = rank == 0;
  const fs::path incoming = folder.incoming(job.save_id);
  SaveReport report;
  report.step = job.step;
  report.kind = job.kind;

  // Every rank writes its file. Rank 0 leaves its own open for what others may send. Numbers that are not
  // finite decide before all else: no other disk would help.
  Clock::time_point begin;
  Written own;
  std::unique_ptr<ShardWriter> file;
  std::vector<Written> all;  // by rank; on rank 0 alone
  try {
    std::vector<std::string> texts = collectively(ranks, [&] {
      items.stage();
      begin = Clock::now();
      NotFinite not_finite;
      std::exception_ptr failure;
      try {
        run_save_part([&] {
          failpoint("ckpt.before_data");
          folder.begin(job.save_id, lead);
          file = write_own_file(job, items, incoming, rank, own, not_finite);
          if (file && !(lead && job.few_files)) own.file = file->close();
          failpoint("ckpt.after_data");
        });
      } catch (const Error&) {
        failure = std::current_exception();
      }
      if (!not_finite.empty()) throw Error(ExitCode::kNonFinite, not_finite.text());
      if (failure) std::rethrow_exception(failure);
      return to_text(own, rank);
    });
    report.write_seconds = seconds_since(begin);
    for (std::string& text : texts) {  // those of many ranks are long: none is kept
      all.push_back(from_text(text, static_cast<int>(all.size())));
      text = {};
    }
  } catch (const std::exception& error) {
    if (lead) folder.abandon(incoming);
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known == nullptr || known->code() != ExitCode::kNonFinite) throw;
    throw Error(ExitCode::kNonFinite, from_rank_0(ranks, [&] {
                  return explain_not_finite(job.step, error.what(), job.model_dtype, folder);
                }));
  }
  if (lead) all[0].objects = std::move(own.objects);

  // Rank 0 makes it a checkpoint.
  const Clock::time_point commit_begin = Clock::now();
  const fs::path final_path = job.commit ? folder.step_path(job.step) : incoming;
  if (!lead) failpoint("ckpt.before_commit");  // a rank that waits for rank 0
  const std::string totals = from_rank_0(ranks, [&] {
    try {
      run_save_part([&] {
        if (job.few_files && file) finish_file(*file, all);
        write_index(job, all, incoming);
        if (job.commit) folder.commit(incoming, job.step);
      });
    } catch (const Error& error) {
      folder.abandon(incoming);
      const std::string what = error.what();
      throw Error(error.code(), what.starts_with("rank 0: ") ? what : "rank 0: " + what);
    }
    uint64_t files = 0, bytes = 0;
    for (const Written& written : all) {
      if (!written.file) continue;
      ++files;
      bytes += written.file->bytes;
    }
    return fmt::format("{} {}", files, bytes);
  });
  report.commit_seconds = seconds_since(commit_begin);

  if (job.read_back) {
    const Clock::time_point verify_begin = Clock::now();
    try {
      collectively(ranks, [&] { run_save_part([&] { read_back(job, final_path, rank, ranks.size()); }); });
    } catch (const Error& error) {
      if (lead && error.code() == ExitCode::kSaveFailed) folder.discard(final_path);
      throw;
    }
    report.read_back_seconds = seconds_since(verify_begin);
  }
  if (lead && !job.commit) folder.discard(final_path);

  report.path = final_path;
  report.files = std::stoi(totals);
  report.total_bytes = std::stoull(totals.substr(totals.find(' ') + 1));
  if (const auto& written = lead ? all[0].file : own.file) report.own_bytes = written->bytes;
  return report;
}

}  // namespace hyperion::checkpoint
