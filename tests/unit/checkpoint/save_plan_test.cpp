#include "checkpoint/save_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>

#include <catch2/catch.hpp>

#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/dcp/metadata.h"
#include "checkpoint/save_index.h"

namespace hyperion::checkpoint {
namespace {

TensorState tensor(std::string key, Dims shape, int shards, int replicas) {
  TensorState state;
  state.key = std::move(key);
  state.path = {state.key};
  state.shape = std::move(shape);
  state.placement = {.shards = shards, .replicas = replicas};
  return state;
}

// The state of a small job on replicas x shards ranks, as rank (replica, shard) sees it.
std::vector<TensorState> job(int shards, int replicas, int shard = 0, int replica = 0) {
  std::vector<TensorState> tensors = {tensor("tok_embeddings.weight", {13, 10}, shards, replicas),
                                      tensor("layers.0.wq.weight", {8, 6}, shards, replicas),
                                      tensor("norm.weight", {2}, shards, replicas),
                                      tensor("optimizer.state.norm.weight.step", {}, 1, shards * replicas)};
  tensors.front().aliases = {"output.weight"};
  for (TensorState& t : tensors) {
    if (t.placement.shards == 1) {
      t.placement.replica = replica * shards + shard;
    } else {
      t.placement.shard = shard;
      t.placement.replica = replica;
    }
  }
  return tensors;
}

struct Made {
  SaveLayout layout;
  SavePlan plan;
};

Made make(int shards, int replicas, Writers writers) {
  Made made;
  made.layout = save_layout(job(shards, replicas));
  std::vector<RankPlace> places;
  for (int replica = 0; replica < replicas; ++replica)
    for (int shard = 0; shard < shards; ++shard)
      places.push_back(rank_place(made.layout, job(shards, replicas, shard, replica)));
  made.plan = make_save_plan(made.layout, places, writers, 0);
  return made;
}

std::vector<SaveItem> items_of(const SaveLayout& layout, const SavePlan& plan) {
  std::vector<SaveItem> items;
  for_each_item(layout, plan, [&](const SaveItem& item) { items.push_back(item); });
  return items;
}

// A plan that is made as it is defined, with all items in memory: every part of every entry is a piece; a
// piece that replicas share goes, the longest first, to the replica that has the least to write so far.
std::vector<SaveItem> plan_with_all_items(const SaveLayout& layout, const std::vector<RankPlace>& places,
                                          Writers writers) {
  const auto replicas_of = [&](const SaveItem& item) {  // `writer` holds the part
    const uint32_t kind = layout.entries[item.entry].kind;
    std::vector<uint32_t> ranks(static_cast<size_t>(layout.kinds[kind].replicas));
    for (uint32_t rank = 0; rank < places.size(); ++rank) {
      const auto [shard, replica] = places[rank].parts[kind];
      if (static_cast<uint32_t>(shard) == item.writer) ranks[static_cast<size_t>(replica)] = rank;
    }
    return ranks;
  };
  std::vector<SaveItem> items;
  for (uint32_t e = 0; e < layout.entries.size(); ++e) {
    const SaveLayout::Entry& entry = layout.entries[e];
    const int shards = layout.kinds[entry.kind].shards;
    for (int shard = 0; shard < shards; ++shard) {
      const Rows rows = entry.shape.empty() ? Rows{0, 1} : rows_of(entry.shape.front(), shards, shard);
      SaveItem item{e, static_cast<uint32_t>(shard), rows.begin, rows.count, 0, 0};
      const Dims shape = item_shape(layout, item);
      if (std::ranges::find(shape, 0) != shape.end()) continue;
      item.length = tensor_archive_bytes(entry.dtype, shape);
      items.push_back(item);
    }
  }
  std::vector<uint64_t> load(places.size()), position(places.size());
  std::vector<SaveItem*> shared;
  for (SaveItem& item : items) {
    const std::vector<uint32_t> ranks = replicas_of(item);
    if (ranks.size() > 1 && writers == Writers::kAll) {
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

TEST_CASE("every row of every tensor has exactly one writer on any mesh") {
  for (const auto& [shards, replicas] : {std::pair{1, 1}, {4, 1}, {2, 2}, {1, 4}, {3, 2}}) {
    for (const Writers writers : {Writers::kAll, Writers::kOneReplica}) {
      const auto [layout, plan] = make(shards, replicas, writers);
      std::map<uint32_t, int64_t> next_row;
      std::map<uint32_t, uint64_t> position;
      uint64_t bytes = 0;
      for (const SaveItem& item : items_of(layout, plan)) {
        CHECK(item.first_row == next_row[item.entry]);
        next_row[item.entry] += item.rows;
        CHECK(item.offset == position[item.writer]);
        CHECK(item.length == tensor_archive_bytes(Dtype::kFloat32, item_shape(layout, item)));
        position[item.writer] += item.length;
        uint64_t elements = 1;
        for (const int64_t extent : item_shape(layout, item)) elements *= static_cast<uint64_t>(extent);
        bytes += 4 * elements;
      }
      for (size_t e = 0; e < layout.entries.size(); ++e) {
        const Dims& shape = layout.entries[e].shape;
        CHECK(next_row[static_cast<uint32_t>(e)] == (shape.empty() ? 1 : shape.front()));
      }
      CHECK(bytes == plan.data_bytes);
      CHECK(bytes == 4u * (130 + 130 + 48 + 2 + 1));
    }
  }
}

TEST_CASE("all ranks share the work or the first replica does it") {
  const auto writers_of = [](const Made& made) {
    std::set<uint32_t> writers;
    for (const SaveItem& item : items_of(made.layout, made.plan)) writers.insert(item.writer);
    return writers;
  };
  CHECK(writers_of(make(2, 2, Writers::kAll)) == std::set<uint32_t>{0, 1, 2, 3});
  CHECK(writers_of(make(2, 2, Writers::kOneReplica)) == std::set<uint32_t>{0, 1});
  // Pieces of 100, 60, 50, 40 and 10 rows over two replicas: 130 rows each, give or take the archives' own
  // bytes.
  std::vector<TensorState> tensors, others;
  for (const int64_t rows : {30, 31, 40, 60, 100}) {
    tensors.push_back(tensor(std::to_string(rows), {rows, 1000}, 1, 2));
    others.push_back(tensors.back());
    others.back().placement.replica = 1;
  }
  const SaveLayout layout = save_layout(tensors);
  const SavePlan plan =
      make_save_plan(layout, {rank_place(layout, tensors), rank_place(layout, others)}, Writers::kAll, 0);
  for (const uint64_t bytes : plan.file_bytes) CHECK(bytes == Approx(130 * 4000).epsilon(0.02));
}

TEST_CASE("a plan that holds one rank's items is that of all items at once") {
  std::mt19937 random(7);
  const auto pick = [&](int first, int last) { return std::uniform_int_distribution(first, last)(random); };
  for (int turn = 0; turn < 200; ++turn) {
    const int shards = pick(1, 7), replicas = pick(1, 4), world = shards * replicas;
    SaveLayout layout;
    layout.kinds = {{shards, replicas}, {1, world}};
    std::vector<RankPlace> places(static_cast<size_t>(world));
    std::vector<int> ranks;  // which rank has which place
    for (int i = 0; i < world; ++i) ranks.push_back(i);
    std::ranges::shuffle(ranks, random);
    for (int i = 0; i < world; ++i)
      places[static_cast<size_t>(ranks[static_cast<size_t>(i)])].parts = {{i % shards, i / shards}, {0, i}};
    for (int e = pick(0, 12); e > 0; --e) {
      SaveLayout::Entry entry;
      entry.key = std::to_string(e);
      entry.dtype = pick(0, 1) == 0 ? Dtype::kFloat32 : Dtype::kBFloat16;
      entry.kind = static_cast<uint32_t>(pick(0, 1));
      for (int dim = pick(0, 2); dim > 0; --dim) entry.shape.push_back(pick(0, 20));
      layout.entries.push_back(entry);
    }
    for (const Writers writers : {Writers::kAll, Writers::kOneReplica}) {
      const std::vector<SaveItem> expected = plan_with_all_items(layout, places, writers);
      std::vector<uint64_t> bytes(places.size());
      for (const SaveItem& item : expected) bytes[item.writer] += item.length;
      for (int rank = 0; rank < world; ++rank) {
        const SavePlan plan = make_save_plan(layout, places, writers, rank);
        std::vector<SaveItem> own;
        std::ranges::copy_if(expected, std::back_inserter(own), [&](const SaveItem& item) {
          return item.writer == static_cast<uint32_t>(rank);
        });
        CHECK(items_of(layout, plan) == expected);
        CHECK(plan.own == own);
        CHECK(plan.file_bytes == bytes);
      }
    }
  }
}

TEST_CASE("what a rank of 16,384 holds of a plan is small with and without replicas") {
  for (const int replicas : {1, 256}) {
    const int world = 16384, shards = world / replicas;
    SaveLayout layout;
    layout.kinds = {{shards, replicas}, {1, world}};
    for (int e = 0; e < 1164; ++e) {
      SaveLayout::Entry entry;
      entry.key = std::to_string(e);
      entry.kind = e % 4 == 3 ? 1 : 0;
      if (e % 4 != 3) entry.shape = {16384, 128};
      layout.entries.push_back(entry);
    }
    std::vector<RankPlace> places(static_cast<size_t>(world));
    for (int rank = 0; rank < world; ++rank)
      places[static_cast<size_t>(rank)].parts = {{rank % shards, rank / shards}, {0, rank}};
    const SavePlan plan = make_save_plan(layout, places, Writers::kAll, 1);
    size_t bytes = plan.own.capacity() * sizeof(SaveItem) + plan.file_bytes.capacity() * sizeof(uint64_t) +
                   plan.shared_writers.capacity() * sizeof(uint32_t);
    for (const auto& holders : plan.holders) bytes += holders.capacity() * sizeof(uint32_t);
    CHECK(bytes < size_t{1} << 20);  // all items at once: 873 x 16384 x 48 bytes without replicas
    CHECK(plan.data_bytes == uint64_t{873} * 16384 * 128 * 4 + 291 * 4);
  }
}

TEST_CASE("an alias is written whole under its own name") {
  const auto [layout, plan] = make(2, 1, Writers::kAll);
  REQUIRE(layout.entries[1].key == "output.weight");
  CHECK(layout.entries[1].path == KeyPath{"output.weight"});
  std::string bytes;
  encode_save_index(layout, plan, {}, [&](std::string_view piece) { bytes += piece; });
  const CheckpointIndex index = decode_metadata(std::as_bytes(std::span(bytes)), "test");
  CHECK(index.tensors.at("output.weight").chunks.size() == 2);
  CHECK(index.tensors.at("tok_embeddings.weight").shape == Dims{13, 10});
}

TEST_CASE("any change of names or types or shapes or placement changes the fingerprint") {
  const uint64_t before = save_layout(job(2, 2)).fingerprint();
  CHECK(save_layout(job(2, 2, 1, 1)).fingerprint() == before);
  CHECK(save_layout(job(4, 1)).fingerprint() != before);
  auto changed = job(2, 2);
  changed[1].dtype = Dtype::kBFloat16;
  CHECK(save_layout(changed).fingerprint() != before);
  changed = job(2, 2);
  changed[1].shape = {6, 8};
  CHECK(save_layout(changed).fingerprint() != before);
  changed = job(2, 2);
  changed.pop_back();
  CHECK(save_layout(changed).fingerprint() != before);
}

TEST_CASE("places that leave a part out or give it twice are a bug") {
  const SaveLayout layout = save_layout(job(2, 1));
  const RankPlace first = rank_place(layout, job(2, 1, 0, 0));
  CHECK_THROWS_WITH(make_save_plan(layout, {first, first}, Writers::kAll, 0),
                    Catch::Contains("both hold part 0"));
  CHECK_THROWS_WITH(make_save_plan(layout, {first}, Writers::kAll, 0), Catch::Contains("not all held"));
}

TEST_CASE("a place survives its text form") {
  const RankPlace place{{{0, 1}, {3, 0}}};
  CHECK(place.to_text() == "0:1 3:0");
  CHECK(RankPlace::from_text(place.to_text()) == place);
  CHECK(RankPlace::from_text("") == RankPlace{});
  CHECK_THROWS(RankPlace::from_text("0:x"));
}

TEST_CASE("rows are cut as torch chunk cuts them") {
  CHECK(rows_of(13, 4, 3).begin == 12);
  CHECK(rows_of(13, 4, 3).count == 1);
  CHECK(rows_of(2, 4, 3).begin == 2);
  CHECK(rows_of(2, 4, 3).count == 0);
  CHECK(component_of("optimizer.state.norm.weight.exp_avg") == "optimizer");
  CHECK(component_of("layers.0.optimizer.weight") == "model");
  CHECK(component_of("ema.norm.weight") == "ema");
  CHECK(component_of("ema") == "model");
}

}  // namespace hyperion::checkpoint
