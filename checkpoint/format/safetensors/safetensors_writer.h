// Writes safetensors files that Hugging Face's libraries load: where every byte goes is planned first, so
// that one process can stream tensors and many can each write their own rows.
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
    std::string header;  // what the file begins with; the data begins 8-aligned after it
    uint64_t bytes = 0;  // header and data
  };
  struct Place {
    size_t file = 0;      // in `files`
    uint64_t offset = 0;  // in the file
    uint64_t bytes = 0;
  };
  std::vector<File> files;
  std::vector<Place> places;  // one per tensor, in the order given
  std::string index;          // the text of model.safetensors.index.json; empty for a single file
};

constexpr uint64_t kSafetensorsFileBytes = 5'000'000'000;  // of tensors in one file, as Hugging Face has it

// Fills files in the given order up to max_file_bytes of tensors (a larger tensor has a file of its own);
// within a file wider elements come first, so that each tensor is aligned to its elements. `notes` go
// into the __metadata__ of every file. No I/O, no collectives. Throws Error(kBadData) for a dtype, name or
// note that the format does not have.
SafetensorsPlan plan_safetensors(const std::vector<NamedTensor>& tensors,
                                 uint64_t max_file_bytes = kSafetensorsFileBytes,
                                 const std::map<std::string, std::string>& notes = {});

// Makes the files of a plan in `folder`, with their headers and sizes, and the index; by one process, before
// any writer. What has one of their names is an error. Error(kSaveFailed) names file and errno.
void create_safetensors(const std::filesystem::path& folder, const SafetensorsPlan& plan);

// Writes tensors into the files that create_safetensors() has made. Any number of processes may write, each
// other bytes. Throws Error(kSaveFailed) naming file and errno.
class SafetensorsWriter {
 public:
  class File;
  SafetensorsWriter(const std::filesystem::path& folder, SafetensorsPlan plan);
  ~SafetensorsWriter();

  // Bytes [offset, offset + bytes.size()) of a tensor (row-major, little-endian), in any order.
  void write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  // What was written is on disk when it returns; the folder's entries are not, see sync_folder().
  void sync();

 private:
  SafetensorsPlan plan_;
  std::vector<File> files_;  // by number in the plan
};

}  // namespace hyperion::checkpoint
