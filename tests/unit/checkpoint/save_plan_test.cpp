#include "checkpoint/save_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>

#include <catch2/catch.hpp>

#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/save_index.h"
#include "tests/support/encode_index.h"
#include "tests/support/placements.h"

namespace hyperion::checkpoint {
namespace {

TensorState tensor(std::string key, Dims shape, Placement placement) {
  TensorState state;
  state.key = std::move(key);
  state.path = {state.key};
  state.shape = std::move(shape);
  state.placement = std::move(placement);
  return state;
}

// replicas x shards x tensor ranks; the last of these divide some tensors before their rows are cut.
struct Mesh {
  int shards = 1, replicas = 1, tensor = 1;
  int ranks() const { return shards * replicas * tensor; }
};

// The state of a small job on such a mesh, as `rank` sees it.
std::vector<TensorState> job(const Mesh& mesh, int rank = 0) {
  const auto [shards, replicas, count] = mesh;
  const int number = rank % count, shard = rank / count % shards, replica = rank / count / shards;
  const Cut rows = {.parts = shards, .index = shard};
  const auto divided = [&](int dim) {
    return Placement{.cuts = {{.dim = dim, .parts = count, .index = number}, rows},
                     .replicas = replicas,
                     .replica = replica};
  };
  const Placement not_divided{
      .cuts = {rows}, .replicas = replicas * count, .replica = replica * count + number};
  std::vector<TensorState> tensors = {
      tensor("tok_embeddings.weight", {13, 10}, divided(0)), tensor("layers.0.wq.weight", {8, 6}, divided(0)),
      tensor("layers.0.wo.weight", {6, 9}, divided(1)), tensor("norm.weight", {2}, not_divided),
      tensor("optimizer.state.norm.weight.step", {}, test::whole_on(mesh.ranks(), rank))};
  tensors.front().aliases = {"output.weight"};
  return tensors;
}

struct Made {
  SaveLayout layout;
  SavePlan plan;
};

Made make(const Mesh& mesh, Writers writers) {
  Made made;
  made.layout = save_layout(job(mesh));
  std::vector<HeldParts> places;
  for (int rank = 0; rank < mesh.ranks(); ++rank) places.push_back(held_parts(made.layout, job(mesh, rank)));
  made.plan = make_save_plan(made.layout, places, writers, 0);
  return made;
}

std::vector<SaveItem> items_of(const SaveLayout& layout, const SavePlan& plan) {
  std::vector<SaveItem> items;
  for_each_item(layout, plan, [&](const SaveItem& item) { items.push_back(item); });
  return items;
}

// Calls visit(cuts) with every combination of the cuts' indices, the last one's changing first.
void for_each_part(std::vector<Cut> cuts, const std::function<void(const std::vector<Cut>&)>& visit) {
  for (;;) {
    visit(cuts);
    size_t i = cuts.size();
    while (i > 0 && ++cuts[i - 1].index == cuts[i - 1].parts) cuts[--i].index = 0;
    if (i == 0) return;
  }
}

// A plan that is made as it is defined, with all items in memory: every part of every entry is a piece; a
// piece that replicas share goes, the longest first, to the replica that has the least to write so far; a
// number is the first replica's.
std::vector<SaveItem> plan_with_all_items(const SaveLayout& layout, const std::vector<HeldParts>& places,
                                          Writers writers) {
  const auto replicas_of = [&](const SaveItem& item) {
    const uint32_t kind = layout.entries[item.entry].kind;
    std::vector<uint32_t> ranks(static_cast<size_t>(layout.kinds[kind].replicas));
    for (uint32_t rank = 0; rank < places.size(); ++rank) {
      const std::optional<HeldPart>& held = places[rank][kind];
      if (held && static_cast<uint32_t>(held->part) == item.part)
        ranks[static_cast<size_t>(held->replica)] = rank;
    }
    return ranks;
  };
  std::vector<SaveItem> items;
  for (uint32_t e = 0; e < layout.entries.size(); ++e) {
    const SaveLayout::Entry& entry = layout.entries[e];
    uint32_t part = 0;
    for_each_part(layout.kinds[entry.kind].cuts, [&](const std::vector<Cut>& cuts) {
      const Box box = box_of(entry.shape, cuts);
      if (box.numel() > 0) items.push_back({e, 0, part, 0, tensor_archive_bytes(entry.dtype, box.shape)});
      ++part;
    });
  }
  std::vector<uint64_t> load(places.size()), position(places.size());
  std::vector<SaveItem*> shared;
  for (SaveItem& item : items) {
    const std::vector<uint32_t> ranks = replicas_of(item);
    const bool is_number = whole_box(layout.entries[item.entry].shape).numel() == 1;
    if (ranks.size() > 1 && writers == Writers::kAll && !is_number) {
      shared.push_back(&item);
      continue;
    }
    item.writer = ranks.front();
    load[item.writer] += item.length;
  }
  std::ranges::stable_sort(shared, std::greater(), [](const SaveItem* item) { return item->length; });
  for (SaveItem* item : shared) {
    const std::vector<uint32_t> ranks = replicas_of(*item);
    item->writer = *std::ranges::min_element(ranks, {}, [&](uint32_t rank) { return load[rank]; });
    load[item->writer] += item->length;
  }
  for (SaveItem& item : items) {
    item.offset = position[item.writer];
    position[item.writer] += item.length;
  }
  return items;
}

}  // namespace

TEST_CASE("every element of every tensor has exactly one writer on any mesh") {
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{4, 1}, Mesh{2, 2}, Mesh{1, 4}, Mesh{3, 2}, Mesh{1, 1, 4},
                           Mesh{2, 1, 2}, Mesh{2, 2, 2}, Mesh{3, 1, 5}}) {
    for (const Writers writers : {Writers::kAll, Writers::kOneReplica}) {
      const auto [layout, plan] = make(mesh, writers);
      std::vector<std::vector<int>> written;  // how often, by entry and element
      for (const SaveLayout::Entry& entry : layout.entries)
        written.emplace_back(static_cast<size_t>(whole_box(entry.shape).numel()));
      std::map<uint32_t, uint64_t> position;
      uint64_t bytes = 0;
      for (const SaveItem& item : items_of(layout, plan)) {
        const Box box = item_box(layout, item);
        for_each_run(layout.entries[item.entry].shape, box, [&](const Run& run) {
          for (int64_t i = 0; i < run.count; ++i)
            ++written[item.entry][static_cast<size_t>(run.in_tensor + i)];
        });
        CHECK(item.offset == position[item.writer]);
        CHECK(item.length == tensor_archive_bytes(Dtype::kFloat32, box.shape));
        position[item.writer] += item.length;
        bytes += 4 * static_cast<uint64_t>(box.numel());
      }
      for (const std::vector<int>& times : written)
        CHECK(std::ranges::count(times, 1) == static_cast<int64_t>(times.size()));
      CHECK(bytes == plan.data_bytes);
      CHECK(bytes == 4u * (130 + 130 + 48 + 54 + 2 + 1));
    }
  }
}

TEST_CASE("all ranks share the work or the first replica does it") {
  const auto writers_of = [](const Made& made) {
    std::set<uint32_t> writers;
    for (const SaveItem& item : items_of(made.layout, made.plan)) writers.insert(item.writer);
    return writers;
  };
  CHECK(writers_of(make({2, 2}, Writers::kAll)) == std::set<uint32_t>{0, 1, 2, 3});
  CHECK(writers_of(make({2, 2}, Writers::kOneReplica)) == std::set<uint32_t>{0, 1});
  CHECK(writers_of(make({2, 2, 2}, Writers::kOneReplica)) == std::set<uint32_t>{0, 1, 2, 3});
  // Pieces of 100, 60, 50, 40 and 10 rows over two replicas: 130 rows each, give or take the archives' own
  // bytes.
  std::vector<TensorState> tensors, others;
  for (const int64_t rows : {30, 31, 40, 60, 100}) {
    tensors.push_back(tensor(std::to_string(rows), {rows, 1000}, test::whole_on(2)));
    others.push_back(tensors.back());
    others.back().placement.replica = 1;
  }
  const SaveLayout layout = save_layout(tensors);
  const SavePlan plan =
      make_save_plan(layout, {held_parts(layout, tensors), held_parts(layout, others)}, Writers::kAll, 0);
  for (const uint64_t bytes : plan.file_bytes) CHECK(bytes == Approx(130 * 4000).epsilon(0.02));
}

TEST_CASE("what every rank reads lies together at the start of one file") {
  for (const Mesh& mesh : {Mesh{4, 1}, Mesh{2, 2}, Mesh{1, 3}, Mesh{2, 2, 2}}) {
    std::vector<std::vector<TensorState>> states;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      states.push_back(job(mesh, rank));
      for (int i = 0; i < 5; ++i)  // between large ones
        for (const auto& [name, shape] : {std::pair("step", Dims{}), {"weight", Dims{40, 50}}})
          states.back().push_back(
              tensor(std::string(name) + std::to_string(i), shape, test::whole_on(mesh.ranks(), rank)));
    }
    const SaveLayout layout = save_layout(states[0]);
    std::vector<HeldParts> places;
    for (const auto& state : states) places.push_back(held_parts(layout, state));
    uint64_t numbers = 0;
    for (const SaveItem& item : items_of(layout, make_save_plan(layout, places, Writers::kAll, 0))) {
      if (!layout.entries[item.entry].shape.empty()) continue;
      CHECK(item.writer == 0);
      CHECK(item.offset == numbers);
      numbers += item.length;
    }
    CHECK(numbers == 6 * tensor_archive_bytes(Dtype::kFloat32, {}));
  }
}

TEST_CASE("a plan that holds one rank's items is that of all items at once") {
  std::mt19937 random(7);
  const auto pick = [&](int first, int last) { return std::uniform_int_distribution(first, last)(random); };
  for (int turn = 0; turn < 300; ++turn) {
    // Two stages of ranks; each kind has as many parts x replicas as a stage has ranks.
    const int shards = pick(1, 5), replicas = pick(1, 3), count = pick(1, 4), stages = pick(1, 2);
    const int stage = shards * replicas * count, world = stage * stages;
    SaveLayout layout;
    for (int pp_rank = 0; pp_rank < stages; ++pp_rank) {
      layout.kinds.push_back({{{.parts = shards}}, replicas * count, pp_rank});
      layout.kinds.push_back({{{.parts = count}, {.parts = shards}}, replicas, pp_rank});
      layout.kinds.push_back({{{.dim = 1, .parts = count}, {.parts = shards}}, replicas, pp_rank});
    }
    const auto whole = static_cast<uint32_t>(layout.kinds.size());
    layout.kinds.push_back({{}, world, 0});
    std::vector<HeldParts> places(static_cast<size_t>(world));
    std::vector<int> ranks;  // which rank has which place
    for (int i = 0; i < world; ++i) ranks.push_back(i);
    std::ranges::shuffle(ranks, random);
    for (int i = 0; i < world; ++i) {
      HeldParts& place = places[static_cast<size_t>(ranks[static_cast<size_t>(i)])];
      place.resize(layout.kinds.size());
      for (uint32_t kind = 0; kind < whole; ++kind)
        if (layout.kinds[kind].pp_rank == i / stage)
          place[kind] =
              HeldPart{i % stage % layout.kinds[kind].parts(), i % stage / layout.kinds[kind].parts()};
      place[whole] = HeldPart{0, i};
    }
    for (int e = pick(0, 12); e > 0; --e) {
      SaveLayout::Entry entry;
      entry.key = std::to_string(e);
      entry.dtype = pick(0, 1) == 0 ? Dtype::kFloat32 : Dtype::kBFloat16;
      entry.kind = static_cast<uint32_t>(pick(0, static_cast<int>(whole)));
      const int least = entry.kind == whole ? 0 : entry.kind % 3 == 2 ? 2 : 1;
      for (int dim = pick(least, 3); dim > 0; --dim) entry.shape.push_back(pick(0, 20));
      layout.entries.push_back(entry);
    }
    for (const Writers writers : {Writers::kAll, Writers::kOneReplica}) {
      const std::vector<SaveItem> expected = plan_with_all_items(layout, places, writers);
      std::vector<uint64_t> bytes(places.size());
      for (const SaveItem& item : expected) bytes[item.writer] += item.length;
      for (int rank = 0; rank < world; ++rank) {
        const SavePlan plan = make_save_plan(layout, places, writers, rank);
        std::vector<SaveItem> local_items;
        std::ranges::copy_if(expected, std::back_inserter(local_items), [&](const SaveItem& item) {
          return item.writer == static_cast<uint32_t>(rank);
        });
        REQUIRE(plan.local_items == local_items);
        REQUIRE(plan.file_bytes == bytes);
        if (rank == 0) REQUIRE(items_of(layout, plan) == expected);
      }
    }
  }
}

TEST_CASE(
    "what a rank of 16,384 holds of a plan is small with replicas, with tensor parallelism and without") {
  for (const auto& [replicas, count] : {std::pair{1, 1}, {256, 1}, {1, 8}, {16, 8}}) {
    const int world = 16384, shards = world / replicas / count;
    SaveLayout layout;
    layout.kinds = {{{{.parts = count}, {.parts = shards}}, replicas},
                    {{{.dim = 1, .parts = count}, {.parts = shards}}, replicas},
                    {{{.parts = shards}}, replicas * count},
                    {{}, world}};
    for (int e = 0; e < 1164; ++e) {
      SaveLayout::Entry entry;
      entry.key = std::to_string(e);
      entry.kind = static_cast<uint32_t>(e % 4);
      if (entry.kind < 2) entry.shape = {16385, 129};  // no parts of equal sizes
      if (entry.kind == 2) entry.shape = {16384};
      layout.entries.push_back(entry);
    }
    std::vector<HeldParts> places(static_cast<size_t>(world));
    for (int rank = 0; rank < world; ++rank)
      for (const SaveLayout::Kind& kind : layout.kinds)
        places[static_cast<size_t>(rank)].push_back(HeldPart{rank % kind.parts(), rank / kind.parts()});
    const SavePlan plan = make_save_plan(layout, places, Writers::kAll, 1);
    size_t bytes = plan.local_items.capacity() * sizeof(SaveItem) +
                   plan.file_bytes.capacity() * sizeof(uint64_t) + plan.runs.capacity() * sizeof(PartRun) +
                   plan.shared_writers.capacity() * sizeof(uint32_t);
    for (const auto& holders : plan.holders) bytes += holders.capacity() * sizeof(uint32_t);
    size_t shared = 0;  // parts of which the plan says who of their replicas writes them
    for (const SaveLayout::Entry& entry : layout.entries)
      if (const auto& kind = layout.kinds[entry.kind]; kind.replicas > 1)
        shared += static_cast<size_t>(kind.parts());
    CHECK(bytes < (size_t{1} << 20) + shared * sizeof(uint32_t));  // all items: up to 873 x 16384 x 32 bytes
    CHECK(plan.data_bytes == uint64_t{582} * 16385 * 129 * 4 + 291 * 16384 * 4 + 291 * 4);
  }
}

TEST_CASE("an alias is written whole under its own name") {
  const auto [layout, plan] = make({2, 1}, Writers::kAll);
  REQUIRE(layout.entries[2].key == "output.weight");  // the first is a number
  CHECK(layout.entries[2].path == KeyPath{"output.weight"});
  std::string bytes;
  encode_save_index(layout, plan, {}, [&](std::string_view piece) { bytes += piece; });
  const CheckpointIndex index = test::decode_index(bytes);
  CHECK(index.tensors.at("output.weight").chunks.size() == 2);
  CHECK(index.tensors.at("tok_embeddings.weight").shape == Dims{13, 10});
}

TEST_CASE("any change of names or types or shapes or placement changes the fingerprint") {
  const Mesh mesh = {2, 2};
  const uint64_t before = save_layout(job(mesh)).fingerprint();
  CHECK(save_layout(job(mesh, 3)).fingerprint() == before);
  CHECK(save_layout(job({4, 1})).fingerprint() != before);
  CHECK(save_layout(job({1, 2, 2})).fingerprint() != before);
  const auto changed = [&](const std::function<void(std::vector<TensorState>&)>& change) {
    std::vector<TensorState> tensors = job(mesh);
    change(tensors);
    return save_layout(tensors).fingerprint() != before;
  };
  CHECK(changed([](auto& tensors) { tensors[1].dtype = Dtype::kBFloat16; }));
  CHECK(changed([](auto& tensors) { tensors[1].shape = {6, 8}; }));
  CHECK(changed([](auto& tensors) { tensors[1].placement.cuts[0].dim = 1; }));
  CHECK(changed([](auto& tensors) { tensors[1].placement.pp_rank = 1; }));
  CHECK(changed([](auto& tensors) { tensors.pop_back(); }));
}

TEST_CASE("places that leave a part out or give it twice are a bug") {
  const SaveLayout layout = save_layout(job({2, 1}));
  const HeldParts first = held_parts(layout, job({2, 1}, 0));
  CHECK_THROWS_WITH(make_save_plan(layout, {first, first}, Writers::kAll, 0),
                    Catch::Contains("both hold part 0"));
  CHECK_THROWS_WITH(make_save_plan(layout, {first}, Writers::kAll, 0), Catch::Contains("not all held"));
}

TEST_CASE("a rank that holds different parts of tensors that are placed alike is a bug") {
  std::vector<TensorState> tensors = job({2, 1, 2});
  const SaveLayout layout = save_layout(tensors);
  tensors[1].placement.cuts[1].index = 1;
  CHECK_THROWS_WITH(held_parts(layout, tensors),
                    Catch::Contains("this rank holds 1:0 of layers.0.wq.weight, but 0:0 of tensors"));
}

TEST_CASE("cuts that a tensor cannot have are a bug before anything is planned") {
  std::vector<TensorState> tensors = job({2, 1});
  tensors.back().placement = test::cut_by_rows(2);  // of one number
  CHECK_THROWS_WITH(save_layout(tensors), Catch::Contains("part 0 of 2 of dimension 0"));
}

TEST_CASE("tensors of another stage are written by its ranks, and described by all") {
  // Two stages of two ranks.
  const auto state = [](int rank) {
    std::vector<TensorState> tensors = {tensor("first.weight", {5, 3}, test::cut_by_rows(2, rank % 2)),
                                        tensor("last.weight", {4}, test::cut_by_rows(2, rank % 2))};
    tensors[1].placement.pp_rank = 1;
    tensors[rank < 2 ? 1 : 0].placement.is_local = false;
    return tensors;
  };
  const SaveLayout layout = save_layout(state(0));
  CHECK(save_layout(state(3)).fingerprint() == layout.fingerprint());
  std::vector<HeldParts> places;
  for (int rank = 0; rank < 4; ++rank) places.push_back(held_parts(layout, state(rank)));
  CHECK(describe(places[1]) == "1:0 -");
  CHECK(describe(places[2]) == "- 0:0");
  CHECK(state(2)[0].local_bytes() == 0);
  const SavePlan plan = make_save_plan(layout, places, Writers::kAll, 3);
  std::map<uint32_t, std::set<uint32_t>> writers;
  for (const SaveItem& item : items_of(layout, plan)) writers[item.entry].insert(item.writer);
  CHECK(writers == std::map<uint32_t, std::set<uint32_t>>{{0, {0, 1}}, {1, {2, 3}}});
  CHECK(plan.local_items.size() == 1);
}

TEST_CASE("keys belong to the component that their first word names") {
  CHECK(component_of("optimizer.state.norm.weight.exp_avg") == "optimizer");
  CHECK(component_of("layers.0.optimizer.weight") == "model");
  CHECK(component_of("ema.norm.weight") == "ema");
  CHECK(component_of("ema") == "model");
}

}  // namespace hyperion::checkpoint
