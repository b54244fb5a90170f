// Writes safetensors files that Hugging Face's libraries load: where every byte goes is planned first, so
// that one process can stream tensors and many can each write their own rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/types/dtype.h"
#include "checkpoint/types/index.h"

namespace hyperion {

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
// within a file wider elements come first, so that each tensor is aligned to its elements. `notes` stand in
// the __metadata__ of every file. No I/O, no collectives. Throws Error(kBadData) for a dtype, name or note
// that the format does not have.
SafetensorsPlan plan_safetensors(const std::vector<NamedTensor>& tensors,
                                 uint64_t max_file_bytes = kSafetensorsFileBytes,
                                 const std::map<std::string, std::string>& notes = {});

// Writes a planned folder from one process. Files have temporary names until finish(); an unfinished writer
// removes them. Throws Error(kSaveFailed) naming file and errno, and Error(kUsage) for a folder that already
// holds safetensors.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path folder, SafetensorsPlan plan);  // makes the folder
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Bytes [offset, offset + bytes.size()) of a tensor (row-major, little-endian), in any order, each once.
  void write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  // Makes everything durable, renames, and writes the index last.
  void finish();

 private:
  class TemporaryFile;

  std::filesystem::path folder_;
  SafetensorsPlan plan_;
  std::vector<std::unique_ptr<TemporaryFile>> files_;  // by number in the plan
  uint64_t missing_ = 0;                               // bytes of tensors not yet written
};

}  // namespace hyperion
