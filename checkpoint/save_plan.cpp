#include "checkpoint/save_plan.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/format/dcp/archive.h"

namespace hyperion::checkpoint {
namespace {

constexpr uint32_t kNobody = std::numeric_limits<uint32_t>::max();

// Which rank holds part s as replica r of a kind: [shards * replicas] ranks.
std::vector<uint32_t> holders(const SaveLayout::Kind& kind, size_t index,
                              const std::vector<RankPlace>& places) {
  std::vector<uint32_t> ranks(static_cast<size_t>(kind.shards) * kind.replicas, kNobody);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const auto [shard, replica] = places[rank].parts.at(index);
    if (shard < 0 || shard >= kind.shards || replica < 0 || replica >= kind.replicas)
      throw_bug("save plan: rank {} says it holds part {} replica {} of {} x {}", rank, shard, replica,
                kind.shards, kind.replicas);
    uint32_t& slot = ranks[static_cast<size_t>(shard) * kind.replicas + replica];
    if (slot != kNobody)
      throw_bug("save plan: ranks {} and {} both hold part {} replica {}", slot, rank, shard, replica);
    slot = static_cast<uint32_t>(rank);
  }
  if (std::ranges::find(ranks, kNobody) != ranks.end())
    throw_bug("save plan: {} parts x {} replicas are not all held by the {} ranks", kind.shards,
              kind.replicas, places.size());
  return ranks;
}

// Archive lengths of one entry: its parts have at most three different numbers of rows.
class ArchiveLengths {
 public:
  explicit ArchiveLengths(const SaveLayout::Entry& entry) : entry_(entry) {}
  uint64_t of(int64_t rows) {
    for (const auto& [known, length] : known_)
      if (known == rows) return length;
    Dims shape = entry_.shape;
    if (!shape.empty()) shape.front() = rows;
    return known_.emplace_back(rows, tensor_archive_bytes(entry_.dtype, shape)).second;
  }

 private:
  const SaveLayout::Entry& entry_;
  std::vector<std::pair<int64_t, uint64_t>> known_;
};

uint64_t row_bytes(const SaveLayout::Entry& entry) {
  uint64_t bytes = size_of(entry.dtype);
  for (size_t i = 1; i < entry.shape.size(); ++i) bytes *= static_cast<uint64_t>(entry.shape[i]);
  return bytes;
}

// Puts the rank that writes each piece where the number of its part stands. Of replicas the first one writes,
// or they share: the largest pieces are given out first, each to the one with the least so far, so that files
// come out equal.
void assign_writers(const SaveLayout& layout, const std::vector<std::vector<uint32_t>>& held, Writers writers,
                    SavePlan& plan) {
  std::vector<uint64_t> load(plan.file_bytes.size());
  std::vector<SaveItem*> shared;
  const auto replicas = [&](const SaveItem& item) {
    const uint32_t kind = layout.entries[item.entry].kind;
    const int count = layout.kinds[kind].replicas;
    return std::span(held[kind])
        .subspan(static_cast<size_t>(item.writer) * static_cast<size_t>(count), static_cast<size_t>(count));
  };
  const auto give = [&](SaveItem& item, uint32_t rank) {
    item.writer = rank;
    load[rank] += item.length;
  };
  for (SaveItem& item : plan.items) {
    const auto ranks = replicas(item);
    if (ranks.size() == 1 || writers == Writers::kOneReplica) {
      give(item, ranks.front());
    } else {
      shared.push_back(&item);
    }
  }
  std::ranges::stable_sort(shared, std::greater(), [](const SaveItem* item) { return item->length; });
  for (SaveItem* item : shared) {
    const auto ranks = replicas(*item);
    give(*item, *std::ranges::min_element(ranks, {}, [&](uint32_t rank) { return load[rank]; }));
  }
}

}  // namespace

SaveLayout save_layout(const std::vector<TensorState>& tensors) {
  SaveLayout layout;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorState& tensor = tensors[i];
    const SaveLayout::Kind kind{tensor.placement.shards, tensor.placement.replicas};
    auto found = std::ranges::find(layout.kinds, kind);
    if (found == layout.kinds.end()) found = layout.kinds.insert(found, kind);
    SaveLayout::Entry entry{tensor.key,
                            tensor.path,
                            tensor.dtype,
                            tensor.shape,
                            static_cast<uint32_t>(found - layout.kinds.begin()),
                            static_cast<uint32_t>(i)};
    layout.entries.push_back(entry);
    for (const std::string& alias : tensor.aliases) {
      entry.key = alias;
      entry.path = {alias};
      layout.entries.push_back(entry);
    }
  }
  return layout;
}

uint64_t SaveLayout::fingerprint() const {
  std::string text;
  for (const Kind& kind : kinds) text += fmt::format("{}x{};", kind.shards, kind.replicas);
  for (const Entry& entry : entries) {
    text += fmt::format("{}|{}|{}|", entry.key, static_cast<int>(entry.dtype), entry.kind);
    for (const int64_t extent : entry.shape) text += fmt::format("{},", extent);
    text += '\n';
  }
  return hash_text(text);
}

std::string RankPlace::to_text() const {
  std::string text;
  for (const auto& [shard, replica] : parts)
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", shard, replica);
  return text;
}

RankPlace RankPlace::from_text(const std::string& text) {
  RankPlace place;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int shard = 0, replica = 0;
    const auto first = std::from_chars(at, end, shard);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != ':')
      throw_bug("save plan: bad place '{}'", text);
    const auto second = std::from_chars(first.ptr + 1, end, replica);
    if (second.ec != std::errc()) throw_bug("save plan: bad place '{}'", text);
    place.parts.emplace_back(shard, replica);
    at = second.ptr == end ? end : second.ptr + 1;
  }
  return place;
}

RankPlace rank_place(const SaveLayout& layout, const std::vector<TensorState>& tensors) {
  RankPlace place;
  place.parts.resize(layout.kinds.size());
  for (const SaveLayout::Entry& entry : layout.entries) {
    const Placement& placement = tensors[entry.tensor].placement;
    place.parts[entry.kind] = {placement.shard, placement.replica};
  }
  return place;
}

std::vector<SaveItem> SavePlan::of_rank(int rank) const {
  std::vector<SaveItem> own;
  std::ranges::copy_if(items, std::back_inserter(own),
                       [&](const SaveItem& item) { return item.writer == static_cast<uint32_t>(rank); });
  return own;  // offsets grow with the order of items
}

SavePlan make_save_plan(const SaveLayout& layout, const std::vector<RankPlace>& places, Writers writers) {
  std::vector<std::vector<uint32_t>> held;
  for (size_t k = 0; k < layout.kinds.size(); ++k) held.push_back(holders(layout.kinds[k], k, places));
  SavePlan plan;
  plan.file_bytes.resize(places.size());
  size_t pieces = 0;
  for (const SaveLayout::Entry& entry : layout.entries)
    pieces += static_cast<size_t>(layout.kinds[entry.kind].shards);
  plan.items.reserve(pieces);
  for (size_t e = 0; e < layout.entries.size(); ++e) {
    const SaveLayout::Entry& entry = layout.entries[e];
    const SaveLayout::Kind& kind = layout.kinds[entry.kind];
    const uint64_t per_row = row_bytes(entry);
    if (per_row == 0) continue;
    ArchiveLengths lengths(entry);
    for (int shard = 0; shard < kind.shards; ++shard) {
      const Rows rows = entry.shape.empty() ? Rows{0, 1} : rows_of(entry.shape.front(), kind.shards, shard);
      if (rows.count == 0) continue;
      plan.items.push_back({static_cast<uint32_t>(e), static_cast<uint32_t>(shard), rows.begin, rows.count, 0,
                            lengths.of(rows.count)});
      plan.data_bytes += per_row * static_cast<uint64_t>(rows.count);
    }
  }
  assign_writers(layout, held, writers, plan);
  for (SaveItem& item : plan.items) {
    item.offset = plan.file_bytes[item.writer];
    plan.file_bytes[item.writer] += item.length;
  }
  return plan;
}

std::string shard_file_name(int rank) {
  return fmt::format("__{}_0.distcp", rank);
}

Dims item_shape(const SaveLayout& layout, const SaveItem& item) {
  Dims shape = layout.entries[item.entry].shape;
  if (!shape.empty()) shape.front() = item.rows;
  return shape;
}

CheckpointIndex index_of(const SaveLayout& layout, const SavePlan& plan) {
  CheckpointIndex index;
  std::vector<std::string> files;  // by rank
  for (size_t rank = 0; rank < plan.file_bytes.size(); ++rank)
    files.push_back(shard_file_name(static_cast<int>(rank)));
  auto item = plan.items.begin();
  for (size_t e = 0; e < layout.entries.size(); ++e) {
    const SaveLayout::Entry& entry = layout.entries[e];
    index.paths.try_emplace(entry.key, entry.path);
    TensorRecord& record =
        index.tensors.try_emplace(entry.key, TensorRecord{entry.dtype, entry.shape, {}}).first->second;
    for (; item != plan.items.end() && item->entry == e; ++item) {
      Dims offset(entry.shape.size(), 0);
      if (!offset.empty()) offset.front() = item->first_row;
      record.chunks.push_back(
          {std::move(offset), item_shape(layout, *item), {files[item->writer], item->offset, item->length}});
    }
  }
  return index;
}

}  // namespace hyperion::checkpoint
