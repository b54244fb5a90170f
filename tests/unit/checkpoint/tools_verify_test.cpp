#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/format/archive.h"
#include "checkpoint/loader.h"
#include "checkpoint/storage/shard_reader.h"
#include "checkpoint/tools/tools.h"
#include "checkpoint/tools/verify.h"
#include "tools_fixture.h"

using namespace hyperion;
using namespace hyperion::test;
namespace fs = std::filesystem;

namespace {

Ran verify(const fs::path& path, bool full, bool json = false) {
  return run_tool(
      [&](std::FILE* out) { return verify_checkpoints({.path = path, .full = full, .json = json}, out); });
}

// Where a tensor's first chunk lies.
Span place_of(const fs::path& checkpoint, const std::string& key) {
  return open_checkpoint(checkpoint).index.tensors.at(key).chunks.at(0).where;
}

bool names(const Damage& damage, const std::string& key) {
  return std::ranges::find(damage.keys, key) != damage.keys.end();
}

}  // namespace

TEST_CASE("verify finds a good checkpoint whole") {
  const ToolsFolder folder;
  const fs::path path = save_toy(folder.path, 3, {.shards = 2});
  for (const bool full : {false, true}) {
    const Ran ran = verify(path, full);
    INFO(ran.text);
    CHECK(ran.code == ExitCode::kOk);
    CHECK_THAT(ran.text, Catch::Contains("whole: 3 files, "));
    CHECK_THAT(ran.text,
               full ? Catch::Contains("size, checksums, CRCs") : Catch::Contains("--full reads every byte"));
  }
  std::ofstream(path / "notes.txt") << "mine";
  const Verification noted = verify_checkpoint(path, false);
  CHECK(noted.whole());
  CHECK(noted.notes == std::vector<std::string>{"notes.txt is no part of the checkpoint: ignored"});
}

TEST_CASE("F-C2 verify names file and bytes and tensor of a flipped bit") {
  const ToolsFolder folder;
  const fs::path path = save_toy(folder.path, 3, {.shards = 2});
  const Span where = place_of(path, "norm.weight");
  flip_bit(path / where.file, where.offset + where.length / 2);
  CHECK(verify_checkpoint(path, false).whole());  // the cheap check reads no content
  const Verification found = verify_checkpoint(path, true);
  REQUIRE(found.damages.size() == 1);
  CHECK(found.damages[0].file == where.file);
  CHECK(found.damages[0].begin == 0);
  CHECK(found.damages[0].end == fs::file_size(path / where.file));
  CHECK(names(found.damages[0], "norm.weight"));
  const Ran ran = verify(path, true);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains(where.file) && Catch::Contains("are damaged") &&
                           Catch::Contains("norm.weight") && Catch::Contains("DAMAGED: 1 problem"));
  const auto json = nlohmann::json::parse(verify(path, true, true).text);
  CHECK(json.at("whole") == false);
  CHECK(json.at("damages").at(0).at("file") == where.file);
}

TEST_CASE("F-C2 verify finds flipped bits in the index and the manifest") {
  for (const char* file : {".metadata", "hyperion.json"}) {
    const ToolsFolder folder;
    const fs::path path = save_toy(folder.path, 3);
    flip_bit(path / file, fs::file_size(path / file) / 2);
    const Verification found = verify_checkpoint(path, false);
    CAPTURE(file);
    REQUIRE_FALSE(found.whole());
    CHECK(found.damages[0].file == file);
  }
}

TEST_CASE("F-C2 verify finds a flipped bit without a manifest by the archive") {
  const ToolsFolder folder;
  const fs::path path = folder.path / "fsdp4";
  fs::copy(fs::path(HYPERION_SOURCE_DIR) / "tests/goldens/dcp/fsdp4", path);
  fs::permissions(path, fs::perms::owner_all);
  const Ran good = verify(path, false);
  INFO(good.text);
  CHECK(good.code == ExitCode::kOk);
  CHECK_THAT(good.text, Catch::Contains("DCP, no manifest") && Catch::Contains("every byte compared"));
  const OpenCheckpoint checkpoint = open_checkpoint(path);
  const auto& [key, record] = *checkpoint.index.tensors.rbegin();
  const Span where = record.chunks.at(0).where;
  fs::permissions(path / where.file, fs::perms::owner_all);
  ShardReader file(path, where.file);
  SliceSource entry(file, where.offset, where.length);
  flip_bit(path / where.file, where.offset + open_tensor_archive(entry).data_offset);
  const Verification found = verify_checkpoint(path, false);
  REQUIRE(found.damages.size() == 1);
  CHECK(found.damages[0].file == where.file);
  CHECK(found.damages[0].keys == std::vector<std::string>{key});
  CHECK(found.damages[0].begin == where.offset);
}

TEST_CASE("F-C1 verify finds truncated files and says what they held") {
  const ToolsFolder folder;
  const fs::path path = save_toy(folder.path, 3, {.shards = 2});
  const uint64_t size = fs::file_size(path / "__1_0.distcp");
  for (const uint64_t left : {size - 1, size / 2, uint64_t{0}}) {
    fs::resize_file(path / "__1_0.distcp", left);
    const Verification found = verify_checkpoint(path, false);
    REQUIRE(found.damages.size() == 1);
    CHECK(found.damages[0].file == "__1_0.distcp");
    CHECK_THAT(found.damages[0].what,
               Catch::Contains(std::to_string(left)) && Catch::Contains(std::to_string(size)));
    CHECK(names(found.damages[0], "tok_embeddings.weight"));
  }
}

TEST_CASE("F-C3 verify finds a file of zeros") {
  const ToolsFolder folder;
  const fs::path path = save_toy(folder.path, 3);
  const uint64_t size = fs::file_size(path / "__0_0.distcp");
  std::ofstream(path / "__0_0.distcp", std::ios::binary) << std::string(size, '\0');
  CHECK_FALSE(verify_checkpoint(path, true).whole());
}

TEST_CASE("F-C4 verify finds missing and swapped files") {
  const ToolsFolder folder;
  const fs::path first = save_toy(folder.path, 3, {.shards = 2});
  const fs::path second =
      save_toy(folder.path, 4, {.shards = 2, .offsets = {{"tok_embeddings.weight", 1.0F}}});
  SECTION("a missing file") {
    fs::remove(first / "__1_0.distcp");
    const Verification found = verify_checkpoint(first, false);
    REQUIRE(found.damages.size() == 1);
    CHECK(found.damages[0].file == "__1_0.distcp");
    CHECK(names(found.damages[0], "tok_embeddings.weight"));
  }
  SECTION("files of two steps") {
    fs::rename(first / "__0_0.distcp", folder.path / "aside");
    fs::rename(second / "__0_0.distcp", first / "__0_0.distcp");
    CHECK_FALSE(verify_checkpoint(first, true).whole());
  }
  SECTION("an index of another save") {
    fs::copy_file(second / ".metadata", first / ".metadata", fs::copy_options::overwrite_existing);
    CHECK_FALSE(verify_checkpoint(first, false).whole());
  }
  SECTION("a folder with another name") {
    fs::rename(first, folder.path / "step-5");
    const Verification found = verify_checkpoint(folder.path / "step-5", false);
    REQUIRE(found.damages.size() == 1);
    CHECK_THAT(found.damages[0].what, Catch::Contains("step 3"));
  }
}

TEST_CASE("verify of a job folder looks at every checkpoint") {
  const ToolsFolder folder;
  save_toy(folder.path, 3);
  const fs::path bad = save_toy(folder.path, 4);
  CHECK(verify(folder.path, true).code == ExitCode::kOk);
  fs::resize_file(bad / "__0_0.distcp", 10);
  const Ran ran = verify(folder.path, false);
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains("step-3") && Catch::Contains("whole") && Catch::Contains("DAMAGED"));
  CHECK(nlohmann::json::parse(verify(folder.path, false, true).text).size() == 2);
  CHECK(verify(folder.path / "nothing", false).code == ExitCode::kUsage);
}

TEST_CASE("verify counts a damaged index once") {
  const ToolsFolder folder;
  const fs::path path = save_toy(folder.path, 3);
  flip_bit(path / ".metadata", 100);
  for (const bool full : {false, true}) {
    const Ran ran = verify(path, full);
    INFO(ran.text);
    CHECK_THAT(ran.text, Catch::EndsWith("DAMAGED: 1 problem\n"));
  }
  CHECK(verify_checkpoint(path, true).damages[0].end == fs::file_size(path / ".metadata"));
}

TEST_CASE("verify calls a checkpoint with an unreadable manifest damaged, as ls does") {
  const ToolsFolder folder;
  const fs::path path = save_toy(folder.path, 3);
  flip_bit(path / "hyperion.json", 0);
  CHECK(verify_checkpoint(path, false).kind == "damaged");
  CHECK_THAT(verify(folder.path, false).text, Catch::Matches("[^]*step-3 +damaged +DAMAGED: 1 problem[^]*"));
}

TEST_CASE("verify of a folder without checkpoints is no good answer") {
  const ToolsFolder folder;
  save_toy(folder.path / "out" / "checkpoint", 3);
  fs::create_directory(folder.path / "empty");
  for (const bool json : {false, true}) {
    const Ran empty = verify(folder.path / "empty", false, json);
    CHECK(empty.code == ExitCode::kUsage);
    CHECK_THAT(empty.text, Catch::EndsWith("/empty: no checkpoints"));
    const Ran above = verify(folder.path / "out", false, json);
    CHECK(above.code == ExitCode::kUsage);
    CHECK_THAT(above.text, Catch::EndsWith("/out: no checkpoints; did you mean " +
                                           (folder.path / "out" / "checkpoint").string() + "?"));
  }
}
