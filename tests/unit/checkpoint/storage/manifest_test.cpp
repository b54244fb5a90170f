#include "checkpoint/storage/manifest.h"

#include <catch2/catch.hpp>

#include "base/hash.h"
#include "base/pack.h"
#include "tests/unit/checkpoint/storage/storage_fixture.h"

namespace hyperion::checkpoint {
namespace {

Manifest example() {
  Manifest manifest;
  manifest.save_id = "5f0c";
  manifest.step = 1200;
  manifest.world_size = 4;
  manifest.kind = CheckpointKind::kFull;
  manifest.config_hash = "00ff";
  manifest.writer = "hyperion 0.1.0";
  manifest.unix_time = 1'700'000'000;
  manifest.facts = {{"tokens", "123"}, {"odd \"key\"\n", "\\"}};
  manifest.files = {{"__0_0.distcp", kBlockBytes + 1, {1, UINT64_MAX}}, {"empty", 0, {}}};
  return manifest;
}

std::string refusal(const std::string& text) {
  return error_of(ExitCode::kBadData, [&] { manifest_from_json(text, "M"); });
}

// `text` with its first `from` replaced and the checksum made right again.
std::string edited(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  text.replace(at, from.size(), to);
  const size_t digits = text.size() - 20;
  text.replace(digits, 16, fmt::format("{:016x}", hash_text(std::string_view(text).substr(0, digits))));
  return text;
}

}  // namespace

TEST_CASE("A manifest comes back from its text as it was") {
  const Manifest in = example();
  const Manifest out = manifest_from_json(to_json(in));
  CHECK(out.save_id == in.save_id);
  CHECK(out.step == in.step);
  CHECK(out.world_size == in.world_size);
  CHECK(out.kind == in.kind);
  CHECK(out.config_hash == in.config_hash);
  CHECK(out.writer == in.writer);
  CHECK(out.unix_time == in.unix_time);
  CHECK(out.facts == in.facts);
  CHECK(out.files == in.files);
  CHECK(unpack<FileRecord>(pack(in.files[0])) == in.files[0]);
}

TEST_CASE("every flipped bit of a manifest is refused") {
  const std::string good = to_json(example());
  int accepted = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      const std::string why = refusal(bad);
      accepted += why == "nothing was thrown" || why.starts_with("not an Error");
    }
  }
  CHECK(accepted == 0);
}

TEST_CASE("a truncated or extended manifest is refused") {
  const std::string good = to_json(example());
  for (size_t size = 0; size < good.size(); size += 7)
    CHECK(refusal(good.substr(0, size)) != "nothing was thrown");
  CHECK(refusal(good + " ") != "nothing was thrown");
}

TEST_CASE("a manifest of a newer format is refused by name") {
  const std::string newer = edited(to_json(example()), "\"format_version\": 1", "\"format_version\": 2");
  CHECK_THAT(refusal(newer), Catch::Contains("format version 2") && Catch::Contains("newer program"));
}

TEST_CASE("Hostile manifests are refused whatever their checksum says") {
  const std::string good = to_json(example());
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& why) {
    INFO(to);
    CHECK_THAT(refusal(edited(good, from, to)), Catch::Contains(why));
  };
  refused("\"__0_0.distcp\"", "\"../shard\"", "not the name of a file");
  refused("\"__0_0.distcp\"", "\"a\\u0000b\"", "not the name of a file");
  refused("\"__0_0.distcp\"", "\"..\"", "not the name of a file");
  refused("\"__0_0.distcp\"", "\"empty\"", "twice");
  refused("\"bytes\": 4194305", "\"bytes\": -1", ".bytes is");
  refused("\"bytes\": 4194305", "\"bytes\": 18446744073709551615", ".bytes is");
  refused("\"bytes\": 4194305", "\"bytes\": 9007199254740992", "block hashes");
  refused("\"bytes\": 4194305", "\"bytes\": 1e3", ".bytes is");
  refused("\"world_size\": 4", "\"world_size\": 0", ".world_size is");
  refused("\"step\": 1200", "\"step\": -1", ".step is");
  refused("\"block_bytes\": 4194304", "\"block_bytes\": 1", ".block_bytes is");
  refused("\"kind\": \"full\"", "\"kind\": [\"full\"]", ".kind is");
  refused("\"kind\": \"full\"", "\"kind\": \"half\"", "M.kind \"half\" is none of a checkpoint");
  refused("\"kind\": \"full\"", "\"kind\": \"damaged\"", "M.kind \"damaged\" is none of a checkpoint");
  refused("ffffffffffffffff", "FFFFFFFFFFFFFFFF", "16 hexadecimal digits");
  refused("ffffffffffffffff", "fffffffffffffffe", "does not belong to its blocks");
  refused("\"step\": 1200", "\"step\": 1200, \"step\": 1200", "twice");
  refused("\"step\": 1200", "\"steps\": 1200", "M.step is missing, expected a whole number");
  CHECK(refusal(std::string(100000, '[')) != "nothing was thrown");
  CHECK_THAT(refusal("[]"), Catch::Contains("expected an object"));
}

TEST_CASE("a shard of another size is named with both sizes") {
  StorageFixture fixture;
  Manifest manifest = example();
  manifest.files = {write_shard(fixture.root, "shard", some_bytes(1000))};
  CHECK_NOTHROW(check_sizes(fixture.root, manifest));
  for (const uint64_t size : {999, 500, 0}) {
    std::filesystem::resize_file(fixture.root / "shard", size);
    const std::string why = error_of(ExitCode::kBadData, [&] { check_sizes(fixture.root, manifest); });
    CHECK_THAT(why, Catch::Contains("shard: has " + std::to_string(size) + " bytes, 1000 were written"));
  }
  std::ofstream(fixture.root / "shard") << "version https://git-lfs.github.com/spec/v1\n";
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { check_sizes(fixture.root, manifest); }),
             Catch::Contains("shard: is a pointer of Git LFS"));
  std::filesystem::remove(fixture.root / "shard");
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { check_sizes(fixture.root, manifest); }),
             Catch::Contains("missing"));
  std::filesystem::create_symlink("/dev/zero", fixture.root / "shard");
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { check_sizes(fixture.root, manifest); }),
             Catch::Contains("not a regular file"));
}

TEST_CASE("a manifest that is a link is refused, wherever it leads") {
  StorageFixture fixture;
  std::filesystem::create_directory(fixture.root / "elsewhere");
  std::ofstream(fixture.root / "elsewhere" / kManifestFile) << to_json(example());
  CHECK_NOTHROW(read_manifest(fixture.root / "elsewhere"));
  std::filesystem::create_symlink(fixture.root / "elsewhere" / kManifestFile, fixture.root / kManifestFile);
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { read_manifest(fixture.root); }),
             Catch::Contains("hyperion.json") && Catch::Contains("links are not followed"));
}

}  // namespace hyperion::checkpoint
