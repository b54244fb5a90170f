#include "base/files.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include <filesystem>

#include "base/durable.h"
#include "base/error.h"

namespace fs = std::filesystem;

TEST_CASE("files are replaced whole, read back and mapped") {
  const fs::path folder = fs::temp_directory_path() / ("hyperion_files_test_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const fs::path path = folder / "file";
  hyperion::write_file_atomic(path, "one");
  hyperion::write_file_atomic(path, "second");
  CHECK(hyperion::read_file(path) == "second");
  hyperion::MappedFile map(path);
  CHECK(std::string(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()) == "second");
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);
  fs::remove_all(folder);
}

TEST_CASE("a file that cannot be written is no damaged data") {
  try {
    hyperion::write_file_atomic("/no/such/file", "one");
    FAIL("it was written");
  } catch (const hyperion::Error& error) {
    CHECK(error.code() == hyperion::ExitCode::kSaveFailed);
    CHECK_THAT(error.what(), Catch::StartsWith("/no/such/file.tmp."));
  }
}

TEST_CASE("folders are made with their parents, or refused where none can be") {
  const fs::path folder = fs::temp_directory_path() / ("hyperion_folders_test_" + std::to_string(::getpid()));
  hyperion::make_folders(folder / "a" / "b" / "");
  hyperion::make_folders(folder / "a" / "b");
  CHECK(fs::is_directory(folder / "a" / "b"));
  fs::remove_all(folder);
  CHECK_THROWS_WITH(hyperion::make_folders("/proc/none/below"),
                    Catch::Contains("/proc/none: the folder cannot be made"));
}

TEST_CASE("a missing, oversized or irregular file is an error that names it") {
  CHECK_THROWS_WITH(hyperion::read_file("/no/such/file"), Catch::Contains("/no/such/file"));
  CHECK_THROWS_AS(hyperion::read_file("/"), hyperion::Error);
  CHECK_THROWS_WITH(hyperion::read_file(HYPERION_SOURCE_DIR "/CMakeLists.txt", 3),
                    Catch::Contains("at most 3"));
}
