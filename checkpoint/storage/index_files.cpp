#include "checkpoint/storage/index_files.h"

#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/printable.h"
#include "checkpoint/storage/manifest.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

// Parses R of "__R.metadata" and of "__R_N.distcp".
std::optional<uint32_t> rank_of(std::string_view name) {
  uint32_t rank = 0;
  if (!name.starts_with("__")) return {};
  const auto [end, error] = std::from_chars(name.data() + 2, name.data() + name.size(), rank);
  const std::string_view rest = name.substr(static_cast<size_t>(end - name.data()));
  const bool known = rest == ".metadata" || (rest.starts_with('_') && rest.ends_with(".distcp"));
  return error == std::errc() && known ? std::optional(rank) : std::nullopt;
}

}  // namespace

std::vector<std::string> find_index_files(const fs::path& path) {
  if (name_exists(path / ".metadata") || name_exists(path / kManifestFile)) return {".metadata"};
  if (!is_folder(path)) return {};
  std::map<uint32_t, std::string> files;  // rank -> one of its files
  bool of_ranks = false, safetensors = false;
  for (const fs::path& entry : list_folder(path)) {
    const std::string name = entry.filename().native();
    safetensors |= entry.extension() == ".safetensors";
    const std::optional<uint32_t> rank = rank_of(name);
    if (!rank) continue;
    files.emplace(*rank, name);
    of_ranks |= name.ends_with(".metadata");
  }
  if (files.empty() || (safetensors && !of_ranks)) return {};
  if (!of_ranks)
    throw_data(
        "{}: is missing: {} is of a checkpoint in DCP format, whose index this file is; the save did not "
        "end, or the file was left behind when the others were copied",
        printable(path / ".metadata"), files.begin()->second);
  std::vector<std::string> index;
  for (uint32_t rank = 0; rank <= files.rbegin()->first; ++rank) {
    index.push_back(fmt::format("__{}.metadata", rank));
    if (!name_exists(path / index.back()))
      throw_data(
          "{}: is missing: each rank of this save has an index of its own (use_collectives=False), and {} is "
          "here; copy the files of all ranks into one folder, or remove what another save left there",
          printable(path / index.back()), files.lower_bound(rank)->second);
  }
  return index;
}

bool has_index_file(const fs::path& folder) {
  if (name_exists(folder / ".metadata")) return true;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".metadata" && rank_of(it->path().filename().native())) return true;
  return false;
}

}  // namespace hyperion::checkpoint
