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
std::vector<uint32_t> holders_of(const SaveLayout::Kind& kind, size_t index,
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

uint64_t row_bytes(const SaveLayout::Entry& entry) {
  uint64_t bytes = size_of(entry.dtype);
  for (size_t i = 1; i < entry.shape.size(); ++i) bytes *= static_cast<uint64_t>(entry.shape[i]);
  return bytes;
}

// Parts of an entry that have equally many rows, one after another. An entry has at most two such runs with
// rows: rows_of() cuts equal parts, then one of what is left, then empty ones.
struct Run {
  uint32_t entry = 0;
  int first_part = 0, parts = 0;
  int64_t first_row = 0;
  int64_t rows = 0;     // of each part
  uint64_t length = 0;  // of its archive
};

std::vector<Run> runs_of(const SaveLayout& layout) {
  std::vector<Run> runs;
  for (size_t e = 0; e < layout.entries.size(); ++e) {
    const SaveLayout::Entry& entry = layout.entries[e];
    if (row_bytes(entry) == 0) continue;
    const auto add = [&](int first_part, int parts, int64_t first_row, int64_t rows) {
      Dims shape = entry.shape;
      if (!shape.empty()) shape.front() = rows;
      runs.push_back({static_cast<uint32_t>(e), first_part, parts, first_row, rows,
                      tensor_archive_bytes(entry.dtype, shape)});
    };
    const int parts = layout.kinds[entry.kind].shards;
    if (entry.shape.empty()) {
      add(0, parts, 0, 1);
      continue;
    }
    const int64_t rows = rows_of(entry.shape.front(), parts, 0).count;
    if (rows == 0) continue;
    const int whole = static_cast<int>(entry.shape.front() / rows);
    add(0, whole, 0, rows);
    if (const int64_t left = entry.shape.front() % rows; left > 0) add(whole, 1, whole * rows, left);
  }
  return runs;
}

// The ranks that hold part `part` of an entry.
std::span<const uint32_t> replicas_of(const SaveLayout& layout, const SavePlan& plan, uint32_t entry,
                                      int part) {
  const uint32_t kind = layout.entries[entry].kind;
  const auto count = static_cast<size_t>(layout.kinds[kind].replicas);
  return std::span(plan.holders[kind]).subspan(static_cast<size_t>(part) * count, count);
}

bool shares(const SaveLayout& layout, const SavePlan& plan, const Run& run) {
  return plan.replicas_share && layout.kinds[layout.entries[run.entry].kind].replicas > 1;
}

// Replicas share their pieces: the largest ones are given out first, each to the replica with the least so
// far, so that files come out equal.
void share_pieces(const SaveLayout& layout, const std::vector<Run>& runs, SavePlan& plan) {
  struct SharedRun {
    const Run* run;
    size_t first_writer;  // index into shared_writers
  };
  std::vector<SharedRun> shared;
  std::vector<uint64_t> load(plan.file_bytes.size());
  size_t pieces = 0;
  for (const Run& run : runs) {
    if (shares(layout, plan, run)) {
      shared.push_back({&run, pieces});
      pieces += static_cast<size_t>(run.parts);
    } else {
      for (int i = 0; i < run.parts; ++i)
        load[replicas_of(layout, plan, run.entry, run.first_part + i).front()] += run.length;
    }
  }
  plan.shared_writers.resize(pieces);
  std::ranges::stable_sort(shared, std::greater(), [](const SharedRun& one) { return one.run->length; });
  for (const auto& [run, first_writer] : shared) {
    for (int i = 0; i < run->parts; ++i) {
      const auto ranks = replicas_of(layout, plan, run->entry, run->first_part + i);
      const uint32_t writer = *std::ranges::min_element(ranks, {}, [&](uint32_t rank) { return load[rank]; });
      plan.shared_writers[first_writer + static_cast<size_t>(i)] = writer;
      load[writer] += run->length;
    }
  }
}

// Calls visit(item) for every item in order. `file_bytes`: by rank, of the items so far.
template <typename Visit>
void visit_items(const SaveLayout& layout, const std::vector<Run>& runs, const SavePlan& plan,
                 std::vector<uint64_t>& file_bytes, const Visit& visit) {
  size_t shared = 0;
  for (const Run& run : runs) {
    const bool is_shared = shares(layout, plan, run);
    const int64_t step = layout.entries[run.entry].shape.empty() ? 0 : run.rows;
    for (int i = 0; i < run.parts; ++i) {
      const uint32_t writer = is_shared ? plan.shared_writers[shared++]
                                        : replicas_of(layout, plan, run.entry, run.first_part + i).front();
      const int64_t first_row = run.first_row + i * step;
      visit(SaveItem{run.entry, writer, first_row, run.rows, file_bytes[writer], run.length});
      file_bytes[writer] += run.length;
    }
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

SavePlan make_save_plan(const SaveLayout& layout, const std::vector<RankPlace>& places, Writers writers,
                        int own) {
  SavePlan plan;
  for (size_t k = 0; k < layout.kinds.size(); ++k)
    plan.holders.push_back(holders_of(layout.kinds[k], k, places));
  plan.file_bytes.resize(places.size());
  plan.replicas_share = writers == Writers::kAll;
  const std::vector<Run> runs = runs_of(layout);
  for (const Run& run : runs)
    plan.data_bytes += row_bytes(layout.entries[run.entry]) * static_cast<uint64_t>(run.rows * run.parts);
  share_pieces(layout, runs, plan);
  visit_items(layout, runs, plan, plan.file_bytes, [&](const SaveItem& item) {
    if (item.writer == static_cast<uint32_t>(own)) plan.own.push_back(item);
  });
  return plan;
}

void for_each_item(const SaveLayout& layout, const SavePlan& plan,
                   const std::function<void(const SaveItem& item)>& visit) {
  std::vector<uint64_t> file_bytes(plan.file_bytes.size());
  visit_items(layout, runs_of(layout), plan, file_bytes, visit);
}

std::string shard_file_name(int rank) {
  return fmt::format("__{}_0.distcp", rank);
}

Dims item_shape(const SaveLayout& layout, const SaveItem& item) {
  Dims shape = layout.entries[item.entry].shape;
  if (!shape.empty()) shape.front() = item.rows;
  return shape;
}

}  // namespace hyperion::checkpoint
