#include "checkpoint/save_index.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "checkpoint/format/dcp/metadata.h"
#include "tests/support/encode_index.h"

namespace hyperion::checkpoint {
namespace {

// All of an index in memory, as it is defined.
CheckpointIndex index_in_memory(const SaveLayout& layout, const SavePlan& plan, CheckpointIndex index) {
  for (const SaveLayout::Entry& entry : layout.entries) {
    index.paths.try_emplace(entry.key, entry.path);
    index.tensors.try_emplace(entry.key, TensorRecord{entry.dtype, entry.shape, {}});
  }
  for_each_item(layout, plan, [&](const SaveItem& item) {
    const SaveLayout::Entry& entry = layout.entries[item.entry];
    const Box box = item_box(layout, item);
    index.tensors.at(entry.key).chunks.push_back(
        {box.offset, box.shape, {shard_file_name(static_cast<int>(item.writer)), item.offset, item.length}});
  });
  return index;
}

struct Planned {
  SaveLayout layout;
  SavePlan plan;
};

// Entries cut by rows, by columns and then rows, and whole ones; ranks have their places in any order.
Planned random_save(std::mt19937& random) {
  const auto pick = [&](int first, int last) { return std::uniform_int_distribution(first, last)(random); };
  const int shards = pick(1, 7), replicas = pick(1, 4), count = pick(1, 3), world = shards * replicas * count;
  Planned made;
  made.layout.kinds = {{{{.parts = shards}}, replicas * count},
                       {{{.dim = 1, .parts = count}, {.parts = shards}}, replicas},
                       {{}, world}};
  std::vector<HeldParts> places(static_cast<size_t>(world));
  for (int i = 0; i < world; ++i)
    for (const SaveLayout::Kind& kind : made.layout.kinds)
      places[static_cast<size_t>(i)].push_back(HeldPart{i % kind.parts(), i / kind.parts()});
  std::ranges::shuffle(places, random);
  for (int e = pick(0, 12); e > 0; --e) {
    SaveLayout::Entry entry;
    entry.key = std::to_string(e * 7 % 13) + "." + std::to_string(pick(0, 9));
    entry.path = pick(0, 1) == 0 ? KeyPath{entry.key} : KeyPath{"optimizer", "state." + entry.key};
    entry.dtype = pick(0, 1) == 0 ? Dtype::kFloat32 : Dtype::kBFloat16;
    entry.kind = static_cast<uint32_t>(pick(0, 2));
    for (int dim = pick(entry.kind == 2 ? 0 : static_cast<int>(entry.kind) + 1, 2); dim > 0; --dim)
      entry.shape.push_back(pick(0, 2000));
    made.layout.entries.push_back(entry);
  }
  std::ranges::sort(made.layout.entries, {}, &SaveLayout::Entry::key);  // as an index in memory has them
  made.plan = make_save_plan(made.layout, places, pick(0, 1) == 0 ? Writers::kAll : Writers::kOneReplica, 0);
  return made;
}

SaveLayout layout_of_matrices(int entries, int shards) {
  SaveLayout layout;
  layout.kinds = {{{{.parts = shards}}, 1}};
  for (int e = 0; e < entries; ++e) {
    SaveLayout::Entry entry;
    entry.key = "layers." + std::to_string(e) + ".weight";
    entry.path = {entry.key};
    entry.shape = {shards, 16};
    layout.entries.push_back(entry);
  }
  return layout;
}

SavePlan plan_of(const SaveLayout& layout) {
  std::vector<HeldParts> places;
  for (int rank = 0; rank < layout.kinds[0].parts(); ++rank) places.push_back({HeldPart{rank, 0}});
  return make_save_plan(layout, places, Writers::kAll, 0);
}

}  // namespace

TEST_CASE("an index that is encoded while the plan is walked has the bytes of one that is in memory") {
  std::mt19937 random(11);
  for (int turn = 0; turn < 200; ++turn) {
    const auto [layout, plan] = random_save(random);
    CheckpointIndex rest;
    rest.save_id = "save-" + std::to_string(turn);
    rest.objects["trainer.step"] = {{"__0_0.distcp", 77, 5}};
    rest.paths["trainer.step"] = {"trainer", "step"};
    rest.objects["a"] = {{"__0_0.distcp", 99, 5}};  // flat, and before all tensors by name
    const std::string expected = test::encode_index(index_in_memory(layout, plan, rest));
    std::string bytes;
    encode_save_index(layout, plan, rest, [&](std::string_view piece) { bytes += piece; });
    REQUIRE(bytes == expected);
  }
}

TEST_CASE("an index comes in pieces whose size does not grow with the number of shards") {
  const SaveLayout layout = layout_of_matrices(30, 2000);
  const SavePlan plan = plan_of(layout);
  size_t largest = 0, all = 0;
  encode_save_index(layout, plan, {}, [&](std::string_view piece) {
    largest = std::max(largest, piece.size());
    all += piece.size();
  });
  CHECK(all > size_t{4} << 20);
  CHECK(largest < (size_t{1} << 20) + 4096);
  CHECK(save_index_bytes(layout, plan) == all);
}

TEST_CASE("an index beyond what readers accept is refused by its size") {
  const SaveLayout layout = layout_of_matrices(50, 2000);
  try {
    save_index_bytes(layout, plan_of(layout), uint64_t{1} << 20);
    FAIL("it was accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kSaveFailed);
    CHECK_THAT(error.what(), Catch::Contains("50 tensors in 100000 pieces") &&
                                 Catch::Contains("1 MiB that readers accept") &&
                                 Catch::Contains("data_parallel_replicate_degree"));
  }
}

}  // namespace hyperion::checkpoint
