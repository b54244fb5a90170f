// ckpt ls
#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/loader.h"
#include "checkpoint/state.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "checkpoint/tools/aligned_table.h"
#include "checkpoint/tools/content.h"
#include "checkpoint/tools/folders.h"
#include "checkpoint/tools/tools.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

// --- a job's folder ---

// Name -> what it is.
std::map<std::string, const char*> unrelated_entries(const fs::path& folder,
                                                     const std::vector<StepFolder>& found) {
  std::map<std::string, const char*> others;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    others[name] = name.starts_with(".incoming-") ? "a save in flight, or one that did not finish"
                   : name.starts_with(".trash-")  ? "a checkpoint that is being removed"
                                                  : "not a checkpoint of this job: never touched";
  }
  others.erase(".lock");
  for (const StepFolder& one : found) others.erase(one.path.filename().native());
  return others;
}

// Without the folder, which is on the command line.
std::string state_of(const StepFolder& one) {
  if (one.complete()) return "complete";
  const std::string folder = one.path.string() + "/";
  std::string why = one.why_not;
  for (size_t at; (at = why.find(folder)) != why.npos;) why.erase(at, folder.size());
  return why;
}

ExitCode list_job(const ListOptions& options, std::FILE* out) {
  const std::vector<StepFolder> found = CheckpointFolder(options.path).scan();
  const std::map<std::string, const char*> others = unrelated_entries(options.path, found);
  const auto newest =
      std::find_if(found.rbegin(), found.rend(), [](const auto& one) { return one.complete(); });
  const int64_t newest_step = newest == found.rend() ? -1 : newest->step;
  if (options.json) {
    Json list = Json::array();
    for (const StepFolder& one : found) {
      const FolderSize size = folder_size(one.path);
      Json item = {{"name", one.path.filename().string()},
                   {"step", one.step},
                   {"kind", text_of(one.kind)},
                   {"files", size.files},
                   {"bytes", size.bytes},
                   {"unix_time", time_of(one)},
                   {"complete", one.complete()},
                   {"newest", one.step == newest_step}};
      if (one.manifest) item["world"] = one.manifest->world_size;
      if (!one.complete()) item["problem"] = one.why_not;
      list.push_back(std::move(item));
    }
    Json names = Json::array();
    for (const auto& [name, what] : others) names.push_back({{"name", name}, {"what", what}});
    print_json({{"folder", options.path.string()}, {"checkpoints", list}, {"others", names}}, out);
    return ExitCode::kOk;
  }
  const int64_t now = std::time(nullptr);
  AlignedTable table({">step", "kind", ">world", ">files", ">size", "age", "state"});
  for (const StepFolder& one : found) {
    const FolderSize size = folder_size(one.path);
    table.add({fmt::format("{}", one.step), kind_label(one.kind),
               one.manifest ? fmt::format("{}", one.manifest->world_size) : "-", format_count(size.files),
               format_bytes(size.bytes), format_age(now - time_of(one)),
               state_of(one) + (one.step == newest_step ? ", newest" : "")});
  }
  if (found.empty())
    fmt::print(out, "{}\n", no_checkpoints(options.path));
  else
    fmt::print(out, "{}", table.text_for(out));
  // Reasons that the table shortened.
  for (const StepFolder& one : found)
    if (!one.complete()) fmt::print(out, "\n{}\n", escape_control_bytes(one.why_not, "\n"));
  if (!others.empty()) {
    AlignedTable rest({"other names", ""});
    for (const auto& [name, what] : others) rest.add({name, what});
    fmt::print(out, "\n{}", rest.text_for(out));
  }
  return ExitCode::kOk;
}

// --- one checkpoint ---

struct Component {
  uint64_t tensors = 0, elements = 0, bytes = 0, values = 0;
  std::set<std::string> dtypes;
};

std::map<std::string, Component> components_of(const CheckpointIndex& index) {
  std::map<std::string, Component> components;
  for (const auto& [key, record] : index.tensors) {
    Component& component = components[component_of(key)];
    const uint64_t bytes = bytes_of(record.dtype, record.shape);
    ++component.tensors;
    component.elements += bytes / size_of(record.dtype);
    component.bytes += bytes;
    component.dtypes.emplace(torch_name(record.dtype));
  }
  for (const auto& [key, record] : index.objects) ++components[component_of(key)].values;
  return components;
}

void print_one_json(const OpenCheckpoint& checkpoint, CheckpointKind kind, std::FILE* out) {
  Json json = {{"folder", checkpoint.folder.string()}, {"kind", text_of(kind)}};
  if (checkpoint.manifest) {
    const Manifest& manifest = *checkpoint.manifest;
    json["step"] = manifest.step;
    json["world"] = manifest.world_size;
    json["save_id"] = manifest.save_id;
    json["unix_time"] = manifest.unix_time;
    json["facts"] = manifest.facts;
    for (const FileRecord& record : manifest.files)
      json["files"].push_back({{"name", record.name}, {"bytes", record.bytes}});
  }
  for (const auto& [name, component] : components_of(checkpoint.index))
    json["components"][name] = {{"tensors", component.tensors},
                                {"elements", component.elements},
                                {"bytes", component.bytes},
                                {"dtypes", component.dtypes},
                                {"values", component.values}};
  json["tensors"] = Json::object();
  for (const auto& [key, record] : checkpoint.index.tensors) {
    Json chunks = Json::array();
    for (const Chunk& chunk : record.chunks)
      chunks.push_back({{"offset", chunk.offset},
                        {"shape", chunk.shape},
                        {"file", chunk.where.file},
                        {"at", chunk.where.offset},
                        {"length", chunk.where.length}});
    json["tensors"][key] = {
        {"dtype", torch_name(record.dtype)}, {"shape", record.shape}, {"chunks", std::move(chunks)}};
  }
  json["values"] = Json::array();
  for (const auto& [key, record] : checkpoint.index.objects) json["values"].push_back(key);
  print_json(json, out);
}

ExitCode list_one(const ListOptions& options, std::FILE* out) {
  const OpenCheckpoint checkpoint = open_checkpoint(options.path);
  const bool bare = checkpoint.index.layout == CheckpointIndex::Layout::kBareBytes;
  const CheckpointKind kind = checkpoint.manifest ? checkpoint.manifest->kind
                              : bare              ? CheckpointKind::kSafetensors
                                                  : CheckpointKind::kForeign;
  if (options.json) {
    print_one_json(checkpoint, kind, out);
    return ExitCode::kOk;
  }
  const FolderSize size = folder_size(options.path);
  fmt::print(out, "{}: {}", printable(options.path), kind_label(kind));
  if (const auto& manifest = checkpoint.manifest)
    fmt::print(out, ", step {}, by {}, {}", manifest->step,
               counted(static_cast<uint64_t>(manifest->world_size), "rank"),
               format_age(std::time(nullptr) - manifest->unix_time));
  fmt::print(out, ", {}, {}\n\n", counted(size.files, "file"), format_bytes(size.bytes));
  AlignedTable table({"component", ">tensors", ">elements", ">size", "dtypes", ">values"});
  for (const auto& [name, component] : components_of(checkpoint.index))
    table.add({name, format_count(component.tensors), format_count(component.elements),
               format_bytes(component.bytes), fmt::format("{}", fmt::join(component.dtypes, " ")),
               format_count(component.values)});
  fmt::print(out, "{}", table.text_for(out));
  return ExitCode::kOk;
}

}  // namespace

ExitCode list_checkpoints(const ListOptions& options, std::FILE* out) {
  return is_checkpoint(options.path) ? list_one(options, out) : list_job(options, out);
}

}  // namespace hyperion::checkpoint
