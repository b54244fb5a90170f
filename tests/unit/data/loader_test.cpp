#include "data/loader.h"

#include <algorithm>
#include <map>
#include <memory>
#include <thread>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/document_order.h"
#include "data/token_shards.h"
#include "tests/support/documents.h"

namespace hyperion::data {

using Catch::Contains;
using I64 = std::vector<int64_t>;

namespace {

LoaderOptions options_for(const std::string& path, int64_t seq_len = 32, int64_t rows = 2) {
  LoaderOptions options;
  options.sources = {{.path = path}};
  options.encode = test::encode_bytes;
  options.seq_len = seq_len;
  options.rows = rows;
  options.order.seed = 5;
  return options;
}

LoaderOptions on_rank(LoaderOptions options, int64_t degree, int64_t rank, int64_t rows) {
  options.dp_degree = degree;
  options.dp_rank = rank;
  options.rows = rows;
  return options;
}

using Sequence = std::pair<I64, I64>;  // tokens, labels
void add_rows(const Batch& batch, std::map<uint64_t, Sequence>& sequences) {
  for (int64_t row = 0; row < batch.rows; ++row) {
    const auto part = [&](const I64& all) {
      return I64(all.begin() + row * batch.seq_len, all.begin() + (row + 1) * batch.seq_len);
    };
    const bool fresh =
        sequences.emplace(batch.first_sequence + row, Sequence{part(batch.tokens), part(batch.labels)})
            .second;
    REQUIRE(fresh);
  }
}

// Sequences that all ranks of a mesh see in `microbatches` calls, by index; from `state` on, when given.
std::map<uint64_t, Sequence> run_mesh(const LoaderOptions& options, int64_t degree, int64_t rows,
                                      int microbatches, const LoaderState* state = nullptr,
                                      LoaderState* after = nullptr) {
  std::map<uint64_t, Sequence> sequences;
  std::optional<LoaderState> common;
  for (int64_t rank = 0; rank < degree; ++rank) {
    DataLoader loader(on_rank(options, degree, rank, rows));
    if (state != nullptr) loader.load_state(*state);
    for (int i = 0; i < microbatches; ++i) add_rows(*loader.next(), sequences);
    if (common) REQUIRE(*common == loader.state());
    common = loader.state();
  }
  if (after != nullptr) *after = *common;
  return sequences;
}

// The documents that a reader draws in some epochs, one after another (corpus_reader_test.cpp has their
// order).
I64 naive_stream(const test::Corpus& corpus, uint64_t seed, bool shuffle, uint64_t epochs) {
  CorpusReader reader(find_corpus(corpus.path().string()), test::encode_bytes, {.shuffle = shuffle});
  reader.seek({}, seed);
  I64 stream;
  while (reader.draw()->epoch < epochs) {
    I64 tokens(reader.open().length);
    reader.copy(0, tokens);
    stream.insert(stream.end(), tokens.begin(), tokens.end());
  }
  return stream;
}

}  // namespace

TEST_CASE("sequences are the stream cut every seq_len tokens through three epochs") {
  const test::Corpus corpus;
  for (const bool shuffle : {true, false}) {
    const I64 stream = naive_stream(corpus, 5, shuffle, 3);
    LoaderOptions options = options_for(corpus.path().string());
    options.order.shuffle = shuffle;
    DataLoader loader(options);
    size_t at = 0;
    for (uint64_t sequence = 0; at + 2 * 32 + 1 <= stream.size(); sequence += 2, at += 2 * 32) {
      const Batch batch = *loader.next();
      REQUIRE(batch.first_sequence == sequence);
      REQUIRE(batch.tokens == I64(stream.begin() + at, stream.begin() + at + 64));
      REQUIRE(batch.labels == I64(stream.begin() + at + 1, stream.begin() + at + 65));
    }
    CHECK(loader.state().sources[0].position.epoch == 2);
    CHECK(at > 15000);
  }
}

TEST_CASE("epochs are shuffled differently and hold the same documents") {
  const test::Corpus corpus;
  const I64 one = naive_stream(corpus, 5, true, 1);
  const I64 two = naive_stream(corpus, 5, true, 2);
  I64 second(two.begin() + one.size(), two.end());
  CHECK(second.size() == one.size());
  CHECK(second != one);
  CHECK(naive_stream(corpus, 6, true, 1) != one);
}

TEST_CASE("every mesh and accumulation with the same global batch sees the same batches") {
  const test::Corpus corpus;
  const LoaderOptions options = options_for(corpus.path().string());
  const int64_t global = 36;
  const int steps = 4;
  const auto expected = run_mesh(options, 1, global, steps);
  REQUIRE(expected.size() == global * steps);
  for (const int64_t degree : {1, 2, 3, 4}) {
    for (const int64_t accumulate : {1, 2, 3}) {
      if (global % (degree * accumulate) != 0) continue;
      CAPTURE(degree, accumulate);
      const int64_t rows = global / (degree * accumulate);
      CHECK(run_mesh(options, degree, rows, static_cast<int>(steps * accumulate)) == expected);
    }
  }
}

TEST_CASE("microbatch a of rank d holds the rows of the stated rule") {
  const test::Corpus corpus;
  const LoaderOptions options = options_for(corpus.path().string());
  const int64_t degree = 3, accumulate = 2, rows = 4, global = degree * accumulate * rows;
  for (int64_t rank = 0; rank < degree; ++rank) {
    DataLoader loader(on_rank(options, degree, rank, rows));
    for (int64_t step = 0; step < 3; ++step) {
      for (int64_t a = 0; a < accumulate; ++a) {
        CHECK(loader.next()->first_sequence ==
              static_cast<uint64_t>(step * global + a * degree * rows + rank * rows));
      }
    }
  }
}

TEST_CASE("a restored loader continues exactly where the saved one was") {
  const test::Corpus corpus;
  const LoaderOptions options = options_for(corpus.path().string(), 16, 2);
  DataLoader original(options);
  for (int i = 0; i < 250; ++i) original.next();
  const LoaderState saved = LoaderState::from_json(original.state().to_json());
  CHECK(saved.sequence == 500);
  DataLoader restored(options);
  restored.next();  // a loader in use can be moved, too
  restored.load_state(saved);
  CHECK(restored.state() == original.state());
  for (int i = 0; i < 500; ++i) {
    const Batch a = *original.next();
    const Batch b = *restored.next();
    REQUIRE(a.tokens == b.tokens);
    REQUIRE(a.labels == b.labels);
    REQUIRE(a.first_sequence == b.first_sequence);
    REQUIRE(places_of_row(a, 0).describe() == places_of_row(b, 0).describe());
    REQUIRE(original.state() == restored.state());
  }
  CHECK(original.state().sources[0].position.epoch > 1);  // the test went through epoch boundaries
}

TEST_CASE("a state is valid at any data-parallel degree") {
  const test::Corpus corpus;
  const LoaderOptions options = options_for(corpus.path().string(), 16);
  LoaderState saved;
  run_mesh(options, 2, 6, 25, nullptr, &saved);  // 300 sequences
  const auto expected = run_mesh(options, 1, 12, 50, &saved);
  CHECK(expected.begin()->first == 300);
  CHECK(run_mesh(options, 2, 6, 50, &saved) == expected);
  CHECK(run_mesh(options, 3, 2, 100, &saved) == expected);
  CHECK(run_mesh(options, 4, 3, 50, &saved) == expected);
}

TEST_CASE("the state counts what was consumed and not what was prefetched") {
  const test::Corpus corpus;
  LoaderOptions options = options_for(corpus.path().string());
  LoaderState states[2];
  for (int i = 0; i < 2; ++i) {
    options.prefetch = i == 0 ? 1 : 64;
    DataLoader loader(options);
    for (int j = 0; j < 5; ++j) loader.next();
    states[i] = loader.state();
  }
  CHECK(states[0] == states[1]);
  CHECK(states[0].sequence == 10);
}

TEST_CASE("a state continues with the seed it was saved with") {
  const test::Corpus corpus;
  LoaderOptions options = options_for(corpus.path().string());
  DataLoader original(options);
  for (int i = 0; i < 10; ++i) original.next();
  options.order.seed = 99;
  DataLoader other(options);
  other.load_state(original.state());
  for (int i = 0; i < 200; ++i) REQUIRE(original.next()->tokens == other.next()->tokens);
  CHECK(other.state().seed == 5);
  other.reset();
  CHECK(other.state().seed == 99);
}

TEST_CASE("a loader that is reset to another seed gives what a new one with that seed gives") {
  const test::Corpus corpus;
  LoaderOptions options = options_for(corpus.path().string());
  DataLoader reset(options);
  for (int i = 0; i < 3; ++i) reset.next();
  reset.reset(99);
  options.order.seed = 99;
  DataLoader fresh(options);
  CHECK(reset.state() == fresh.state());
  for (int i = 0; i < 200; ++i) REQUIRE(reset.next()->tokens == fresh.next()->tokens);
  reset.reset();
  CHECK(reset.state().seed == 99);
}

TEST_CASE("a state of other data or a damaged one is refused") {
  const test::Corpus corpus;
  const LoaderOptions options = options_for(corpus.path().string());
  DataLoader loader(options);
  loader.next();
  const LoaderState good = loader.state();
  const auto with = [&](auto change) {
    LoaderState state = good;
    change(state);
    return LoaderState::from_json(state.to_json());  // as a checkpoint holds it
  };
  CHECK_THROWS_WITH(loader.load_state(with([](auto& s) { s.fingerprint ^= 1; })), Contains("other data"));
  CHECK_THROWS_WITH(loader.load_state(with([](auto& s) { s.shuffle = false; })),
                    Contains("training.shuffle"));
  CHECK_THROWS_WITH(loader.load_state(with([](auto& s) { s.sources[0].position.slots[0].part = 2; })),
                    Contains("file 2 of 1"));
  CHECK_THROWS_WITH(loader.load_state(with([](auto& s) { s.sources[0].position.slots[1].document = 500; })),
                    Contains("document 500"));
  CHECK_THROWS_WITH(loader.load_state(with([](auto& s) { s.sources[0].position.token = 1u << 30; })),
                    Contains("token 1073741824"));
  CHECK_THROWS_WITH(loader.load_state(with([](auto& s) { s.window = 5; })),
                    Contains("training.shuffle_window = 5, but this job has 64"));
  CHECK_THROWS_WITH(loader.load_state(with([](auto& s) { s.window.reset(); })),
                    Contains("one file after another"));
  LoaderOptions other = options;
  other.tokenizer_fingerprint = "another";
  CHECK_THROWS_WITH(DataLoader(other).load_state(good), Contains("another tokenizer"));
  loader.load_state(good);
  CHECK(loader.next());
}

TEST_CASE("a document longer than many sequences is cut like any other") {
  const test::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += std::to_string(i);
  DataLoader loader(options_for(folder.write("one.jsonl", "{\"text\": \"" + text + "\"}\n"), 8, 4));
  I64 seen;
  while (seen.size() < 3 * text.size()) {
    const Batch batch = *loader.next();
    seen.insert(seen.end(), batch.tokens.begin(), batch.tokens.end());
  }
  const auto once = test::encode_bytes(text);
  for (size_t i = 0; i < seen.size(); ++i) REQUIRE(seen[i] == once[i % once.size()]);
  CHECK(loader.where(loader.state().sequence - 1) == folder.path().string() + "/one.jsonl:1");
}

TEST_CASE("a one-pass loader ends at the same call on every rank and repeats after reset") {
  const test::Corpus corpus;
  const I64 stream = naive_stream(corpus, 0, false, 1);
  for (const int64_t degree : {1, 2, 3, 4}) {
    CAPTURE(degree);
    std::map<uint64_t, Sequence> sequences;
    std::optional<int> calls;
    for (int64_t rank = 0; rank < degree; ++rank) {
      LoaderOptions options = on_rank(options_for(corpus.path().string(), 100), degree, rank, 3);
      options.order = {.seed = 0, .shuffle = false, .repeat = false};
      DataLoader loader(options);
      int count = 0;
      std::vector<I64> first_pass, second_pass;
      for (; auto batch = loader.next(); ++count) {
        first_pass.push_back(batch->tokens);
        add_rows(*batch, sequences);
      }
      CHECK_FALSE(loader.next());
      if (calls) CHECK(*calls == count);
      calls = count;
      loader.reset();
      while (auto batch = loader.next()) second_pass.push_back(batch->tokens);
      CHECK(first_pass == second_pass);
    }
    I64 labels;
    for (const auto& [index, sequence] : sequences) {
      for (const int64_t label : sequence.second) {
        if (label != kIgnoreLabel) labels.push_back(label);
      }
    }
    CHECK(labels == I64(stream.begin() + 1, stream.end()));  // every transition once
  }
}

TEST_CASE("a one-pass loader never gives a microbatch without any label") {
  const test::TemporaryFolder folder;
  for (int length = 1; length < 40; ++length) {
    CAPTURE(length);
    const std::string text(length, 'x');
    LoaderOptions options = options_for(folder.write("t.jsonl", "{\"text\": \"" + text + "\"}\n"), 4, 1);
    options.order.repeat = false;
    DataLoader loader(options);
    int labels = 0;
    while (const auto batch = loader.next()) {
      const int here = static_cast<int>(
          std::count_if(batch->labels.begin(), batch->labels.end(), [](int64_t l) { return l >= 0; }));
      CHECK(here > 0);
      labels += here;
    }
    CHECK(labels == length + 1);
  }
}

TEST_CASE("document masking gives positions that agree across ranks") {
  const test::Corpus corpus;
  LoaderOptions options = options_for(corpus.path().string(), 64, 4);
  options.document_mask = true;
  DataLoader whole(options);
  DataLoader part(on_rank(options, 2, 1, 2));
  for (int i = 0; i < 50; ++i) {
    const Batch a = *whole.next();
    const Batch b = *part.next();
    const auto second_half = [](const auto& all) {
      return std::decay_t<decltype(all)>(all.begin() + 128, all.end());
    };
    REQUIRE(second_half(a.labels) == b.labels);
    REQUIRE(second_half(a.positions) == b.positions);
    for (size_t t = 0; t < a.tokens.size(); ++t) {
      REQUIRE((a.labels[t] == kIgnoreLabel) == (a.tokens[t] == test::kEos));
      if (a.tokens[t] == test::kBos) REQUIRE(a.positions[t] == 0);
    }
  }
}

TEST_CASE("where names file and line of own rows and the range of other rows") {
  const test::TemporaryFolder folder;
  const std::string path =
      folder.write("t.jsonl", "{\"text\":\"0123456789\"}\n{\"text\":\"0\"}\n{\"text\":\"0123456789\"}\n");
  LoaderOptions options = on_rank(options_for(path, 9), 2, 1, 1);
  options.order.shuffle = false;
  DataLoader loader(options);
  const Batch batch = *loader.next();  // rank 1's row: tokens 9 to 17 of documents of 12, 3 and 12 tokens
  CHECK(places_of_row(batch, 0).describe() == path + ":1.." + path + ":3");
  CHECK(loader.where(1) == path + ":1.." + path + ":3");
  CHECK(loader.where(0) == path + ":1.." + path + ":3");
  CHECK_THAT(loader.where(2), Contains("sequence 2"));
}

TEST_CASE("bad data surfaces in next after the good batches before it") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("t.jsonl", test::json_lines(5, "good") + "{\"txt\": 1}\n");
  LoaderOptions options = options_for(path, 8, 1);
  options.order.shuffle = false;
  DataLoader loader(options);
  int good = 0;
  CHECK_THROWS_WITH(
      [&] {
        for (;; ++good) loader.next();
      }(),
      Contains(path + ":6:"));
  CHECK(good > 5);
  CHECK_THROWS_AS(loader.next(), Error);  // and again
}

TEST_CASE("data without tokens is an error and not an endless loop") {
  const test::TemporaryFolder folder;
  LoaderOptions options = options_for(folder.write("t.jsonl", "{\"text\": \"\"}\n{\"text\": \"\"}\n"));
  options.encode = [](std::string_view text) { return std::vector<int32_t>(text.size()); };
  CHECK_THROWS_WITH(DataLoader(options).next(), Contains("hold no tokens"));
  options.order.repeat = false;
  CHECK_THROWS_WITH(DataLoader(options).next(), Contains("fewer than 2 tokens"));
}

TEST_CASE("empty documents between others are stepped over") {
  const test::TemporaryFolder folder;
  LoaderOptions options =
      options_for(folder.write("t.jsonl", "{\"text\":\"\"}\n{\"text\":\"ab\"}\n{\"text\":\"\"}\n"), 4, 1);
  options.encode = [](std::string_view text) { return std::vector<int32_t>(text.begin(), text.end()); };
  options.order.shuffle = false;
  DataLoader loader(options);
  CHECK(loader.next()->tokens == I64{'a', 'b', 'a', 'b'});
}

TEST_CASE("a loader that is dropped at any moment leaves no thread behind") {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const test::Corpus corpus;
  const auto before = threads();
  for (int batches = 0; batches < 20; ++batches) {
    {
      DataLoader loader(options_for(corpus.path().string()));
      for (int i = 0; i < batches; ++i) loader.next();
      CHECK(threads() == before + (batches > 0 ? 1 : 0));  // it reads ahead
    }
    // The kernel may list a thread for a moment after it was joined.
    for (int i = 0; i < 1000 && threads() > before; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(threads() == before);
  }
}

TEST_CASE("token shards give the same batches as the text they were made from") {
  const test::TemporaryFolder folder;
  const std::string text = folder.write("t.jsonl", test::json_lines(50, "doc"));
  const auto source = open_source(find_corpus(text)[0], test::encode_bytes);
  TokenShardWriter writer(folder.path() / "t", 258, "fingerprint", "");
  I64 tokens;
  const uint64_t documents = source->open_block(0).value();
  for (uint64_t i = 0; i < documents; ++i) {
    tokens.resize(source->open(i));
    source->copy(0, tokens);
    writer.add(tokens);
  }
  writer.finish();
  LoaderOptions options = options_for((folder.path() / "t").string());
  options.encode = nullptr;
  CHECK(run_mesh(options, 3, 2, 100) == run_mesh(options_for(text), 2, 3, 100));

  options.tokenizer_fingerprint = "other";
  options.tokenizer_path = "its/path";
  CHECK_THROWS_WITH(DataLoader(options),
                    Contains("fingerprint") && Contains("other") && Contains("its/path"));
  options.tokenizer_fingerprint = "fingerprint";
  options.tokens.vocab_size = 257;
  CHECK_THROWS_WITH(DataLoader(options), Contains("258") && Contains("257"));
  options.tokens.vocab_size = 258;
  CHECK(DataLoader(options).next());
}

TEST_CASE("a shard of one document keeps its order whatever the seed") {
  const test::TemporaryFolder folder;
  TokenShardWriter writer(folder.path() / "t", 1000, "", "");
  I64 tokens(1000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i);
  writer.add(tokens);
  writer.finish();
  for (const uint64_t seed : {1, 2}) {
    LoaderOptions options = options_for((folder.path() / "t").string(), 10, 5);
    options.order.seed = seed;
    DataLoader loader(options);
    int64_t expected = 0;
    for (int i = 0; i < 60; ++i) {
      const Batch batch = *loader.next();
      for (const int64_t token : batch.tokens) REQUIRE(token == expected++ % 1000);
    }
  }
}

}  // namespace hyperion::data
