#include "base/files.h"

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace hyperion {

namespace fs = std::filesystem;
using test::TemporaryFolder;

TEST_CASE("files are replaced whole and read back") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "file";
  write_file_atomic(path, "one");
  write_file_atomic(path, "second");
  CHECK(read_file(path) == "second");
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("a file that cannot be written is no damaged data") {
  try {
    write_file_atomic("/no/such/file", "one");
    FAIL("it was written");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kSaveFailed);
    CHECK_THAT(error.what(), Catch::StartsWith("/no/such/file: cannot be made: "));
  }
}

TEST_CASE("folders are made with their parents, or refused where none can be") {
  const TemporaryFolder folder;
  make_folders(folder.path() / "a" / "b" / "");
  make_folders(folder.path() / "a" / "b");
  CHECK(fs::is_directory(folder.path() / "a" / "b"));
  CHECK_THROWS_WITH(make_folders("/proc/none/below"),
                    Catch::Contains("/proc/none: the folder cannot be made"));
}

TEST_CASE("what is no regular file is refused at once, and said") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe", socket = folder.path() / "socket",
                 link = folder.path() / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_file(pipe), Catch::Contains("pipe: is a named pipe, not a regular file"));
  CHECK_THROWS_WITH(InputFile(pipe), Catch::Contains("is a named pipe"));
  CHECK_THROWS_WITH(read_file(folder.path()), Catch::Contains("is a folder, not a regular file"));
  CHECK_THROWS_WITH(read_file("/dev/null"), Catch::Contains("is a device, not a regular file"));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(socket.native().size() < sizeof address.sun_path);
  std::strcpy(address.sun_path, socket.c_str());
  const Descriptor listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK_THROWS_WITH(read_file(socket), Catch::Contains("is a socket, not a regular file"));
  write_file_atomic(folder.path() / "file", "content");
  fs::create_symlink("file", link);
  CHECK(read_file(link) == "content");
  CHECK_THROWS_WITH(read_file(link, 100, Links::kRefuse),
                    Catch::Contains("link: cannot open") && Catch::Contains("links are not followed"));
}

TEST_CASE("a look at a path says what the system does not tell instead of throwing as std::filesystem does") {
  const TemporaryFolder folder;
  const fs::path loop = folder.path() / "loop", file = folder.path() / "file", gone = folder.path() / "gone";
  fs::create_symlink("loop", loop);
  fs::create_symlink("nowhere", gone);
  write_file_atomic(file, "content");
  const auto leads_to_itself = Catch::Contains("ELOOP): the link leads to itself");
  CHECK_THROWS_WITH(path_exists(loop), leads_to_itself);
  CHECK_THROWS_WITH(is_folder(loop), leads_to_itself);
  CHECK_THROWS_WITH(name_exists(loop / "inside"), leads_to_itself);
  CHECK_THROWS_WITH(list_folder(loop), Catch::Contains("cannot be listed"));
  CHECK_THROWS_WITH(read_file(loop), leads_to_itself);
  CHECK_THROWS_WITH(regular_file_exists(loop), Catch::Contains("is a symbolic link, not a regular file"));
  CHECK(name_exists(loop));
  CHECK(name_exists(gone));
  CHECK_FALSE(path_exists(gone));
  CHECK_FALSE(path_exists(file / "inside"));
  CHECK_FALSE(regular_file_exists(folder.path() / "none"));
  CHECK(regular_file_exists(file));
  CHECK(list_folder(folder.path()) == std::vector<fs::path>{file, gone, loop});
  try {
    path_exists(loop, ExitCode::kUsage);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
  }
}

TEST_CASE("a place to write at is looked at without making anything") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe", link = folder.path() / "link",
                 free = folder.path() / "a" / "b";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink("/dev/null", link);
  for (const fs::path& taken : {pipe, link}) {
    CHECK_THROWS_WITH(require_place_for_file(taken), Catch::Contains(taken.string() + ": is a "));
    CHECK_THROWS_WITH(require_place_for_folder(taken / "tb"), Catch::Contains(taken.string() + ": is a "));
  }
  require_place_for_file(free);
  require_place_for_folder(free);
  CHECK_FALSE(fs::exists(folder.path() / "a"));
  fs::create_directory_symlink(folder.path(), folder.path() / "elsewhere");
  require_place_for_folder(folder.path() / "elsewhere" / "tb");
}

TEST_CASE("a pipe is read to its end where one is allowed, within a limit and without waiting for ever") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string text(300'000, 'x');
  const auto write = [&] { std::ofstream(pipe) << text; };
  {
    const std::jthread writer(write);
    CHECK(read_file_or_pipe(pipe, 1 << 20) == text);
  }
  {
    std::signal(SIGPIPE, SIG_IGN);
    const std::jthread writer(write);
    CHECK_THROWS_WITH(read_file_or_pipe(pipe, 1000), Catch::Contains("more than 1000 bytes"));
  }
  CHECK_THROWS_WITH(read_file_or_pipe(pipe, 1000, 1), Catch::Contains("nothing came from it for 1 s"));
  CHECK_THROWS_WITH(read_file_or_pipe(folder.path(), 1000), Catch::Contains("is a folder"));
  CHECK(read_file_or_pipe("/dev/null", 1000).empty());
}

TEST_CASE("a file that becomes shorter while it is read is an error that names it") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "file";
  write_file_atomic(path, std::string(100'000, 'x'));
  const InputFile file(path);
  fs::resize_file(path, 10'000);
  std::string part(4096, '\0');
  file.read(0, part.data(), part.size());
  CHECK_THROWS_WITH(file.read(90'000, part.data(), part.size()),
                    Catch::Contains(path.string()) && Catch::Contains("became shorter"));
}

TEST_CASE("a link in the place of a temporary file is replaced, not followed") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "file", victim = folder.path() / "victim";
  const fs::path temporary = path.string() + ".tmp." + std::to_string(::getpid());
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, temporary);
  write_file_atomic(path, "new");
  CHECK(read_file(path) == "new");
  CHECK(read_file(victim) == "precious");
  std::ofstream(temporary) << "left by a process with the same number that was killed";
  write_file_atomic(path, "newer");
  CHECK(read_file(path) == "newer");
  fs::create_directory(temporary);
  CHECK_THROWS_WITH(write_file_atomic(path, "newest"),
                    Catch::StartsWith(path.string() + ": " + temporary.string() + " is in its way"));
  CHECK(read_file(path) == "newer");
}

TEST_CASE("a missing, oversized or irregular file is an error that names it") {
  CHECK_THROWS_WITH(read_file("/no/such/file"), Catch::Contains("/no/such/file"));
  CHECK_THROWS_AS(read_file("/"), Error);
  CHECK_THROWS_WITH(read_file(HYPERION_SOURCE_DIR "/CMakeLists.txt", 3), Catch::Contains("at most 3"));
}

}  // namespace hyperion
