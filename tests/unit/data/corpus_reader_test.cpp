#include "data/corpus_reader.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "base/json.h"
#include "base/philox.h"
#include "data/document_order.h"
#include "data/token_stream.h"
#include "tests/support/documents.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::data {
namespace {

using Place = std::pair<uint64_t, uint64_t>;  // file, location

std::vector<Place> epoch_of(CorpusReader& reader) {
  std::vector<Place> places;
  while (reader.draw(/*one_epoch=*/true)) {
    const DocumentInfo info = reader.open();
    places.emplace_back(info.file, info.location);
  }
  return places;
}

CorpusReader reader_of(const std::string& path, const StreamOptions& options = {}) {
  return {find_corpus(path), test::encode_bytes, options};
}

// A folder of files whose documents begin with the file's letter.
void write_kinds(const test::TemporaryFolder& folder, int files, int kinds, int documents, size_t length) {
  for (int file = 0; file < files; ++file) {
    std::string lines;
    for (int i = 0; i < documents; ++i)
      lines += R"({"text": ")" + std::string(length, static_cast<char>('a' + file * kinds / files)) + "\"}\n";
    folder.write(fmt::format("{:04}.jsonl", file), lines);
  }
}

}  // namespace

TEST_CASE("a bad document is an error that names its line unless bad ones are skipped") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": 7}\n{\"text\": null}\n");
  CorpusReader stops = reader_of(path, {.shuffle = false}),
               skips = reader_of(path, {.shuffle = false, .skips_bad_documents = true});
  std::vector<uint64_t> lengths;
  std::string bad;
  while (skips.draw(/*one_epoch=*/true)) {
    lengths.push_back(skips.open().length);
    bad += skips.bad();
  }
  CHECK(lengths == std::vector<uint64_t>{3, 0, 0});
  CHECK_THAT(bad, Catch::Contains("a.jsonl:2: its \"text\" is no string"));
  stops.draw();
  CHECK(stops.open().length == 3);
  stops.draw();
  CHECK_THROWS_WITH(stops.open(), Catch::Contains("a.jsonl:2: its \"text\" is no string"));
  const std::string wrong = folder.write("b.jsonl", "{\"content\": \"a\"}\n{\"content\": \"b\"}\n");
  CHECK_THROWS_WITH(check_text_field({.path = wrong}, /*skip_bad=*/true),
                    Catch::Contains("b.jsonl:1: has no field"));
  check_text_field({.path = folder.write("b.jsonl", "no JSON\n{\"text\": \"b\"}\n")}, /*skip_bad=*/true);
}

TEST_CASE("an epoch holds each document once, in another order each time") {
  const test::Corpus corpus;
  CorpusReader reader = reader_of(corpus.path().string());
  reader.seek({}, 5);
  std::vector<std::vector<Place>> epochs(3);
  for (DrawnDocument drawn = *reader.draw(); drawn.epoch < 3; drawn = *reader.draw()) {
    const DocumentInfo info = reader.open();
    epochs[drawn.epoch].emplace_back(info.file, info.location);
    REQUIRE(drawn.draws == epochs[drawn.epoch].size());
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(epochs[1] != epochs[2]);
  std::ranges::sort(epochs[0]);
  for (auto& epoch : epochs) {
    std::ranges::sort(epoch);
    CHECK(epoch == epochs[0]);
  }
  CHECK(std::set(epochs[0].begin(), epochs[0].end()).size() == epochs[0].size());
}

TEST_CASE("a corpus of one plain file has the order of its documents alone") {
  const test::TemporaryFolder folder;
  CorpusReader reader = reader_of(folder.write("t.jsonl", test::json_lines(100, "document")));
  reader.seek({}, 42);
  const std::vector<Place> places = epoch_of(reader);
  REQUIRE(places.size() == 100);
  const Permutation order(100, 42, 0, 1, true);
  for (uint64_t i = 0; i < 100; ++i) CHECK(places[i] == Place{0, order(i) + 1});
}

TEST_CASE("without shuffling documents are in the order of the sorted files") {
  const test::Corpus corpus;
  CorpusReader reader = reader_of(corpus.path().string(), {.shuffle = false});
  reader.seek({}, 5);
  const std::vector<Place> places = epoch_of(reader);
  CHECK(std::ranges::is_sorted(places));
  CHECK(places.size() == 60);
}

TEST_CASE("a reader continues at any position with the same documents") {
  const test::TemporaryFolder folder;
  write_kinds(folder, 9, 3, 7, 20);
  const std::string path = folder.path().string();
  const StreamOptions options{.seed = 3, .window = 4};
  TokenStream stream(reader_of(path, options));
  std::vector<StreamPosition> positions;
  std::vector<std::vector<int64_t>> windows;
  std::vector<DocumentSpan> spans;
  for (int i = 0; i < 300; ++i) {  // three epochs
    positions.push_back(stream.position());
    windows.emplace_back(12);
    REQUIRE(stream.read_window(windows.back(), spans) == 12);
  }
  CHECK(positions.back().epoch >= 2);
  TokenStream other(reader_of(path, options));
  for (const size_t at : {299, 0, 17, 150, 151, 60}) {
    CAPTURE(at);
    other.seek(StreamPosition::from_json({nlohmann::json(positions[at].to_json()), "state"}), 3);
    for (size_t i = at; i < std::min<size_t>(at + 40, 300); ++i) {
      REQUIRE(other.position() == positions[i]);
      std::vector<int64_t> window(12);
      other.read_window(window, spans);
      REQUIRE(window == windows[i]);
    }
  }
}

// The kinds of 100 stretches of 256 sequences, against their shares by Pearson's chi-square with 7 degrees of
// freedom, whose 0.1 % point is 24.32.
TEST_CASE("a corpus that is sorted by kind is read as a mixture of its kinds") {
  const test::TemporaryFolder folder;
  constexpr int kKinds = 8, kSequences = 256;
  write_kinds(folder, 1000, kKinds, 45, 30);
  const StreamOptions options{.seed = 11};
  TokenStream stream(reader_of(folder.path().string(), options));
  int passed = 0;
  double worst = 0;
  for (int stretch = 0; stretch < 100; ++stretch) {
    std::array<int, kKinds> counts{};
    for (int i = 0; i < kSequences; ++i) {
      std::vector<int64_t> window(33);  // a document of 32 tokens, and the next one's first
      std::vector<DocumentSpan> spans;
      REQUIRE(stream.read_window(window, spans) == 33);
      ++counts.at(static_cast<size_t>(window[1] - 'a'));
    }
    double chi_square = 0;
    constexpr double kExpected = double{kSequences} / kKinds;
    for (const int count : counts) chi_square += (count - kExpected) * (count - kExpected) / kExpected;
    passed += chi_square < 24.32;
    worst = std::max(worst, chi_square);
  }
  INFO("the worst chi-square is " << worst);
  CHECK(passed >= 98);
}

TEST_CASE("a position with another number of slots is refused") {
  const test::TemporaryFolder folder;
  write_kinds(folder, 9, 3, 2, 20);
  CorpusReader reader = reader_of(folder.path().string(), {.window = 4});
  StreamPosition position{.epoch = 0, .draws = 1, .slot = 0, .token = 0, .slots = {{0, 0, 1}}};
  CHECK_THROWS_WITH(reader.seek(position, 1), Catch::Contains("has 1 slots") && Catch::Contains("have 4") &&
                                                  Catch::Contains("training.shuffle_window"));
}

// Files of several blocks: stretches of a plain file, and of compressed ones whose names say so and do not.
// The last is planned as one that slots can share, and is read by one of them.
TEST_CASE("files of many blocks are mixed by their sizes and go on at any position") {
  const test::TemporaryFolder folder;
  // Of hexadecimal digits, so that a compressed file has half of the bytes.
  const auto lines = [](int documents) {
    std::string text;
    for (int i = 0; i < documents; ++i) {
      text += R"({"text": ")";
      for (uint64_t k = 0; k < 22; ++k)
        for (const uint32_t word : philox4x32(static_cast<uint64_t>(i), k))
          text += fmt::format("{:08x}", word);
      text += "\"}\n";
    }
    return text;
  };
  folder.write("a.jsonl", lines(6000));
  folder.write("b.jsonl.gz", test::gzip(lines(12000)));
  folder.write("c.jsonl", test::gzip(lines(25000)));
  const StreamOptions options{.seed = 4, .window = 16};
  TokenStream stream(reader_of(folder.path().string(), options));
  std::map<std::string, int> counts;
  std::vector<StreamPosition> positions;
  std::vector<std::vector<int64_t>> windows;
  std::vector<DocumentSpan> spans;
  for (int i = 0; i < 3000; ++i) {
    positions.push_back(stream.position());
    ++counts[stream.place().file->name];
    windows.emplace_back(1001);
    REQUIRE(stream.read_window(windows.back(), spans) == 1001);
  }
  // Their shares of the documents, of which an eighth has been read.
  CAPTURE(counts["a.jsonl"], counts["b.jsonl.gz"], counts["c.jsonl"]);
  CHECK(counts["a.jsonl"] > 300);
  CHECK(counts["b.jsonl.gz"] > 500);
  CHECK(counts["c.jsonl"] > 1200);
  for (const size_t at : {2990, 7, 1500}) {
    CAPTURE(at);
    TokenStream other(reader_of(folder.path().string(), options));
    other.seek(positions[at], 4);
    for (size_t i = at; i < std::min<size_t>(at + 10, 3000); ++i) {
      std::vector<int64_t> window(1001);
      REQUIRE(other.position() == positions[i]);
      other.read_window(window, spans);
      REQUIRE(window == windows[i]);
    }
  }
}

}  // namespace hyperion::data
