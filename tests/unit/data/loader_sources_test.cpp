#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/loader.h"
#include "tests/support/documents.h"
#include "tests/support/thread_ranks.h"

namespace hyperion::data {
namespace {

using Catch::Contains;
using I64 = std::vector<int64_t>;

// Three folders of documents that name their source.
class Sources : public test::TemporaryFolder {
 public:
  Sources() {
    write("wiki.jsonl", test::json_lines(40, "wiki"));
    write("code.jsonl", test::json_lines(10, "code"));
    write("web/a.jsonl.gz", test::gzip(test::json_lines(30, "web")));
    write("web/b.jsonl", test::json_lines(30, "web"));
  }

  SourceOptions source(const std::string& name, const std::string& file, double weight) const {
    return {.name = name, .path = (path() / file).string(), .key = "training.sources", .weight = weight};
  }
  LoaderOptions options(int64_t rows = 4) const {
    LoaderOptions options;
    options.sources = {source("code", "code.jsonl", 0.2), source("web", "web", 0.5),
                       source("wiki", "wiki.jsonl", 0.3)};
    options.encode = test::encode_bytes;
    options.seq_len = 32;
    options.rows = rows;
    options.order.seed = 5;
    return options;
  }
};

LoaderOptions rank_of(LoaderOptions options, int64_t degree, int64_t rank, int64_t rows) {
  options.dp_degree = degree;
  options.dp_rank = rank;
  options.rows = rows;
  return options;
}

struct Row {
  I64 tokens, labels;
  int32_t source;
  bool operator==(const Row&) const = default;
};

// The rows of all ranks, by sequence; from `state` on, when given.
std::map<uint64_t, Row> rows_of_mesh(const LoaderOptions& options, int64_t degree, int64_t rows, int batches,
                                     const LoaderState* state = nullptr, LoaderState* after = nullptr) {
  std::map<uint64_t, Row> all;
  std::optional<LoaderState> common;
  for (int64_t rank = 0; rank < degree; ++rank) {
    DataLoader loader(rank_of(options, degree, rank, rows));
    if (state != nullptr) loader.load_state(*state);
    for (int i = 0; i < batches; ++i) {
      const Batch batch = *loader.next();
      REQUIRE(static_cast<int64_t>(batch.source_of_row.size()) == batch.rows);
      for (int64_t row = 0; row < batch.rows; ++row) {
        const auto part = [&](const I64& from) {
          return I64(from.begin() + row * batch.seq_len, from.begin() + (row + 1) * batch.seq_len);
        };
        all[batch.first_sequence + static_cast<uint64_t>(row)] = {
            part(batch.tokens), part(batch.labels), batch.source_of_row[static_cast<size_t>(row)]};
      }
    }
    if (common) REQUIRE(*common == loader.state());
    common = loader.state();
  }
  if (after != nullptr) *after = *common;
  return all;
}

}  // namespace

TEST_CASE("a sequence is the next one of the source that the mix draws for its number") {
  const Sources folder;
  const LoaderOptions options = folder.options();
  const auto rows = rows_of_mesh(options, 1, 4, 100);
  SourceMix mix(std::vector<double>{0.2, 0.5, 0.3});
  std::vector<std::unique_ptr<DataLoader>> alone;
  for (const SourceOptions& source : options.sources) {
    LoaderOptions one = options;
    one.sources = {{.path = source.path}};
    one.rows = 1;
    alone.push_back(std::make_unique<DataLoader>(one));
  }
  for (const auto& [sequence, row] : rows) {
    const size_t source = mix.draw();
    REQUIRE(row.source == static_cast<int32_t>(source));
    const Batch expected = *alone[source]->next();
    REQUIRE(row.tokens == expected.tokens);
    REQUIRE(row.labels == expected.labels);
  }
}

TEST_CASE("sources give every mesh the same sequences, also from a state in the middle on") {
  const Sources folder;
  LoaderOptions options = folder.options();
  options.document_mask = true;
  LoaderState saved;
  rows_of_mesh(options, 2, 3, 50, nullptr, &saved);  // 300 sequences
  saved = LoaderState::from_json(saved.to_json());
  const auto expected = rows_of_mesh(options, 1, 12, 60, &saved);
  CHECK(expected.begin()->first == 300);
  LoaderState ends[2];
  CHECK(rows_of_mesh(options, 2, 6, 60, &saved, &ends[0]) == expected);
  CHECK(rows_of_mesh(options, 3, 2, 120, &saved, &ends[1]) == expected);
  CHECK(ends[0] == ends[1]);
  CHECK(ends[0].sources[0].position.epoch > 1);
  CHECK(ends[0].sources[1].tokens == 510 * 32);  // half of 1020 sequences
}

TEST_CASE("ranks of a node tokenise the documents of all sources together") {
  const Sources folder;
  test::ThreadRanks::run(3, [&](Coordinator& ranks) {
    LoaderOptions options = rank_of(folder.options(), 3, ranks.rank(), 2);
    DataLoader alone(options);
    for (SourceOptions& source : options.sources) source.node = NodeDocuments::make(ranks);
    DataLoader together(options);
    if (together.tokenising_ranks() != 3) throw_bug("{} ranks tokenise", together.tokenising_ranks());
    for (int i = 0; i < 100; ++i) {
      const Batch a = *alone.next(), b = *together.next();
      if (a.tokens != b.tokens || a.source_of_row != b.source_of_row) throw_bug("batch {} differs", i);
    }
  });
}

TEST_CASE("a source that has been read max_epochs times ends the job or leaves its share to the others") {
  const Sources folder;
  LoaderOptions options = folder.options(1);
  options.sources[0].max_epochs = 2;
  DataLoader stops(options);
  uint64_t sequences = 0;
  CHECK_THROWS_WITH(
      [&] {
        for (;; ++sequences) stops.next();
      }(),
      Contains("code has been read 2 times after") && Contains("renormalize"));
  CHECK(stops.state().sources[0].position.epoch == 2);
  CHECK(stops.state().sources[0].share == 0);

  options.stops_at_source_end = false;
  const auto rows = rows_of_mesh(options, 1, 1, static_cast<int>(sequences) + 80);
  int counts[3] = {};
  for (const auto& [sequence, row] : rows)
    if (sequence >= sequences) ++counts[row.source];
  CHECK(counts[0] == 0);
  CHECK(counts[1] == 50);  // 0.5 of 0.8
  LoaderState middle, end;
  rows_of_mesh(options, 1, 1, static_cast<int>(sequences) + 30, nullptr, &middle);
  const auto rest = rows_of_mesh(options, 1, 1, 50, &middle, &end);
  for (const auto& [sequence, row] : rest) REQUIRE(row == rows.at(sequence));

  // More epochs bring it back, and the stopped job goes on from its state.
  options.sources[0].max_epochs = 3;
  const auto again = rows_of_mesh(options, 1, 1, 50, &middle);
  CHECK(std::ranges::any_of(again, [](const auto& row) { return row.second.source == 0; }));
  for (SourceOptions& source : options.sources) source.max_epochs = 1;
  CHECK_THROWS_WITH(rows_of_mesh(options, 1, 1, 1000), Contains("every source has been read 1 time"));
}

TEST_CASE("a changed list of sources goes on with those that it still has") {
  const Sources folder;
  const LoaderOptions before = folder.options(1);
  LoaderState saved;
  rows_of_mesh(before, 1, 1, 100, nullptr, &saved);
  SECTION("other weights count from here on") {
    LoaderOptions options = before;
    options.sources[1].weight = 0.1;
    DataLoader loader(options);
    loader.load_state(saved);
    CHECK(loader.state().sources[1].position == saved.sources[1].position);
    CHECK(loader.state().sources[1].drawn == 0);
    for (int i = 0; i < 60; ++i) loader.next();
    CHECK(loader.state().sources[1].drawn == 10);
    CHECK(loader.state().sequence == 160);
  }
  SECTION("a removed source is left out and a new one begins") {
    LoaderOptions options = before;
    options.sources[2] = folder.source("more", "wiki.jsonl", 0.3);
    DataLoader loader(options);
    loader.load_state(saved);
    CHECK(loader.state().sources[0].position == saved.sources[0].position);
    CHECK(loader.state().sources[2].tokens == 0);
    CHECK(source_differences(saved.sources, loader.initial_state().sources) ==
          std::vector<std::string>{"more is new and begins", "wiki is left out"});
    CHECK(loader.next());
  }
  SECTION("a source with other data starts again") {
    LoaderOptions options = before;
    options.sources[2].path = (folder.path() / "code.jsonl").string();
    DataLoader loader(options);
    loader.load_state(saved);
    CHECK(loader.state().sources[2].tokens == 0);
    CHECK_THAT(source_differences(saved.sources, loader.initial_state().sources).at(0),
               Contains("wiki has other files"));
  }
  SECTION("a list of one position is taken up by the source with its data, and back") {
    LoaderOptions one = before;
    one.sources = {{.path = (folder.path() / "wiki.jsonl").string()}};
    DataLoader single(one);
    for (int i = 0; i < 20; ++i) single.next();
    CHECK_THAT(single.state().to_json(), Contains("\"version\":2"));
    DataLoader several(before);
    several.load_state(LoaderState::from_json(single.state().to_json()));
    CHECK(several.state().sources[2].position == single.state().sources[0].position);
    CHECK(several.state().sources[2].tokens == 20 * 32);
    CHECK(several.state().sequence == 20);
    several.next();
    DataLoader back(one);
    back.load_state(several.state());
    CHECK(back.state().sources[0].position == several.state().sources[2].position);
    one.sources = {{.path = (folder.path() / "web/b.jsonl").string()}};
    CHECK_THROWS_WITH(DataLoader(one).load_state(several.state()), Contains("other data"));
  }
  SECTION("a damaged state is refused") {
    LoaderState damaged = saved;
    damaged.sources[0].drawn += 50;
    DataLoader loader(before);
    CHECK_THROWS_WITH(loader.load_state(damaged), Contains("their shares"));
    std::string text = saved.to_json();
    text.replace(text.find("\"share\":"), 8, "\"share\":-");
    CHECK_THROWS_WITH(LoaderState::from_json(text), Contains("share"));
  }
}

}  // namespace hyperion::data
