// Writes safetensors files that Hugging Face's libraries load. The position of every byte is planned first,
// so that one process can stream tensors, or many can each write their own rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/types/dtype.h"
#include "checkpoint/types/index.h"

namespace hyperion::checkpoint {

struct SafetensorsPlan {
  struct File {
    std::string name;    // "model.safetensors" or "model-00001-of-00003.safetensors"
    std::string header;  // beginning of the file; the data follows, 8-aligned
    uint64_t bytes = 0;  // header and data
  };
  struct Place {
    size_t file = 0;      // index in `files`
    uint64_t offset = 0;  // position in the file
    uint64_t bytes = 0;
  };
  std::vector<File> files;
  std::vector<Place> places;  // one per tensor, in the order of plan_safetensors()' argument
  std::string index;          // the text of model.safetensors.index.json; empty for a single file
};

constexpr uint64_t kSafetensorsFileBytes = 5'000'000'000;  // maximum per file, as in Hugging Face's libraries

// Assigns tensors to files in order, up to max_file_bytes each (a larger tensor gets its own file). Within
// a file wider elements come first, so that each tensor is aligned to its elements. `notes` go into the
// __metadata__ of every file. No I/O, no collectives. Throws Error(kBadData) for a dtype, name or note that
// the format does not support.
SafetensorsPlan plan_safetensors(const std::vector<NamedTensor>& tensors,
                                 uint64_t max_file_bytes = kSafetensorsFileBytes,
                                 const std::map<std::string, std::string>& notes = {});

// Creates the files of a plan in `folder`, with headers and sizes, and the index. One process calls it,
// before any writer. An existing entry of such a name is an error. Error(kSaveFailed) names file and errno.
void create_safetensors(const std::filesystem::path& folder, const SafetensorsPlan& plan);

// Writes tensors into the files of create_safetensors(). Any number of processes may write, each different
// bytes. Throws Error(kSaveFailed) naming file and errno.
class SafetensorsWriter {
 public:
  class File;
  SafetensorsWriter(const std::filesystem::path& folder, SafetensorsPlan plan);
  ~SafetensorsWriter();

  // Writes bytes [offset, offset + bytes.size()) of a tensor (row-major, little-endian), in any order.
  void write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  // Returns when all written bytes are on disk; the folder's entries are not, see sync_folder().
  void sync();

 private:
  SafetensorsPlan plan_;
  std::vector<File> files_;  // indexed like the plan's
};

}  // namespace hyperion::checkpoint
