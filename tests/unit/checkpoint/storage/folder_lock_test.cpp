#include "checkpoint/storage/folder_lock.h"

#include <catch2/catch.hpp>
#include <unistd.h>

#include "tests/unit/checkpoint/storage/storage_fixture.h"

namespace hyperion::checkpoint {

TEST_CASE("a second run in the same folder is refused with the owner and the remedy") {
  StorageFixture fixture;
  const std::filesystem::path folder = fixture.root / "checkpoint";
  std::filesystem::create_directories(folder / "other");
  std::optional<FolderLock> lock(folder);
  std::string message;
  const int status = in_child([&] {
    const std::string why = error_of(ExitCode::kUsage, [&] { FolderLock second(folder); });
    const LockOwner self = this_process();
    const bool good = why.find(fmt::format("process {} on host {}", ::getppid(), self.host)) != why.npos &&
                      why.find("another run writes") != why.npos && why.find("stop it") != why.npos;
    if (!good) std::fprintf(stderr, "%s\n", why.c_str());
    ::_exit(good ? 0 : 2);
  });
  CHECK(status == 0);
  CHECK(CheckpointFolder(folder).scan().empty());  // reading needs no lock
  lock.reset();
  CHECK_NOTHROW(FolderLock(folder));
  CHECK(std::filesystem::file_size(folder / ".lock") == 0);
}

TEST_CASE("a second run is refused when somebody has removed the file of the lock") {
  StorageFixture fixture;
  std::optional<FolderLock> lock(fixture.root);
  std::filesystem::remove(fixture.root / ".lock");
  for (int attempt = 0; attempt < 2; ++attempt)  // the first makes a file again
    CHECK_THAT(error_of(ExitCode::kUsage, [&] { FolderLock second(fixture.root); }),
               Catch::Contains("another run writes checkpoints here") && Catch::Contains(".lock") &&
                   Catch::Contains("was removed") && Catch::Contains("stop that run"));
  lock.reset();
  CHECK_NOTHROW(FolderLock(fixture.root));
}

TEST_CASE("a lock that ends with nothing else in its folder leaves nothing that it made") {
  namespace fs = std::filesystem;
  StorageFixture fixture;
  { const FolderLock lock(fixture.root / "out" / "checkpoint"); }
  CHECK(fs::is_empty(fixture.root));
  fs::create_directories(fixture.root / "out" / "checkpoint");  // a folder that was there stays
  { const FolderLock lock(fixture.root / "out" / "checkpoint"); }
  CHECK(fs::is_empty(fixture.root / "out" / "checkpoint"));
  fs::remove_all(fixture.root / "out");
  {
    const FolderLock lock(fixture.root / "out" / "checkpoint");
    std::ofstream(fixture.root / "out" / "metrics.jsonl");
  }
  CHECK(fs::exists(fixture.root / "out" / "metrics.jsonl"));
  CHECK_FALSE(fs::exists(fixture.root / "out" / "checkpoint"));
  {
    const FolderLock lock(fixture.root / "out" / "checkpoint");
    fs::create_directory(fixture.root / "out" / "checkpoint" / "step-1");
  }
  CHECK(fs::file_size(fixture.root / "out" / "checkpoint" / ".lock") == 0);
  fs::remove(fixture.root / "out" / "checkpoint" / "step-1");
  { const FolderLock lock(fixture.root / "out" / "checkpoint"); }  // whose file was there before it
  CHECK(fs::exists(fixture.root / "out" / "checkpoint" / ".lock"));
}

TEST_CASE("the lock of a run that was killed is taken over") {
  StorageFixture fixture;
  const int status = in_child([&] {
    const FolderLock lock(fixture.root);
    ::kill(::getpid(), SIGKILL);
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  CHECK(lock_owner_from_json(slurp(fixture.root / ".lock")));
  CHECK_NOTHROW(FolderLock(fixture.root));
}

TEST_CASE("an owner is only taken for dead when that is certain") {
  const LockOwner self{"node1", 10, 0, 500, "boot-b", ""};
  LockOwner owner{"node1", 7, 0, 300, "boot-b", "42"};
  CHECK(why_not_stale(owner, self, false, true).empty());
  CHECK(why_not_stale(owner, self, true, true) == "that process runs");
  owner.boot_id = "boot-a";  // before the host's last start
  CHECK(why_not_stale(owner, self, true, false).empty());
  owner.host = "node2";
  CHECK(why_not_stale(owner, self, false, true).empty());
  CHECK_THAT(why_not_stale(owner, self, false, false), Catch::Contains("another host"));
  LockOwner requeued = self;
  requeued.job = "42";
  CHECK(why_not_stale(owner, requeued, false, false).empty());
}

TEST_CASE("a live owner whose lock is not held is still respected") {
  StorageFixture fixture;
  std::ofstream(fixture.root / ".lock") << to_json(this_process());
  CHECK_THAT(error_of(ExitCode::kUsage, [&] { FolderLock lock(fixture.root); }),
             Catch::Contains("that process runs") && Catch::Contains("remove"));
  LockOwner reused = this_process();  // the number of a process that ended, given to another one
  reused.start_ticks += 1;
  std::ofstream(fixture.root / ".lock") << to_json(reused);
  CHECK_NOTHROW(FolderLock(fixture.root));
}

TEST_CASE("A lock file with anything in it does not stop a run") {
  StorageFixture fixture;
  for (const std::string& text :
       {std::string("garbage"), std::string("{}"), std::string("[1]"), std::string(9999, '['),
        std::string("{\"host\":1}"), std::string("\0\xff", 2)}) {
    std::ofstream(fixture.root / ".lock", std::ios::trunc) << text;
    CHECK_NOTHROW(FolderLock(fixture.root));
  }
  const LockOwner self = this_process();
  CHECK(lock_owner_from_json(to_json(self)) == self);
}

}  // namespace hyperion::checkpoint
