#include "data/corpus_reader.h"

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "data/document_order.h"

namespace hyperion::data {
namespace {

// The stream of random numbers with which slots are drawn; document_order.cpp has the others.
constexpr uint64_t kDraws = 0xFFFFFFFF;
constexpr uint64_t kOrdered = 64;  // documents whose order is computed at once

}  // namespace

CorpusReader::CorpusReader(std::vector<CorpusFile> files, Encode encode, const StreamOptions& options,
                           TextField field)
    : files_(std::move(files)), encode_(std::move(encode)), options_(options), field_(std::move(field)) {
  std::vector<PlannedFile> planned;
  for (const CorpusFile& file : files_) {
    const bool one_block = files_.size() == 1 && file.format == CorpusFormat::kText;
    planned.push_back({file.size, !one_block && has_many_blocks(file), is_sequential(file)});
  }
  for (std::vector<CorpusPart>& parts : plan_slots(planned, options_.shuffle ? options_.window : 1))
    slots_.emplace_back().parts = std::move(parts);
}

void CorpusReader::begin_epoch(uint64_t epoch) {
  drawn_ = {.epoch = epoch, .draws = 0, .slot = 0, .at = {}};
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].at = {};
    slots_[i].bytes_after.reset();
    slots_[i].settled = false;
    settle(i);
  }
  placed_ = true;
}

void CorpusReader::seek(const StreamPosition& position, uint64_t seed) {
  options_.seed = seed;
  for (Slot& slot : slots_) {
    slot.bytes_after.reset();
    slot.settled = false;
  }
  if (position.slots.empty()) {
    placed_ = false;
    drawn_ = {.epoch = position.epoch, .draws = 0, .slot = 0, .at = {}};
    return;
  }
  if (position.slots.size() != slots_.size())
    throw_data(
        "data position: its order has {} slots, but these data with training.shuffle_window {} have {}: "
        "start the data from their beginning with --checkpoint.exclude_from_loading=dataloader",
        position.slots.size(), options_.window, slots_.size());
  drawn_ = {position.epoch, position.draws, position.slot, {}};
  for (size_t i = 0; i < slots_.size(); ++i) {
    const SlotPosition& at = position.slots[i];
    if (at.part > slots_[i].parts.size())
      throw_data("data position: file {} of {} files: the data changed since it was saved", at.part,
                 slots_[i].parts.size());
    slots_[i].at = at;
    settle(i);
  }
  if (position.draws > 0 && slots_[position.slot].at.part == slots_[position.slot].parts.size())
    throw_data("data position: there is no document where it points: the data changed since it was saved");
  drawn_.at = slots_[position.slot].at;
  placed_ = true;
}

std::optional<DrawnDocument> CorpusReader::draw(bool one_epoch) {
  if (!placed_) {
    begin_epoch(drawn_.epoch);
  } else if (drawn_.draws > 0) {
    ++slots_[drawn_.slot].at.document;
    settle(drawn_.slot);
  }
  const auto total_weight = [&] {
    uint64_t total = 0;
    for (const Slot& slot : slots_) total += slot.weight;
    return total;
  };
  uint64_t total = total_weight();
  if (total == 0) {
    if (one_epoch) return std::nullopt;
    begin_epoch(drawn_.epoch + 1);
    total = total_weight();
    if (total == 0)
      throw_data("dataset {} ({} files): holds no document", files_[0].path.string(), files_.size());
  }
  uint64_t chosen = 0;
  if (slots_.size() > 1) {
    const PhiloxBlock random = philox4x32(options_.seed, drawn_.draws, drawn_.epoch << 32 | kDraws);
    uint64_t left = scaled(total, uint64_t{random[0]} << 32 | random[1], UINT64_MAX);
    left = std::min(left, total - 1);
    while (left >= slots_[chosen].weight) left -= slots_[chosen++].weight;
  }
  drawn_ = {drawn_.epoch, drawn_.draws + 1, chosen, slots_[chosen].at};
  return drawn_;
}

DocumentInfo CorpusReader::open() {
  Slot& slot = slots_[drawn_.slot];
  const uint64_t document = document_at(slot);
  DocumentInfo info{slot.part->file, slot.source->location(document), 0};
  bad_.clear();
  try {
    info.length = slot.source->open(document);
  } catch (const BadDocument& error) {
    if (!options_.skips_bad_documents) throw;
    bad_ = error.what();
  }
  return info;
}

uint64_t CorpusReader::document_at(Slot& slot) const {
  const uint64_t at = slot.at.document;
  if (at < slot.order_begin || at >= slot.order_begin + slot.order.size()) {
    slot.order_begin = at;
    slot.order.resize(std::min(kOrdered, slot.documents - at));
    document_order(slot.documents, slot.part->file, *slot.block, options_.seed, drawn_.epoch,
                   options_.shuffle)
        .fill(at, slot.order);
  }
  return slot.order[at - slot.order_begin];
}

void CorpusReader::settle(size_t index) {
  Slot& slot = slots_[index];
  slot.weight = 0;
  if (slot.settled && slot.at.document < slot.documents) {
    slot.weight = estimate_documents(slot);
    return;
  }
  slot.settled = false;
  while (slot.at.part < slot.parts.size()) {
    open_part(slot, index);
    if (!open_block(slot)) {
      slot.at = {.part = slot.at.part + 1};
      slot.bytes_after.reset();
    } else if (slot.at.document >= slot.documents) {
      if (slot.at.document > slot.documents)
        throw_data(
            "data position: document {} of {}, which has {} documents{}: the data changed since it was saved",
            slot.at.document, files_[slot.part->file].path.string(), slot.documents,
            slot.blocks == 1 ? "" : " there");
      slot.at = {slot.at.part, slot.at.block + 1, 0};
    } else {
      slot.settled = true;
      slot.order.clear();
      slot.weight = estimate_documents(slot);
      return;
    }
  }
  if (slot.parts.size() == 1) return;  // the next epoch reads the same part
  slot.source.reset();
  slot.part = nullptr;
}

void CorpusReader::open_part(Slot& slot, size_t index) {
  const Permutation order = part_order(slot.parts.size(), static_cast<uint32_t>(index), options_.seed,
                                       drawn_.epoch, options_.shuffle);
  const CorpusPart& part = slot.parts[order(slot.at.part)];
  if (!slot.bytes_after) {
    slot.bytes_after = 0;
    for (uint64_t later = slot.at.part + 1; later < slot.parts.size(); ++later)
      *slot.bytes_after += slot.parts[order(later)].bytes;
  }
  if (slot.part == &part) return;
  slot.part = nullptr;
  slot.source.reset();  // never two files of a slot
  slot.source = open_source(files_[part.file], encode_, field_, /*one_block=*/files_.size() == 1);
  slot.part = &part;
  slot.block.reset();
  const std::optional<uint64_t> blocks = slot.source->blocks();
  slot.blocks = blocks;
  if (blocks) {
    slot.first_block = scaled(*blocks, part.part, part.parts);
    slot.blocks = scaled(*blocks, part.part + 1, part.parts) - slot.first_block;
  } else if (part.part > 0) {
    slot.blocks = 0;  // a file that proves to be sequential is read by its first part
  }
}

bool CorpusReader::open_block(Slot& slot) {
  uint64_t block = slot.at.block;
  if (slot.blocks) {
    if (block > *slot.blocks)
      throw_data("data position: block {} of {}, which has {}: the data changed since it was saved", block,
                 files_[slot.part->file].path.string(), *slot.blocks);
    if (block == *slot.blocks) return false;
    block = slot.first_block + block_order(*slot.blocks, slot.part->file, slot.part->part, options_.seed,
                                           drawn_.epoch, options_.shuffle)(block);
  }
  if (slot.block == block) return true;
  slot.block.reset();
  const std::optional<uint64_t> documents = slot.source->open_block(block);
  if (!documents) return false;
  slot.documents = *documents;
  slot.block = block;
  return true;
}

// Extends the documents per byte of the open block to what follows it.
uint64_t CorpusReader::estimate_documents(const Slot& slot) const {
  uint64_t block_bytes = 0, bytes_after = 0;
  if (slot.blocks) {
    block_bytes = slot.part->bytes / *slot.blocks;
    bytes_after = slot.part->bytes - block_bytes * (slot.at.block + 1);
    if (slot.at.block + 1 == *slot.blocks) bytes_after = 0;
  } else {
    const uint64_t bytes =
        files_[slot.part->file].size;  // the first part of a sequential file reads all of it
    bytes_after = std::min(slot.source->bytes_after_block(), bytes);
    block_bytes = (bytes - bytes_after) / (slot.at.block + 1);
  }
  return slot.documents - slot.at.document +
         scaled(slot.documents, bytes_after + *slot.bytes_after, std::max<uint64_t>(block_bytes, 1));
}

}  // namespace hyperion::data
