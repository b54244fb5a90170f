#include "app/report/backward_lines.h"

#include <fstream>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/stat.h>

#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::report {
namespace {

std::vector<std::string> backward(const std::string& content, size_t longest = 100, size_t block = 1000) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "f") << content;
  BackwardLines lines(folder.path() / "f", longest, block);
  std::vector<std::string> texts;
  while (const auto line = lines.next())
    texts.push_back((line->too_long ? "TOO LONG" : std::string(line->text)) +
                    (line->ended ? "" : " (no end)"));
  return texts;
}
using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("Lines come from the last to the first for every size of block") {
  for (const size_t block : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1000}}) {
    CHECK(backward("one\ntwo\nthree\n", 100, block) == Texts{"three", "two", "one"});
    CHECK(backward("one\n\n \t\r\ntorn", 100, block) == Texts{"torn (no end)", "one"});
    CHECK(backward("", 100, block) == Texts{});
    CHECK(backward("\n\n", 100, block) == Texts{});
    CHECK(backward("\nx", 100, block) == Texts{"x (no end)"});
  }
}

TEST_CASE("A line longer than the limit is said and passed over without being kept") {
  for (const size_t block : {size_t{3}, size_t{16}, size_t{1000}}) {
    const std::string longer(200, 'x');
    CHECK(backward("a\n" + longer + "\nb\n", 20, block) == Texts{"b", "TOO LONG", "a"});
    CHECK(backward(longer + "\nb\n", 20, block) == Texts{"b", "TOO LONG"});
    CHECK(backward("a\n" + longer, 20, block) == Texts{"TOO LONG (no end)", "a"});
  }
}

TEST_CASE("Only a regular file is read and a named pipe does not wait") {
  const test::TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { BackwardLines lines(pipe); }),
             Catch::Contains("regular file"));
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { BackwardLines lines(folder.path()); }),
             Catch::Contains("regular file"));
  CHECK_THAT(error_of(ExitCode::kBadData, [&] { BackwardLines lines(folder.path() / "none"); }),
             Catch::Contains("cannot open"));
}

}  // namespace hyperion::report
