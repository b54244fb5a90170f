// Files with flipped bits and cut ends: each either is read or ends with one message and exit code 65, never
// by a signal.

#include <functional>
#include <random>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/arrow/arrow_file.h"
#include "data/arrow/parquet_file.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/data/arrow/arrow_test.h"

namespace hyperion::data {
namespace {

constexpr int kMutations = 200;

std::string mutated(std::string content, std::mt19937_64& random) {
  const size_t size = content.size();
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  switch (below(4)) {
    case 0:
      return content.substr(0, below(size));  // cut off
    case 1:
      return content.erase(below(size - 16), 1 + below(16));  // bytes lost
    case 2:
      content.replace(below(size - 8), 8, 8, '\xFF');
      return content;  // a large number
    default:
      for (size_t bits = 1 + below(8); bits > 0; --bits)
        content[below(size)] ^= static_cast<char>(1 << below(8));
      return content;
  }
}

// Returns the number of files that were read.
int read_mutations(const std::string& name,
                   const std::function<std::unique_ptr<TextFile>(const std::string&)>& open) {
  const test::TemporaryFolder folder;
  const std::string whole = content_of(asset(name));
  std::mt19937_64 random(1);
  int read = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string path = folder.write(name, mutated(whole, random));
    try {
      const auto file = open(path);
      for (uint64_t block = 0; const auto documents = file->open_block(block); ++block)
        for (uint64_t document = 0; document < *documents; ++document) file->text(document);
      ++read;
    } catch (const Error& error) {
      INFO(name << " " << i << ": " << error.what());
      CHECK(error.code() == ExitCode::kBadData);
      CHECK(std::string(error.what()).find(name) != std::string::npos);
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
  return read;
}

}  // namespace

TEST_CASE("mutations of a Parquet file are read or refused") {
  const TextField field = {GENERATE("text", "kind", "meta.text")};
  const int read = read_mutations(
      "small.parquet", [&](const std::string& path) { return std::make_unique<ParquetFile>(path, field); });
  CHECK(read > 0);
  CHECK(read < kMutations / 2);
}

TEST_CASE("mutations of Arrow files are read or refused") {
  const TextField field = {GENERATE("text", "kind", "meta.text")};
  const std::string name = GENERATE("stream.arrow", "file.arrow");
  const int read =
      read_mutations(name, [&](const std::string& path) { return std::make_unique<ArrowFile>(path, field); });
  CHECK(read > 0);
  CHECK(read < kMutations / 2);
}

}  // namespace hyperion::data
