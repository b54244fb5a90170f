// A CorpusReader draws the documents of a corpus in the order of (seed, epoch) and opens them. The order is a
// function of the seed, the window and the files, so it is the same on every mesh, and nothing in memory
// grows with the corpus beyond the list of its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/shuffle_plan.h"
#include "data/sources.h"
#include "data/stream_position.h"

namespace hyperion::data {

struct StreamOptions {
  uint64_t seed = 0;
  bool shuffle = true;   // else documents are read in the order of the sorted files
  bool repeat = true;    // continue with the next epoch, in a new order; else the stream ends after the first
  uint64_t window = 64;  // training.shuffle_window: the largest number of slots, at least 1
  bool skips_bad_documents = false;  // training.on_bad_document; else they are errors
};

// An open document.
struct DocumentInfo {
  uint64_t file = 0;      // index in the corpus's list
  uint64_t location = 0;  // see BlockFile::location()
  uint64_t length = 0;    // in tokens
};

// Keeps one block of each slot open, and one document. Not thread-safe. All functions throw Error(kBadData)
// naming the file for invalid data.
class CorpusReader {
 public:
  // Begins at the first document of the order of `options.seed`.
  CorpusReader(std::vector<CorpusFile> files, Encode encode, const StreamOptions& options,
               TextField field = {});

  // Continues at `position`: its document is the one drawn last (none, if draws is 0).
  void seek(const StreamPosition& position, uint64_t seed);
  // Draws the next document, after the epoch's last one that of the next epoch; nullopt instead if
  // `one_epoch`.
  std::optional<DrawnDocument> draw(bool one_epoch = false);
  // The document drawn last.
  const DrawnDocument& drawn() const { return drawn_; }
  // Opens the document drawn last. A bad one has length 0 if they are skipped.
  DocumentInfo open();
  // The message about the open document if it is bad, else "".
  const std::string& bad() const { return bad_; }
  // Copies tokens [offset, offset + out.size()) of the open document.
  void copy(uint64_t offset, std::span<int64_t> out) const { slots_[drawn_.slot].source->copy(offset, out); }

  const std::vector<CorpusFile>& files() const { return files_; }
  const StreamOptions& options() const { return options_; }
  uint64_t slots() const { return slots_.size(); }

 private:
  struct Slot {
    std::vector<CorpusPart> parts;
    SlotPosition at;                         // the next document; of the slot drawn last, the one drawn
    uint64_t weight = 0;                     // estimated number of documents from `at` on
    std::unique_ptr<DocumentSource> source;  // of the file of the open part
    const CorpusPart* part = nullptr;        // the open part
    std::optional<uint64_t> bytes_after;     // of the parts behind the one of `at`, if computed
    uint64_t first_block = 0;                // of the open part
    std::optional<uint64_t> blocks;          // of the open part
    std::optional<uint64_t> block;           // the open block in the file
    uint64_t documents = 0;                  // in the open block
    bool settled = false;                    // the open block is that of `at`
    std::vector<uint64_t> order;             // of the open block, from the index `order_begin` on
    uint64_t order_begin = 0;
  };
  void begin_epoch(uint64_t epoch);
  // Moves from the end of a block or part to the next document, opens its block, and sets the weight.
  void settle(size_t index);
  void open_part(Slot& slot, size_t index);
  // Returns the document of the open block that `slot.at` stands for.
  uint64_t document_at(Slot& slot) const;
  // Opens the block of `slot.at` in the open part; false if the part ends before it.
  bool open_block(Slot& slot);
  uint64_t estimate_documents(const Slot& slot) const;

  std::vector<CorpusFile> files_;
  Encode encode_;
  StreamOptions options_;  // with the seed of the last seek()
  TextField field_;
  std::vector<Slot> slots_;
  bool placed_ = false;  // the slots are at their positions
  DrawnDocument drawn_;
  std::string bad_;
};

}  // namespace hyperion::data
