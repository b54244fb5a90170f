#include "checkpoint/save_plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <span>

#include <fmt/format.h>

#include "base/error.h"
#include "base/hash.h"
#include "checkpoint/format/dcp/archive.h"

namespace hyperion::checkpoint {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

SaveLayout::Kind kind_of(const Placement& placement) {
  SaveLayout::Kind kind{placement.cuts, placement.replicas, placement.pp_rank, placement.domain};
  for (Cut& cut : kind.cuts) cut.index = 0;
  return kind;
}

std::string describe_part(const std::optional<HeldPart>& held) {
  return held ? fmt::format("{}:{}", held->part, held->replica) : "-";
}

int count_parts(std::span<const Cut> cuts) {
  int64_t parts = 1;
  for (const Cut& cut : cuts) parts *= cut.parts;
  return static_cast<int>(parts);
}

// The rank that holds part p as replica r of a kind: [parts * replicas] ranks.
std::vector<uint32_t> holders_of(const SaveLayout::Kind& kind, size_t index,
                                 const std::vector<HeldParts>& by_rank) {
  const int parts = kind.parts();
  std::vector<uint32_t> ranks(static_cast<size_t>(parts) * kind.replicas, kNone);
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::optional<HeldPart>& held = by_rank[rank].at(index);
    if (!held) continue;
    const auto [part, replica] = *held;
    if (part < 0 || part >= parts || replica < 0 || replica >= kind.replicas)
      throw_bug("save plan: rank {} says it holds part {} replica {} of {} x {}", rank, part, replica, parts,
                kind.replicas);
    uint32_t& slot = ranks[static_cast<size_t>(part) * kind.replicas + replica];
    if (slot != kNone)
      throw_bug("save plan: ranks {} and {} both hold part {} replica {}", slot, rank, part, replica);
    slot = static_cast<uint32_t>(rank);
  }
  if (std::ranges::find(ranks, kNone) != ranks.end())
    throw_bug("save plan: {} parts x {} replicas are not all held by the {} ranks", parts, kind.replicas,
              by_rank.size());
  return ranks;
}

// Archive lengths by type and shape, of which a plan has few.
using ArchiveLengths = std::map<std::pair<Dtype, Dims>, uint64_t>;

// Appends the runs of the parts into which `cuts` split a tensor of `shape`; `first` is the number of the
// first part.
void add_runs(uint32_t entry, Dtype dtype, Dims shape, std::span<const Cut> cuts, int first,
              ArchiveLengths& lengths, std::vector<PartRun>& runs) {
  if (std::ranges::find(shape, 0) != shape.end()) return;
  if (cuts.empty()) {
    uint64_t& length = lengths[{dtype, shape}];
    if (length == 0) length = tensor_archive_bytes(dtype, shape);
    return runs.push_back({.entry = entry, .first_part = first, .parts = 1, .length = length});
  }
  const Cut& cut = cuts.front();
  const std::span<const Cut> rest = cuts.subspan(1);
  const int inner = count_parts(rest);  // number of parts within each part of the first cut
  int64_t& extent = shape[static_cast<size_t>(cut.dim)];
  const int64_t each = chunk_of(extent, cut.parts, 0).count, left = extent % each;
  const int n_equal = static_cast<int>(extent / each);
  const size_t begin = runs.size();
  extent = each;
  add_runs(entry, dtype, shape, rest, first, lengths, runs);
  const size_t end = runs.size();
  if (end - begin == 1 && runs[begin].parts == inner) {
    runs[begin].parts *= n_equal;
  } else {
    for (int i = 1; i < n_equal; ++i) {
      for (size_t run = begin; run < end; ++run) {
        runs.push_back(runs[run]);
        runs.back().first_part += i * inner;
      }
    }
  }
  if (left == 0) return;
  extent = left;
  add_runs(entry, dtype, shape, rest, first + n_equal * inner, lengths, runs);
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

// Shares parts among replicas: the largest parts are assigned first, each to the replica with the least
// load, so that files have equal sizes.
void share_parts(const SaveLayout& layout, SavePlan& plan) {
  std::vector<uint64_t> load(plan.file_bytes.size());
  std::vector<const PartRun*> shared;
  for (const PartRun& run : plan.runs) {
    if (run.first_writer != PartRun::kNotShared) {
      shared.push_back(&run);
      continue;
    }
    for (int i = 0; i < run.parts; ++i)
      load[replicas_of(layout, plan, run.entry, run.first_part + i).front()] += run.length;
  }
  std::ranges::stable_sort(shared, std::greater(), &PartRun::length);
  for (const PartRun* run : shared) {
    for (int i = 0; i < run->parts; ++i) {
      const auto ranks = replicas_of(layout, plan, run->entry, run->first_part + i);
      const uint32_t writer = *std::ranges::min_element(ranks, {}, [&](uint32_t rank) { return load[rank]; });
      plan.shared_writers[run->first_writer + static_cast<size_t>(i)] = writer;
      load[writer] += run->length;
    }
  }
}

template <typename Visit>
void visit_run(const SaveLayout& layout, const SavePlan& plan, const PartRun& run,
               std::vector<uint64_t>& file_bytes, const Visit& visit) {
  for (int i = 0; i < run.parts; ++i) {
    const int part = run.first_part + i;
    const uint32_t writer = run.first_writer != PartRun::kNotShared
                                ? plan.shared_writers[run.first_writer + static_cast<size_t>(i)]
                                : replicas_of(layout, plan, run.entry, part).front();
    visit(SaveItem{run.entry, writer, static_cast<uint32_t>(part), file_bytes[writer], run.length});
    file_bytes[writer] += run.length;
  }
}

}  // namespace

std::optional<HeldPart> held_part(const Placement& placement) {
  if (!placement.is_local) return std::nullopt;
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
    tensor.box();  // throws if its cuts do not fit
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
    text += fmt::format("x{}@{}{};", kind.replicas, kind.pp_rank, kind.domain == Domain::kExpert ? "e" : "");
  }
  for (const Entry& entry : entries) {
    text += fmt::format("{}|{}|{}|", entry.key, static_cast<int>(entry.dtype), entry.kind);
    for (const int64_t extent : entry.shape) text += fmt::format("{},", extent);
    text += '\n';
  }
  return hash_text(text);
}

std::string describe(const HeldParts& held) {
  std::string text;
  for (const std::optional<HeldPart>& part : held) text += (text.empty() ? "" : " ") + describe_part(part);
  return text;
}

HeldParts held_parts(const SaveLayout& layout, const std::vector<TensorState>& tensors) {
  HeldParts held(layout.kinds.size());
  std::vector<bool> known(layout.kinds.size());
  for (const SaveLayout::Entry& entry : layout.entries) {
    const std::optional<HeldPart> part = held_part(tensors[entry.tensor].placement);
    std::optional<HeldPart>& of_kind = held[entry.kind];
    if (known[entry.kind] && of_kind != part)
      throw_bug("save plan: this rank holds {} of {}, but {} of tensors that are placed like it",
                describe_part(part), entry.key, describe_part(of_kind));
    of_kind = part;
    known[entry.kind] = true;
  }
  return held;
}

SavePlan make_save_plan(const SaveLayout& layout, const std::vector<HeldParts>& by_rank, Writers writers,
                        int rank) {
  SavePlan plan;
  for (size_t k = 0; k < layout.kinds.size(); ++k)
    plan.holders.push_back(holders_of(layout.kinds[k], k, by_rank));
  plan.file_bytes.resize(by_rank.size());
  ArchiveLengths lengths;
  uint32_t n_shared = 0;
  for (uint32_t e = 0; e < layout.entries.size(); ++e) {
    const SaveLayout::Entry& entry = layout.entries[e];
    const SaveLayout::Kind& kind = layout.kinds[entry.kind];
    plan.data_bytes += static_cast<uint64_t>(whole_box(entry.shape).numel()) * size_of(entry.dtype);
    const size_t first_run = plan.runs.size();
    add_runs(e, entry.dtype, entry.shape, kind.cuts, 0, lengths, plan.runs);
    if (writers != Writers::kAll || kind.replicas == 1 || is_number(entry)) continue;
    for (PartRun& run : std::span(plan.runs).subspan(first_run)) {
      run.first_writer = n_shared;
      n_shared += static_cast<uint32_t>(run.parts);
    }
  }
  plan.runs.shrink_to_fit();
  plan.shared_writers.resize(n_shared);
  share_parts(layout, plan);
  for (const PartRun& run : plan.runs)
    visit_run(layout, plan, run, plan.file_bytes, [&](const SaveItem& item) {
      if (item.writer == static_cast<uint32_t>(rank)) plan.local_items.push_back(item);
    });
  return plan;
}

void for_each_item(const SaveLayout& layout, const SavePlan& plan, const PartRun& run,
                   std::vector<uint64_t>& file_bytes,
                   const std::function<void(const SaveItem& item)>& visit) {
  visit_run(layout, plan, run, file_bytes, visit);
}

void for_each_item(const SaveLayout& layout, const SavePlan& plan,
                   const std::function<void(const SaveItem& item)>& visit) {
  std::vector<uint64_t> file_bytes(plan.file_bytes.size());
  for (const PartRun& run : plan.runs) visit_run(layout, plan, run, file_bytes, visit);
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
