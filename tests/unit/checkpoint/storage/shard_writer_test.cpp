#include "checkpoint/storage/shard_writer.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "base/hash.h"
#include "checkpoint/storage/shard_reader.h"
#include "tests/unit/checkpoint/storage/storage_fixture.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;

namespace {

using namespace std::chrono_literals;

std::string failed_save(const std::function<void()>& action) {
  return error_of(ExitCode::kSaveFailed, action);
}

// The expectations of a save of `size` bytes, in pieces.
void check_written(const fs::path& root, uint64_t size, uint64_t piece) {
  const std::string bytes = some_bytes(size);
  ShardWriter writer(root, "shard", 0);
  for (uint64_t at = 0; at < size; at += piece) {
    CHECK(writer.position() == at);
    writer.append(bytes.data() + at, std::min(piece, size - at));
  }
  const FileRecord record = writer.close();
  CHECK(record.name == "shard");
  CHECK(record.bytes == size);
  CHECK(slurp(root / "shard") == bytes);
  std::vector<uint64_t> blocks;
  for (uint64_t at = 0; at < size; at += kBlockBytes)
    blocks.push_back(hash_bytes(bytes.data() + at, std::min(kBlockBytes, size - at)));
  CHECK(record.blocks == blocks);
  CHECK_NOTHROW(verify_file(root, record));
  fs::remove(root / "shard");
}

// Runs in a process of its own, because limits and mounts stay; prints the first failed expectation.
void expect_in_child(const std::function<std::string()>& message, const std::vector<std::string>& parts) {
  const int status = in_child([&] {
    const std::string text = message();
    for (const std::string& part : parts) {
      if (text.find(part) != text.npos) continue;
      std::fprintf(stderr, "\"%s\" is not in: %s\n", part.c_str(), text.c_str());
      ::_exit(2);
    }
  });
  CHECK(status == 0);
}

}  // namespace

TEST_CASE("A shard holds what was appended whatever the pieces are") {
  StorageFixture fixture;
  check_written(fixture.root, 0, 1);
  check_written(fixture.root, 1, 1);
  check_written(fixture.root, 100'000, 777);
  check_written(fixture.root, kBlockBytes, kBlockBytes);
  check_written(fixture.root, 2 * kBlockBytes + 4096, 1'000'003);
  check_written(fixture.root, 5 * kBlockBytes + 17, 3 * kBlockBytes + 1);
}

TEST_CASE("a full disk fails the save with what is needed and free") {
  StorageFixture fixture;
  if (::geteuid() != 0) {
    std::puts("skipped: mounting a small file system needs root");
    return;
  }
  bool mounted = true;
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", fixture.root.c_str(), "tmpfs", 0, "size=3m") != 0)
      ::_exit(3);
    const std::string why =
        failed_save([&] { write_shard(fixture.root, "shard", some_bytes(20'000'000), 3); });
    for (const char* part :
         {"rank 3", "shard", "No space left on device (ENOSPC)", "needed: at least", "free: "})
      if (why.find(part) == why.npos) {
        std::fprintf(stderr, "%s\n", why.c_str());
        ::_exit(2);
      }
    // An unfinished save leaves no file behind, so that the space is there for the next one.
    CheckpointFolder folder(fixture.root / "run");
    fs::remove(fixture.root / "shard");
    const fs::path incoming = folder.begin("big", true);
    failed_save([&] { write_shard(incoming, "shard", some_bytes(20'000'000)); });
    folder.abandon(incoming);
    save_checkpoint(folder, 1);
    if (names_in(folder.path()) != "step-1") ::_exit(4);
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == 3) {
    std::puts("skipped: this sandbox allows no mounts");
    return;
  }
  CHECK(mounted);
  CHECK(status == 0);
}

TEST_CASE("a disk that fills up at the index or the manifest fails the save and commits nothing") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  for (const char* file : {".metadata", "hyperion.json", "distcp"}) {
    arm_faults(std::string("point=file.write;action=errno:ENOSPC;on=") + file, 0);
    CHECK_THAT(failed_save([&] { save_checkpoint(folder, 1); }),
               Catch::Contains("ENOSPC") && Catch::Contains(file));
    CHECK(names_in(fixture.root).empty());
  }
}

TEST_CASE("blocks reach the file in order, whichever of caller and disk is the slower one") {
  StorageFixture fixture;
  const std::string bytes = some_bytes(7 * kBlockBytes + 5);
  for (const char* faults :
       {"", "point=file.write;nth=1;action=sleep:0.05,point=file.write;nth=2;action=sleep:0.05",
        "point=file.write;nth=0;action=sleep:0.01"}) {
    for (const auto pause : {0ms, 5ms}) {
      fs::remove(fixture.root / "shard");
      arm_faults(faults, 0);
      ShardWriter file(fixture.root, "shard", 0);
      for (uint64_t at = 0; at < bytes.size(); at += kBlockBytes) {
        file.append(bytes.data() + at, std::min<uint64_t>(kBlockBytes, bytes.size() - at));
        std::this_thread::sleep_for(pause);
      }
      const FileRecord record = file.close();
      CHECK(slurp(fixture.root / "shard") == bytes);
      verify_file(fixture.root, record);
    }
  }
}

TEST_CASE("the error of the writing thread reaches the caller") {
  StorageFixture fixture;
  arm_faults("point=file.write;nth=2;action=errno:ENOSPC", 0);
  const std::string bytes = some_bytes(4 * kBlockBytes);
  CHECK_THAT(failed_save([&] { write_shard(fixture.root, "shard", bytes, 1); }),
             Catch::Contains("rank 1") && Catch::Contains("at byte 4194304") && Catch::Contains("ENOSPC"));
}

TEST_CASE("the limit on file size is an error and no signal") {
  StorageFixture fixture;
  expect_in_child(
      [&] {
        ignore_file_size_signal();
        const rlimit limit{6'000'000, 6'000'000};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        return failed_save([&] { write_shard(fixture.root, "shard", some_bytes(20'000'000), 1); });
      },
      {"rank 1", "shard", "(EFBIG)", "ulimit -f"});
}

TEST_CASE("too many open files are named") {
  StorageFixture fixture;
  expect_in_child(
      [&] {
        const rlimit limit{3, 3};
        ::setrlimit(RLIMIT_NOFILE, &limit);
        return failed_save([&] { write_shard(fixture.root, "shard", "x", 2); });
      },
      {"rank 2", "shard", "(EMFILE)", "ulimit -n"});
  arm_faults("point=file.write;action=errno:EDQUOT", 0);
  CHECK_THAT(failed_save([&] { write_shard(fixture.root, "quota", "x"); }),
             Catch::Contains("(EDQUOT); the quota"));
  arm_faults("point=file.open;action=errno:ENOSPC", 0);
  CHECK_THAT(failed_save([&] { write_shard(fixture.root, "inodes", "x"); }),
             Catch::Contains("cannot make") && Catch::Contains("ENOSPC"));
}

TEST_CASE("failures of write and fsync and close fail the save and fsync is asked once") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  for (const char* point : {"file.write", "file.fsync", "file.close"}) {
    int synced = 0;
    observe_durable_steps([&](std::string_view step, const fs::path& path) {
      synced += step == "fsync" && path.filename() == "__0_0.distcp";
    });
    arm_faults(fmt::format("point={};action=errno:EIO;on=distcp", point), 0);
    CHECK_THAT(failed_save([&] { save_checkpoint(folder, 1); }), Catch::Contains("(EIO)"));
    CHECK(synced == (std::string_view(point) == "file.close"));
    CHECK(names_in(fixture.root).empty());
  }
}

TEST_CASE("short writes and interruptions lose nothing") {
  StorageFixture fixture;
  arm_faults(
      "point=file.write;nth=1;action=short,point=file.write;nth=2;action=errno:EINTR,"
      "point=file.write;nth=4;action=short,point=file.write;nth=5;action=short",
      0);
  check_written(fixture.root, 3 * kBlockBytes + 5, 1'000'000);
  arm_faults("point=file.write;nth=0;action=short", 0);
  check_written(fixture.root, 100'001, 100'001);
}

TEST_CASE("a shard takes no existing file and follows no link") {
  StorageFixture fixture;
  write_shard(fixture.root, "there", "first");
  CHECK_THAT(failed_save([&] { write_shard(fixture.root, "there", "second"); }), Catch::Contains("EEXIST"));
  CHECK(slurp(fixture.root / "there") == "first");
  fs::create_symlink("nowhere", fixture.root / "link");
  CHECK_THAT(failed_save([&] { write_shard(fixture.root, "link", "x"); }), Catch::Contains("cannot make"));
  CHECK_THAT(failed_save([&] { write_shard(fixture.root / "missing", "f", "x"); }),
             Catch::Contains("ENOENT"));
  CHECK_THROWS_AS(write_shard(fixture.root, "../f", "x"), Error);
}

TEST_CASE("a byte that changes between memory and disk is found on reading back") {
  StorageFixture fixture;
  arm_faults("point=file.write;nth=2;action=flip", 0);
  const FileRecord record = write_shard(fixture.root, "shard", some_bytes(3 * kBlockBytes));
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { verify_file(fixture.root, record); }),
             Catch::Contains("shard: bytes 4194304 to 8388608 are damaged"));
}

}  // namespace hyperion::checkpoint
