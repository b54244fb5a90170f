#include "checkpoint/save_plan.h"

#include <algorithm>
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

SaveLayout::Kind kind_of(const Placement& placement) {
  SaveLayout::Kind kind{placement.cuts, placement.replicas, placement.home};
  for (Cut& cut : kind.cuts) cut.index = 0;
  return kind;
}

std::string describe_held(const std::optional<HeldPart>& held) {
  return held ? fmt::format("{}:{}", held->part, held->replica) : "-";
}

int count_parts(std::span<const Cut> cuts) {
  int64_t parts = 1;
  for (const Cut& cut : cuts) parts *= cut.parts;
  return static_cast<int>(parts);
}

// Which rank holds part p as replica r of a kind: [parts * replicas] ranks.
std::vector<uint32_t> holders_of(const SaveLayout::Kind& kind, size_t index,
                                 const std::vector<RankPlace>& places) {
  const int parts = kind.parts();
  std::vector<uint32_t> ranks(static_cast<size_t>(parts) * kind.replicas, kNobody);
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const std::optional<HeldPart>& held = places[rank].parts.at(index);
    if (!held) continue;
    const auto [part, replica] = *held;
    if (part < 0 || part >= parts || replica < 0 || replica >= kind.replicas)
      throw_bug("save plan: rank {} says it holds part {} replica {} of {} x {}", rank, part, replica, parts,
                kind.replicas);
    uint32_t& slot = ranks[static_cast<size_t>(part) * kind.replicas + replica];
    if (slot != kNobody)
      throw_bug("save plan: ranks {} and {} both hold part {} replica {}", slot, rank, part, replica);
    slot = static_cast<uint32_t>(rank);
  }
  if (std::ranges::find(ranks, kNobody) != ranks.end())
    throw_bug("save plan: {} parts x {} replicas are not all held by the {} ranks", parts, kind.replicas,
              places.size());
  return ranks;
}

// Parts of an entry with consecutive numbers and archives of equal length. Few describe an entry, however
// many parts it has: a cut makes equal parts, then one of what is left, then empty ones.
struct PartRun {
  uint32_t entry = 0;
  int first_part = 0, parts = 0;
  uint64_t length = 0;  // of each part's archive
};

// Appends those of the parts that `cuts` make of a tensor of `shape`; `first`: the number of the first part.
void add_runs(uint32_t entry, Dtype dtype, Dims shape, std::span<const Cut> cuts, int first,
              std::vector<PartRun>& runs) {
  if (std::ranges::find(shape, 0) != shape.end()) return;
  if (cuts.empty()) return runs.push_back({entry, first, 1, tensor_archive_bytes(dtype, shape)});
  const Cut& cut = cuts.front();
  const std::span<const Cut> rest = cuts.subspan(1);
  const int inner = count_parts(rest);  // parts that the other cuts make of one of this one
  int64_t& extent = shape[static_cast<size_t>(cut.dim)];
  const int64_t each = chunk_of(extent, cut.parts, 0).count, left = extent % each;
  const int whole = static_cast<int>(extent / each);
  const size_t begin = runs.size();
  extent = each;
  add_runs(entry, dtype, shape, rest, first, runs);
  const size_t end = runs.size();
  if (end - begin == 1 && runs[begin].parts == inner) {
    runs[begin].parts *= whole;
  } else {
    for (int i = 1; i < whole; ++i) {
      for (size_t run = begin; run < end; ++run) {
        runs.push_back(runs[run]);
        runs.back().first_part += i * inner;
      }
    }
  }
  if (left == 0) return;
  extent = left;
  add_runs(entry, dtype, shape, rest, first + whole * inner, runs);
}

std::vector<PartRun> runs_of(const SaveLayout& layout) {
  std::vector<PartRun> runs;
  for (size_t e = 0; e < layout.entries.size(); ++e) {
    const SaveLayout::Entry& entry = layout.entries[e];
    add_runs(static_cast<uint32_t>(e), entry.dtype, entry.shape, layout.kinds[entry.kind].cuts, 0, runs);
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

bool is_number(const SaveLayout::Entry& entry) {
  return whole_box(entry.shape).numel() == 1;
}

bool shares(const SaveLayout& layout, const SavePlan& plan, const PartRun& run) {
  const SaveLayout::Entry& entry = layout.entries[run.entry];
  return plan.replicas_share && layout.kinds[entry.kind].replicas > 1 && !is_number(entry);
}

// Replicas share their pieces: the largest ones are given out first, each to the replica with the least so
// far, so that files come out equal.
void share_pieces(const SaveLayout& layout, const std::vector<PartRun>& runs, SavePlan& plan) {
  struct SharedRun {
    const PartRun* run;
    size_t first_writer;  // index into shared_writers
  };
  std::vector<SharedRun> shared;
  std::vector<uint64_t> load(plan.file_bytes.size());
  size_t pieces = 0;
  for (const PartRun& run : runs) {
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
void visit_items(const SaveLayout& layout, const std::vector<PartRun>& runs, const SavePlan& plan,
                 std::vector<uint64_t>& file_bytes, const Visit& visit) {
  size_t shared = 0;
  for (const PartRun& run : runs) {
    const bool is_shared = shares(layout, plan, run);
    for (int part = run.first_part; part < run.first_part + run.parts; ++part) {
      const uint32_t writer =
          is_shared ? plan.shared_writers[shared++] : replicas_of(layout, plan, run.entry, part).front();
      visit(SaveItem{run.entry, writer, static_cast<uint32_t>(part), file_bytes[writer], run.length});
      file_bytes[writer] += run.length;
    }
  }
}

}  // namespace

std::optional<HeldPart> held_part(const Placement& placement) {
  if (!placement.here) return std::nullopt;
  int64_t part = 0;
  for (const Cut& cut : placement.cuts) part = part * cut.parts + cut.index;
  return HeldPart{static_cast<int>(part), placement.replica};
}

int SaveLayout::Kind::parts() const {
  return count_parts(cuts);
}

SaveLayout save_layout(const std::vector<TensorState>& tensors) {
  SaveLayout layout;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorState& tensor = tensors[i];
    tensor.box();  // its cuts can be applied to it
    const SaveLayout::Kind kind = kind_of(tensor.placement);
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
  std::ranges::stable_partition(layout.entries, is_number);
  return layout;
}

uint64_t SaveLayout::fingerprint() const {
  std::string text;
  for (const Kind& kind : kinds) {
    for (const Cut& cut : kind.cuts) text += fmt::format("{}/{},", cut.dim, cut.parts);
    text += fmt::format("x{}@{};", kind.replicas, kind.home);
  }
  for (const Entry& entry : entries) {
    text += fmt::format("{}|{}|{}|", entry.key, static_cast<int>(entry.dtype), entry.kind);
    for (const int64_t extent : entry.shape) text += fmt::format("{},", extent);
    text += '\n';
  }
  return hash_text(text);
}

std::string RankPlace::to_text() const {
  std::string text;
  for (const std::optional<HeldPart>& held : parts) text += (text.empty() ? "" : " ") + describe_held(held);
  return text;
}

RankPlace rank_place(const SaveLayout& layout, const std::vector<TensorState>& tensors) {
  RankPlace place;
  place.parts.resize(layout.kinds.size());
  std::vector<bool> known(layout.kinds.size());
  for (const SaveLayout::Entry& entry : layout.entries) {
    const std::optional<HeldPart> held = held_part(tensors[entry.tensor].placement);
    std::optional<HeldPart>& of_kind = place.parts[entry.kind];
    if (known[entry.kind] && of_kind != held)
      throw_bug("save plan: this rank holds {} of {}, but {} of tensors that are placed like it",
                describe_held(held), entry.key, describe_held(of_kind));
    of_kind = held;
    known[entry.kind] = true;
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
  const std::vector<PartRun> runs = runs_of(layout);
  for (const SaveLayout::Entry& entry : layout.entries)
    plan.data_bytes += static_cast<uint64_t>(whole_box(entry.shape).numel()) * size_of(entry.dtype);
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

Box item_box(const SaveLayout& layout, const SaveItem& item) {
  const SaveLayout::Entry& entry = layout.entries[item.entry];
  std::vector<Cut> cuts = layout.kinds[entry.kind].cuts;
  int64_t part = item.part;
  for (size_t i = cuts.size(); i-- > 0; part /= cuts[i].parts) cuts[i].index = part % cuts[i].parts;
  return box_of(entry.shape, cuts);
}

}  // namespace hyperion::checkpoint
