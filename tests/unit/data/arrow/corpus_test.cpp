#include <catch2/catch.hpp>

#include "base/json.h"
#include "data/token_stream.h"
#include "tests/support/documents.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/data/arrow/arrow_test.h"

namespace hyperion::data {

TEST_CASE("a stream of row groups and record batches goes on at any position") {
  const test::TemporaryFolder folder;
  for (const char* name : {"small.parquet", "file.arrow", "stream.arrow"})
    folder.write(name, content_of(asset(name)));
  const StreamOptions options{.seed = 3, .window = GENERATE(1, 2, 64)};
  const auto stream_of = [&] {
    return TokenStream({find_corpus(folder.path().string()), test::encode_bytes, options});
  };
  TokenStream stream = stream_of();
  std::vector<StreamPosition> positions;
  std::vector<std::vector<int64_t>> windows;
  std::vector<DocumentSpan> spans;
  for (int i = 0; i < 120; ++i) {
    positions.push_back(stream.position());
    windows.emplace_back(12);
    REQUIRE(stream.read_window(windows.back(), spans) == 12);
  }
  CHECK(positions.back().epoch >= 1);
  for (const size_t at : {119, 0, 17, 60, 61}) {
    CAPTURE(at);
    TokenStream other = stream_of();
    other.seek(StreamPosition::from_json({nlohmann::json(positions[at].to_json()), "state"}), 3);
    for (size_t i = at; i < std::min<size_t>(at + 40, 120); ++i) {
      REQUIRE(other.position() == positions[i]);
      std::vector<int64_t> window(12);
      other.read_window(window, spans);
      REQUIRE(window == windows[i]);
    }
  }
}

}  // namespace hyperion::data
