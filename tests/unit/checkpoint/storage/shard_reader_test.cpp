#include "checkpoint/storage/shard_reader.h"

#include <catch2/catch.hpp>
#include <sys/stat.h>

#include "tests/unit/checkpoint/storage/storage_fixture.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSize = 5 * kBlockBytes + 12345;

std::string bad(const std::function<void()>& action) {
  return error_of(ExitCode::kBadData, action);
}

}  // namespace

TEST_CASE("Any range of a shard is read as it was written") {
  StorageFixture fixture;
  const std::string bytes = some_bytes(kSize);
  const FileRecord record = write_shard(fixture.root, "shard", bytes);
  for (const FileRecord* known : {&record, static_cast<const FileRecord*>(nullptr)}) {
    ShardReader reader(fixture.root, "shard", known);
    CHECK(reader.size() == kSize);
    const std::pair<uint64_t, uint64_t> ranges[] = {{0, kSize},
                                                    {0, 0},
                                                    {kSize, 0},
                                                    {0, kBlockBytes},
                                                    {1, kSize - 1},
                                                    {kBlockBytes, 2 * kBlockBytes},
                                                    {kBlockBytes - 1, 2},
                                                    {kBlockBytes + 7, 3 * kBlockBytes},
                                                    {5 * kBlockBytes, 12345},
                                                    {4 * kBlockBytes, kBlockBytes + 12345},
                                                    {kSize - 1, 1}};
    for (const auto& [offset, count] : ranges)
      CHECK(reader.read_text(offset, count) == bytes.substr(offset, count));
    CHECK_THAT(bad([&] { reader.read_text(kSize, 1); }), Catch::Contains("shard"));
    CHECK_THAT(bad([&] { reader.read_text(1, UINT64_MAX); }), Catch::Contains("shard"));
  }
}

TEST_CASE("What is expected is read ahead, and anything else besides") {
  StorageFixture fixture;
  const std::string bytes = some_bytes(kSize);
  const FileRecord record = write_shard(fixture.root, "shard", bytes);
  ShardReader reader(fixture.root, "shard", &record);
  const auto right = [&](uint64_t offset, uint64_t count) {
    return reader.read_text(offset, count) == bytes.substr(offset, count);
  };
  CHECK_THAT(bad([&] { reader.expect({{kSize - 1, 2}}); }), Catch::Contains("shard"));
  const std::vector<ByteRange> ranges = {
      {10, 20}, {40, 0}, {50, kBlockBytes}, {3 * kBlockBytes - 1, 2}, {5 * kBlockBytes, 12345}};
  reader.expect(ranges);
  for (const ByteRange& range : ranges) CHECK(right(range.offset, range.bytes));
  CHECK(right(0, kSize));  // all of it has been taken

  reader.expect(ranges);
  CHECK(right(4 * kBlockBytes + 3, 10));  // between: passes over the first blocks
  CHECK(right(20, 10));                   // before it
  CHECK(right(4 * kBlockBytes + 3, 20));
  CHECK(right(5 * kBlockBytes, 100));
  CHECK(right(4 * kBlockBytes, kBlockBytes + 100));

  reader.expect({{0, kSize}});
  CHECK(right(kBlockBytes, 5));
  CHECK(right(0, 3 * kBlockBytes));  // one block before the stream's place, then two of it
  CHECK(right(1, 2));
  reader.expect({{0, kSize}});  // none of it is taken
}

TEST_CASE("A damaged block that was expected is refused, and those after it are read") {
  StorageFixture fixture;
  const std::string bytes = some_bytes(kSize);
  const FileRecord record = write_shard(fixture.root, "shard", bytes);
  damage(fixture.root / "shard", kBlockBytes + 99);
  ShardReader reader(fixture.root, "shard", &record);
  reader.expect({{0, kSize}});
  const std::string range = fmt::format("shard: bytes {} to {} are damaged", kBlockBytes, 2 * kBlockBytes);
  CHECK(reader.read_text(7, 100) == bytes.substr(7, 100));
  CHECK_THAT(bad([&] { reader.read_text(kBlockBytes - 1, 3); }), Catch::Contains(range));
  CHECK_THAT(bad([&] { reader.read_text(kBlockBytes, 1); }), Catch::Contains(range));
  CHECK(reader.read_text(2 * kBlockBytes, 1) == bytes.substr(2 * kBlockBytes, 1));
  CHECK(reader.read_text(kSize - 5, 5) == bytes.substr(kSize - 5));
}

TEST_CASE("Interrupted and short reads lose nothing") {
  StorageFixture fixture;
  const std::string bytes = some_bytes(kSize);
  const FileRecord record = write_shard(fixture.root, "shard", bytes);
  arm_faults("point=file.read;nth=1;action=short,point=file.read;nth=2;action=errno:EINTR", 0);
  ShardReader reader(fixture.root, "shard", &record);
  CHECK(reader.read_text(0, kSize) == bytes);
  arm_faults("point=file.read;action=errno:EIO", 0);
  CHECK_THAT(bad([&] { reader.read_text(0, kSize); }),
             Catch::Contains("cannot be read") && Catch::Contains("EIO"));
  arm_faults("point=file.read;action=flip", 0);
  CHECK_THAT(bad([&] { reader.read_text(0, kSize); }), Catch::Contains("are damaged"));
}

TEST_CASE("a truncated shard is refused before and while it is read") {
  StorageFixture fixture;
  const FileRecord record = write_shard(fixture.root, "shard", some_bytes(kSize));
  {
    ShardReader reader(fixture.root, "shard", &record);
    fs::resize_file(fixture.root / "shard", kSize - 1);
    CHECK_THAT(bad([&] { reader.read_text(0, kSize); }), Catch::Contains("truncated"));
  }
  for (const uint64_t size : {kSize - 1, kSize / 2, uint64_t{0}}) {
    fs::resize_file(fixture.root / "shard", size);
    const auto refused = Catch::Contains("has " + std::to_string(size) + " bytes, " + std::to_string(kSize));
    CHECK_THAT(bad([&] { ShardReader(fixture.root, "shard", &record); }), refused);
    CHECK_THAT(bad([&] { verify_file(fixture.root, record); }), refused);
  }
}

TEST_CASE("a flipped bit is refused with the byte range and other blocks still read") {
  StorageFixture fixture;
  const std::string bytes = some_bytes(kSize);
  const FileRecord record = write_shard(fixture.root, "shard", bytes);
  for (const uint64_t at : {uint64_t{0}, kBlockBytes + 99, kSize - 1}) {
    damage(fixture.root / "shard", at);
    const uint64_t block = at / kBlockBytes;
    const std::string range = fmt::format("shard: bytes {} to {} are damaged", block * kBlockBytes,
                                          std::min(kSize, (block + 1) * kBlockBytes));
    ShardReader reader(fixture.root, "shard", &record);
    CHECK_THAT(bad([&] { reader.read_text(0, kSize); }), Catch::Contains(range));
    CHECK_THAT(bad([&] { reader.read_text(at, 1); }), Catch::Contains(range));
    CHECK_THAT(bad([&] { reader.read_text(block * kBlockBytes + (at == 0), 10); }), Catch::Contains(range));
    CHECK(reader.read_text(3 * kBlockBytes - 5, 10) == bytes.substr(3 * kBlockBytes - 5, 10));
    CHECK_THAT(bad([&] { verify_file(fixture.root, record); }), Catch::Contains(range));
    damage(fixture.root / "shard", at);
  }
  CHECK_NOTHROW(verify_file(fixture.root, record));
}

TEST_CASE("a shard of zeros is refused") {
  StorageFixture fixture;
  const FileRecord record = write_shard(fixture.root, "shard", some_bytes(kSize));
  fs::resize_file(fixture.root / "shard", 0);
  fs::resize_file(fixture.root / "shard", kSize);
  ShardReader reader(fixture.root, "shard", &record);
  CHECK_THAT(bad([&] { reader.read_text(100, 100); }), Catch::Contains("are damaged"));
}

TEST_CASE("missing and swapped shards are refused") {
  StorageFixture fixture;
  const FileRecord one = write_shard(fixture.root, "one", some_bytes(1000, 1));
  const FileRecord two = write_shard(fixture.root, "two", some_bytes(1000, 2));
  fs::rename(fixture.root / "one", fixture.root / "spare");
  CHECK_THAT(bad([&] { ShardReader(fixture.root, "one", &one); }),
             Catch::Contains("one: cannot be opened: No such"));
  fs::rename(fixture.root / "two", fixture.root / "one");
  ShardReader reader(fixture.root, "one", &one);
  CHECK_THAT(bad([&] { reader.read_text(0, 1); }), Catch::Contains("one: bytes 0 to 1000 are damaged"));
}

TEST_CASE("a shard is never read from outside its folder") {
  StorageFixture fixture;
  const FileRecord outside = write_shard(fixture.root, "secret", "secret");
  fs::create_directory(fixture.root / "step-1");
  const fs::path folder = fixture.root / "step-1";
  fs::create_symlink("../secret", folder / "link");
  fs::create_directory(folder / "folder");
  ::mkfifo((folder / "pipe").c_str(), 0600);
  for (const char* name : {"../secret", "/etc/passwd", "", ".", "..", "link", "folder", "pipe", "a/b"}) {
    INFO(name);
    CHECK(bad([&] { ShardReader(folder, name); }).find(folder.string()) == 0);
    FileRecord record = outside;
    record.name = name;
    CHECK(bad([&] { verify_file(folder, record); }).find(folder.string()) == 0);
  }
  CHECK_THAT(bad([&] { ShardReader(folder, std::string("a\0b", 3)); }), Catch::Contains("not the name"));
  ShardReader followed(folder, "link", nullptr, Links::kFollow);
  CHECK(followed.read_text(0, 6) == "secret");
}

}  // namespace hyperion::checkpoint
