#include <set>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "checkpoint/format/dcp/metadata.h"
#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/tools/content.h"
#include "checkpoint/tools/tools.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/encode_index.h"
#include "tests/unit/checkpoint/tools/fixture.h"

namespace hyperion::checkpoint {

using namespace test;
namespace fs = std::filesystem;

namespace {

const fs::path kGoldens = fs::path(HYPERION_SOURCE_DIR) / "tests/goldens/dcp";

std::map<std::string, uint64_t> tensor_hashes(const Digest& digest) {
  std::map<std::string, uint64_t> hashes;
  for (const DigestEntry& entry : digest.entries)
    if (entry.is_tensor) hashes[entry.key] = entry.hash;
  return hashes;
}

}  // namespace

TEST_CASE("the digest does not depend on ranks and writers") {
  const TemporaryFolder folder;
  const Digest one = digest_of(save_toy(folder.path() / "one", 1));
  CHECK(one.entries.size() == 8);
  for (const ToyOptions& mesh :
       {ToyOptions{.shards = 2}, ToyOptions{.shards = 3}, ToyOptions{.shards = 7},
        ToyOptions{.shards = 2, .replicas = 2}, ToyOptions{.tensor = 2}, ToyOptions{.tensor = 4},
        ToyOptions{.shards = 2, .tensor = 2}, ToyOptions{.shards = 3, .tensor = 3},
        ToyOptions{.shards = 2, .replicas = 2, .tensor = 2},
        ToyOptions{.replicas = 2, .tensor = 3, .writers = Writers::kOneReplica},
        ToyOptions{.shards = 2, .replicas = 2, .writers = Writers::kOneReplica}}) {
    const Digest other = digest_of(
        save_toy(folder.path() / fmt::format("{}x{}x{}", mesh.shards, mesh.replicas, mesh.tensor), 1, mesh));
    CHECK(other.total() == one.total());
  }
  const fs::path changed =
      save_toy(folder.path() / "changed", 1, {.shards = 3, .offsets = {{"norm.weight", 0.5F}}});
  CHECK(digest_of(changed).total() != one.total());
  CHECK(digest_of(changed, {.component = "optimizer"}).total() ==
        digest_of(folder.path() / "one/step-1", {.component = "optimizer"}).total());
}

TEST_CASE("what belongs to the run is left out unless asked for") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 1, {.shards = 2});
  std::vector<std::string> added;
  const Digest less = digest_of(path), more = digest_of(path, {.all = true});
  for (const DigestEntry& entry : more.entries)
    if (std::ranges::find(less.entries, entry.key, &DigestEntry::key) == less.entries.end())
      added.push_back(entry.key);
  CHECK(added == std::vector<std::string>{"rng.rank_0", "rng.rank_1", "train_state.config"});
  CHECK(digest_of(path, {.prefix = "lr_scheduler."}).entries.size() == 1);
}

TEST_CASE("digest of nothing is refused with the nearest names") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 1);
  const auto digest = [&](const std::string& prefix) {
    return run_tool([&](std::FILE* out) { return print_digest({path, {.prefix = prefix}, true}, out); });
  };
  CHECK(digest("layers.0").code == ExitCode::kOk);
  CHECK(digest("layer.0").code == ExitCode::kUsage);
  CHECK(digest("layer.0").text == "error: --prefix layer.0: no name begins so; did you mean layers.0?");
  CHECK_THAT(digest("xyzzy").text, Catch::Contains("; names begin with ema, layers, lr_scheduler, norm,"));
  CHECK_THAT(digest("rng").text,
             Catch::Contains("--prefix rng: rng.rank_0 and all else that begins so is left out"));
}

TEST_CASE("digests of PyTorch's checkpoints are those of the contents") {
  const TemporaryFolder folder;
  for (const fs::directory_entry& entry : fs::directory_iterator(kGoldens)) {
    if (!entry.is_directory()) continue;
    CAPTURE(entry.path().string());
    const DcpFolder content = read_dcp_folder(entry.path());
    const Digest digest = digest_of(entry.path(), {.all = true});
    std::map<std::string, uint64_t> expected;
    for (const auto& [key, tensor] : content.tensors)
      expected[key] = hash_bytes(tensor.bytes.data(), tensor.bytes.size());
    CHECK(tensor_hashes(digest) == expected);
    CHECK(digest.entries.size() == content.tensors.size() + content.objects.size());
    const fs::path again = folder.path() / entry.path().filename();
    write_dcp_folder(again, content, 3);
    CHECK(digest_of(again, {.all = true}).total() == digest.total());
  }
}

TEST_CASE("tensors cut along several dimensions are put together") {
  const TemporaryFolder folder;
  std::string whole;
  for (float i = 0; i < 5 * 7; ++i) whole.append(reinterpret_cast<const char*>(&i), sizeof i);
  CheckpointIndex index;
  TensorRecord& record = index.tensors["w"];
  record.shape = {5, 7};
  index.paths["w"] = {"w"};
  std::string file;
  for (const auto& [row, rows] : {std::pair<int64_t, int64_t>{0, 2}, {2, 3}}) {
    for (const auto& [column, columns] : {std::pair<int64_t, int64_t>{0, 4}, {4, 3}}) {
      std::string piece;
      for (int64_t r = row; r < row + rows; ++r)
        piece += whole.substr(static_cast<size_t>(r * 7 + column) * 4, static_cast<size_t>(columns) * 4);
      const Dims shape = {rows, columns};
      record.chunks.push_back({{row, column},
                               shape,
                               {"__0_0.distcp", file.size(), tensor_archive_bytes(Dtype::kFloat32, shape)}});
      file += tensor_archive_head(Dtype::kFloat32, shape) + piece +
              tensor_archive_tail(Dtype::kFloat32, shape, crc32(0, piece.data(), piece.size()));
    }
  }
  std::ofstream(folder.path() / "__0_0.distcp", std::ios::binary) << file;
  std::ofstream(folder.path() / ".metadata", std::ios::binary) << encode_index(index);
  CHECK(digest_of(folder.path()).entries.at(0).hash == hash_bytes(whole.data(), whole.size()));

  const OpenCheckpoint checkpoint = open_checkpoint(folder.path());
  ContentReader reader(checkpoint);
  std::string box(3 * 4 * 4, '\0'), expected;
  reader.read("w", {{1, 2}, {3, 4}}, reinterpret_cast<std::byte*>(box.data()));
  for (size_t r = 1; r < 4; ++r) expected += whole.substr((r * 7 + 2) * 4, 16);
  CHECK(box == expected);
}

TEST_CASE("equal values have equal texts and unequal ones do not") {
  const Object a = Dict{{{"x", 1}, {"y", Sequence{Sequence::Kind::kSet, {2, 1}}}}};
  const Object b = Dict{{{"y", Sequence{Sequence::Kind::kSet, {1, 2}}}, {"x", 1}}};
  CHECK(canonical_text(a) == canonical_text(b));
  const std::vector<Object> different = {Object(),
                                         true,
                                         1,
                                         1.0,
                                         "1",
                                         Bytes{"1"},
                                         Object::list({1}),
                                         Object::tuple({1}),
                                         Object::list({Object::list({1})}),
                                         "a\",\"b",
                                         Object::list({"a", "b"}),
                                         -0.0,
                                         0.0,
                                         Dict{},
                                         Object::list({})};
  std::set<std::string> texts;
  for (const Object& object : different) texts.insert(canonical_text(object));
  CHECK(texts.size() == different.size());
}

TEST_CASE("the printed digest can be compared line by line and parsed") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 1);
  const Ran ran = run_tool([&](std::FILE* out) { return print_digest({.path = path}, out); });
  CHECK(ran.code == ExitCode::kOk);
  const Digest digest = digest_of(path);
  std::string expected;
  for (const DigestEntry& entry : digest.entries) expected += entry.line() + "\n";
  CHECK(ran.text == expected + fmt::format("{:016x}  total     6 tensors, 2 values\n", digest.total()));
  CHECK_THAT(ran.text, Catch::Contains("  float32   norm.weight  [5]\n"));
  const auto json = nlohmann::json::parse(
      run_tool([&](std::FILE* out) { return print_digest({.path = path, .json = true}, out); }).text);
  CHECK(json.at("total") == fmt::format("{:016x}", digest.total()));
  CHECK(json.at("entries").size() == 8);
}

}  // namespace hyperion::checkpoint
