// The place of a document, kept as two numbers and put into words when a message needs it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace hyperion::data {

struct CorpusFile;

struct DocumentPlace {
  const CorpusFile* file = nullptr;  // of a loader's or reader's list, which must outlive this; null: none
  uint64_t location = 0;             // see BlockFile::location()

  // "file:line" (see describe_location()); "padding" without a file.
  std::string describe() const;
  bool operator==(const DocumentPlace&) const = default;
};

// The documents of a sequence, or of several.
struct PlaceRange {
  DocumentPlace first, last;

  // "file:location", or the first and the last as "file:location..file:location".
  std::string describe() const;
  bool operator==(const PlaceRange&) const = default;
};

// The ranges, separated by commas.
std::string describe(std::span<const PlaceRange> ranges);

}  // namespace hyperion::data
