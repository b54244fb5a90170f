#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/loader.h"
#include "checkpoint/storage/shard_reader.h"
#include "checkpoint/tools/tools.h"
#include "tests/unit/checkpoint/tools/fixture.h"

namespace hyperion::checkpoint {

using namespace test;
namespace fs = std::filesystem;

namespace {

constexpr bool kQuick = true, kWhole = false;

Ran verify(const fs::path& path, bool quick, bool json = false) {
  return run_tool(
      [&](std::FILE* out) { return verify_checkpoints({.path = path, .quick = quick, .json = json}, out); });
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
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 3, {.shards = 2});
  const Ran ran = verify(path, kWhole);
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kOk);
  CHECK_THAT(ran.text, Catch::Contains("intact: 3 files, ") && Catch::Contains("every byte compared") &&
                           Catch::Contains("size, checksums, CRCs, numbers  right"));
  std::ofstream(path / "notes.txt") << "mine";
  const Verification noted = verify_checkpoint(path, kQuick);
  CHECK(noted.intact());
  CHECK(noted.notes == std::vector<std::string>{"notes.txt is no part of the checkpoint: ignored"});
}

TEST_CASE("verify names file and bytes and tensor of a flipped bit") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 3, {.shards = 2});
  const Span where = place_of(path, "norm.weight");
  flip_bit(path / where.file, where.offset + where.length / 2);
  CHECK(verify_checkpoint(path, kQuick).intact());  // the cheap check reads no content
  const Verification found = verify_checkpoint(path, kWhole);
  REQUIRE(found.damages.size() == 1);
  CHECK(found.damages[0].file == where.file);
  CHECK(found.damages[0].begin == 0);
  CHECK(found.damages[0].end == fs::file_size(path / where.file));
  CHECK(names(found.damages[0], "norm.weight"));
  const Ran ran = verify(path, kWhole);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains(where.file) && Catch::Contains("are damaged") &&
                           Catch::Contains("norm.weight") && Catch::Contains("DAMAGED: 1 problem"));
  const auto json = nlohmann::json::parse(verify(path, kWhole, true).text);
  CHECK(json.at("whole") == false);
  CHECK(json.at("damages").at(0).at("file") == where.file);
}

TEST_CASE("verify finds flipped bits in the index and the manifest") {
  for (const char* file : {".metadata", "hyperion.json"}) {
    const TemporaryFolder folder;
    const fs::path path = save_toy(folder.path(), 3);
    flip_bit(path / file, fs::file_size(path / file) / 2);
    const Verification found = verify_checkpoint(path, kQuick);
    CAPTURE(file);
    REQUIRE_FALSE(found.intact());
    CHECK(found.damages[0].file == file);
  }
}

TEST_CASE("verify finds a flipped bit without a manifest by the archive") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "fsdp4";
  fs::copy(fs::path(HYPERION_SOURCE_DIR) / "tests/goldens/dcp/fsdp4", path);
  fs::permissions(path, fs::perms::owner_all);
  const Ran good = verify(path, kWhole);
  INFO(good.text);
  CHECK(good.code == ExitCode::kOk);
  CHECK_THAT(good.text, Catch::Contains("DCP, no manifest") && Catch::Contains("no damage seen: "));
  const OpenCheckpoint checkpoint = open_checkpoint(path);
  const auto& [key, record] = *checkpoint.index.tensors.rbegin();
  const Span where = record.chunks.at(0).where;
  fs::permissions(path / where.file, fs::perms::owner_all);
  ShardReader file(path, where.file);
  SliceSource entry(file, where.offset, where.length);
  flip_bit(path / where.file, where.offset + open_tensor_archive(entry).data.data_offset);
  CHECK(verify_checkpoint(path, kQuick).intact());
  const Verification found = verify_checkpoint(path, kWhole);
  REQUIRE(found.damages.size() == 1);
  CHECK(found.damages[0].file == where.file);
  CHECK(found.damages[0].keys == std::vector<std::string>{key});
  CHECK(found.damages[0].begin == where.offset);
}

TEST_CASE("a quick look says that it compared sizes only and calls nothing whole or right") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 3);
  const Span where = place_of(path, "norm.weight");
  flip_bit(path / where.file, where.offset + where.length / 2);
  const Ran ran = verify(path, kQuick);
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kOk);
  CHECK_THAT(ran.text, Catch::Contains("size only  agrees") && !Catch::Contains("right") &&
                           Catch::Contains("sizes agree: 2 files, ") && !Catch::Contains("intact") &&
                           Catch::Contains("no content was read (--quick)"));
  CHECK(run_tool([&](std::FILE* out) { return verify_checkpoints({.path = path}, out); }).code ==
        ExitCode::kBadData);
}

TEST_CASE("verify names the tensors whose numbers are not finite") {
  const TemporaryFolder folder;
  const fs::path saved = save_toy(folder.path(), 3, {.shards = 2});
  const std::map<std::string, int> bad = {{"ema.tok_embeddings.weight", 2}, {"norm.weight", 1}};
  OpenCheckpoint checkpoint = open_checkpoint(saved);
  fs::path path = saved;
  SECTION("of Hyperion") {  // as an older version wrote it: checksums and CRCs are right
    for (const auto& [key, count] : bad) put_not_finite(checkpoint, key, count);
    rewrite_manifest(saved);
  }
  SECTION("of another program") {
    for (const auto& [key, count] : bad) put_not_finite(checkpoint, key, count);
    fs::remove(saved / "hyperion.json");
  }
  const Verification found = verify_checkpoint(path);
  CHECK(found.damages.empty());
  CHECK_FALSE(found.intact());
  CHECK(found.not_finite.text() == "norm.weight (1 number), ema.tok_embeddings.weight (2 numbers)");
  const Ran ran = verify(path, kWhole);
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains("NOT FINITE: 2 tensors") && Catch::Contains("__0_0.distcp") &&
                           Catch::Contains("tensor norm.weight holds 1 number that is NaN or infinite") &&
                           Catch::Contains("ema.tok_embeddings.weight holds 2 numbers"));
  const auto json = nlohmann::json::parse(verify(path, kWhole, true).text);
  CHECK(json.at("whole") == false);
  CHECK(json.at("not_finite").at(0) == nlohmann::json{{"key", "norm.weight"}, {"numbers", 1}});
  CHECK(verify(path, kQuick).code == ExitCode::kOk);
}

TEST_CASE("verify names the tensors of safetensors whose numbers are not finite") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "hf";
  const Ran made = run_tool([&](std::FILE* out) {
    return convert_checkpoint({.source = save_toy(folder.path(), 3), .destination = path}, out);
  });
  REQUIRE(made.code == ExitCode::kOk);
  CHECK_THAT(verify(path, kWhole).text,
             Catch::Contains("header, size, numbers  no damage seen") &&
                 Catch::Contains("no damage seen: 1 file, ") &&
                 Catch::Contains("not compared: the bytes of the numbers (safetensors have no checksums)") &&
                 !Catch::Contains("intact"));
  const OpenCheckpoint checkpoint = open_checkpoint(path);
  put_not_finite(checkpoint, "norm.weight", 3);
  const Ran ran = verify(path, kWhole);
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains("tensor norm.weight holds 3 numbers that are NaN or infinite"));
}

TEST_CASE("verify finds truncated files and says what they held") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 3, {.shards = 2});
  const uint64_t size = fs::file_size(path / "__1_0.distcp");
  for (const uint64_t left : {size - 1, size / 2, uint64_t{0}}) {
    fs::resize_file(path / "__1_0.distcp", left);
    const Verification found = verify_checkpoint(path, kQuick);
    REQUIRE(found.damages.size() == 1);
    CHECK(found.damages[0].file == "__1_0.distcp");
    CHECK_THAT(found.damages[0].what,
               Catch::Contains(std::to_string(left)) && Catch::Contains(std::to_string(size)));
    CHECK(names(found.damages[0], "tok_embeddings.weight"));
  }
}

TEST_CASE("verify finds a file of zeros") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 3);
  const uint64_t size = fs::file_size(path / "__0_0.distcp");
  std::ofstream(path / "__0_0.distcp", std::ios::binary) << std::string(size, '\0');
  CHECK_FALSE(verify_checkpoint(path, kWhole).intact());
}

TEST_CASE("verify finds missing and swapped files") {
  const TemporaryFolder folder;
  const fs::path first = save_toy(folder.path(), 3, {.shards = 2});
  const fs::path second =
      save_toy(folder.path(), 4, {.shards = 2, .offsets = {{"tok_embeddings.weight", 1.0F}}});
  SECTION("a missing file") {
    fs::remove(first / "__1_0.distcp");
    const Verification found = verify_checkpoint(first, kQuick);
    REQUIRE(found.damages.size() == 1);
    CHECK(found.damages[0].file == "__1_0.distcp");
    CHECK(names(found.damages[0], "tok_embeddings.weight"));
  }
  SECTION("files of two steps") {
    fs::rename(first / "__0_0.distcp", folder.path() / "aside");
    fs::rename(second / "__0_0.distcp", first / "__0_0.distcp");
    CHECK_FALSE(verify_checkpoint(first, kWhole).intact());
  }
  SECTION("an index of another save") {
    fs::copy_file(second / ".metadata", first / ".metadata", fs::copy_options::overwrite_existing);
    CHECK_FALSE(verify_checkpoint(first, kQuick).intact());
  }
  SECTION("a folder with another name") {
    fs::rename(first, folder.path() / "step-5");
    const Verification found = verify_checkpoint(folder.path() / "step-5", kQuick);
    REQUIRE(found.damages.size() == 1);
    CHECK_THAT(found.damages[0].what, Catch::Contains("step 3"));
  }
}

TEST_CASE("verify of a job folder looks at every checkpoint") {
  const TemporaryFolder folder;
  save_toy(folder.path(), 3);
  const fs::path bad = save_toy(folder.path(), 4);
  CHECK(verify(folder.path(), kWhole).code == ExitCode::kOk);
  fs::resize_file(bad / "__0_0.distcp", 10);
  const Ran ran = verify(folder.path(), kQuick);
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text,
             Catch::Contains("step-3") && Catch::Contains("sizes agree") && Catch::Contains("DAMAGED"));
  CHECK(nlohmann::json::parse(verify(folder.path(), kQuick, true).text).size() == 2);
  CHECK(verify(folder.path() / "nothing", kQuick).code == ExitCode::kUsage);
}

TEST_CASE("verify counts a damaged index once") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 3);
  flip_bit(path / ".metadata", 100);
  for (const bool quick : {kQuick, kWhole}) {
    const Ran ran = verify(path, quick);
    INFO(ran.text);
    CHECK_THAT(ran.text, Catch::EndsWith("DAMAGED: 1 problem\n"));
  }
  CHECK(verify_checkpoint(path, kWhole).damages[0].end == fs::file_size(path / ".metadata"));
}

TEST_CASE("verify calls a checkpoint with an unreadable manifest damaged, as ls does") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 3);
  flip_bit(path / "hyperion.json", 0);
  CHECK(verify_checkpoint(path, kQuick).kind == CheckpointKind::kDamaged);
  CHECK_THAT(verify(folder.path(), kQuick).text,
             Catch::Matches("[^]*step-3 +damaged +DAMAGED: 1 problem[^]*"));
}

TEST_CASE("verify of a folder without checkpoints is no good answer") {
  const TemporaryFolder folder;
  save_toy(folder.path() / "out" / "checkpoint", 3);
  fs::create_directory(folder.path() / "empty");
  for (const bool json : {false, true}) {
    const Ran empty = verify(folder.path() / "empty", kWhole, json);
    CHECK(empty.code == ExitCode::kUsage);
    CHECK_THAT(empty.text, Catch::EndsWith("/empty: no checkpoints"));
    const Ran above = verify(folder.path() / "out", kWhole, json);
    CHECK(above.code == ExitCode::kUsage);
    CHECK_THAT(above.text, Catch::EndsWith("/out: no checkpoints; did you mean " +
                                           (folder.path() / "out" / "checkpoint").string() + "?"));
  }
}

}  // namespace hyperion::checkpoint
