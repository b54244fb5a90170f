#include <algorithm>
#include <numeric>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "data/loader.h"
#include "data/megatron.h"
#include "data/raw_tokens.h"
#include "data/token_formats.h"
#include "tests/support/documents.h"

namespace hyperion::data {

using Catch::Contains;
using I64 = std::vector<int64_t>;
using Documents = std::vector<I64>;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kEnd = 9;  // the tokenizer's EOS
const TokenFacts kFacts = {.vocab_size = 60000, .tokenizer_vocab_size = 60000, .eos = kEnd};

template <typename T>
std::string bytes_of(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::string tokens_as(const Documents& documents) {
  std::vector<T> all;
  for (const I64& document : documents) all.insert(all.end(), document.begin(), document.end());
  return bytes_of(all);
}

std::string megatron_header(uint8_t dtype, uint64_t sequences, uint64_t boundaries, uint64_t version = 1) {
  return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({version}) + static_cast<char>(dtype) +
         bytes_of<uint64_t>({sequences, boundaries});
}

// An index of one sequence per document.
std::string megatron_index_of(const Documents& documents, uint8_t dtype, int64_t width) {
  std::vector<int32_t> lengths;
  I64 pointers, boundaries(documents.size() + 1);
  std::iota(boundaries.begin(), boundaries.end(), 0);
  int64_t at = 0;
  for (const I64& document : documents) {
    lengths.push_back(static_cast<int32_t>(document.size()));
    pointers.push_back(at);
    at += std::ssize(document) * width;
  }
  return megatron_header(dtype, documents.size(), boundaries.size()) + bytes_of(lengths) +
         bytes_of(pointers) + bytes_of(boundaries);
}

std::string llm_c(std::vector<int32_t> header, const std::string& tokens) {
  header.resize(256);
  return bytes_of(header) + tokens;
}

// All documents of all blocks, which are opened from the last to the first.
Documents read_all(DocumentSource& source) {
  std::vector<Documents> blocks(source.blocks().value());
  for (uint64_t block = blocks.size(); block-- > 0;) {
    const uint64_t documents = source.open_block(block).value();
    blocks[block].resize(documents);
    for (uint64_t i = documents; i-- > 0;) {
      I64& tokens = blocks[block][i];
      tokens.resize(source.open(i));
      source.copy(0, tokens);
    }
  }
  CHECK_FALSE(source.open_block(blocks.size()));
  Documents all;
  for (Documents& block : blocks) std::ranges::move(block, std::back_inserter(all));
  return all;
}

const Documents kDocuments = {{1, 2, kEnd}, {kEnd}, {3, 4, 5, 59999, kEnd}, {7}};

}  // namespace

TEST_CASE("Megatron's documents are read in every integer type") {
  const test::TemporaryFolder folder;
  const auto check = [&]<typename T>(uint8_t dtype, T, Documents documents) {
    const std::string bin = folder.write("x.bin", tokens_as<T>(documents));
    folder.write("x.idx", megatron_index_of(documents, dtype, sizeof(T)));
    MegatronSource source(bin, kFacts);
    CHECK(read_all(source) == documents);
  };
  Documents with_empty = kDocuments;
  with_empty.insert(with_empty.begin() + 1, I64());
  check(8, uint16_t{}, with_empty);
  check(4, int32_t{}, with_empty);
  check(5, int64_t{}, with_empty);
  const Documents small = {{1, 127}, {3}};
  check(1, uint8_t{}, small);
  check(2, int8_t{}, small);
  check(3, int16_t{}, small);
}

TEST_CASE("a document of Megatron may be several sequences") {
  const test::TemporaryFolder folder;
  const auto bin = folder.write("x.bin", bytes_of<uint16_t>({1, 2, 3, 4, 5}));
  const auto index = [&](std::vector<int32_t> lengths, I64 pointers, I64 boundaries) {
    folder.write("x.idx", megatron_header(8, lengths.size(), boundaries.size()) + bytes_of(lengths) +
                              bytes_of(pointers) + bytes_of(boundaries));
  };
  index({1, 2, 2}, {0, 2, 6}, {0, 2, 2, 3});
  MegatronSource source(bin, kFacts);
  CHECK(read_all(source) == Documents{{1, 2, 3}, {}, {4, 5}});
  const auto damaged = [&](std::vector<int32_t> lengths, I64 pointers, I64 boundaries) {
    index(std::move(lengths), std::move(pointers), std::move(boundaries));
    MegatronSource other(bin, kFacts);
    read_all(other);
  };
  CHECK_THROWS_WITH(damaged({1, 2, 2}, {0, 4, 6}, {0, 2, 3}),
                    Contains("x.bin: document 1") && Contains("at byte 4"));
  CHECK_THROWS_WITH(damaged({1, 2, 2}, {0, 2, 6}, {0, 3, 2, 3}),
                    Contains("document 2") && Contains("sequences 3 to 2"));
  CHECK_THROWS_WITH(damaged({1, -2, 2}, {0, 2, 6}, {0, 2, 3}),
                    Contains("document 1") && Contains("-2 tokens"));
  CHECK_THROWS_WITH(damaged({1, 2, 2}, {-2, 2, 6}, {0, 2, 3}), Contains("document 1") && Contains("byte -2"));
  CHECK_THROWS_WITH(damaged({1, 2, 2}, {1, 3, 6}, {0, 2, 3}), Contains("document 1") && Contains("byte 1"));
  CHECK_THROWS_WITH(damaged({1, 9, 2}, {0, 2, 6}, {0, 2, 3}), Contains("document 1") && Contains("9 tokens"));
  CHECK_THROWS_WITH(damaged({1, 2, 2}, {0, 2, 6}, {0, 1 << 30, 3}),
                    Contains("document 2") && Contains("1073741824"));
  CHECK_THROWS_WITH(damaged({1, 2, 2}, {0, 2, 6}, {1, 2, 3}), Contains("sequences 1 to 3, expected 0 to 3"));
  CHECK_THROWS_WITH(damaged({1, 2, 2}, {0, 2, 6}, {0, 2, 2}), Contains("sequences 0 to 2"));
  CHECK_THROWS_WITH(damaged({1, 2, 1}, {0, 2, 6}, {0, 2, 3}),
                    Contains("is 10 bytes") && Contains("copy both"));
}

TEST_CASE("a damaged index of Megatron is an error that names it") {
  const test::TemporaryFolder folder;
  const auto bin = folder.write("x.bin", tokens_as<uint16_t>(kDocuments));
  const std::string good = megatron_index_of(kDocuments, 8, 2);
  const auto with = [&](const std::string& index) {
    folder.write("x.idx", index);
    MegatronSource source(bin, kFacts);
  };
  CHECK_NOTHROW(with(good));
  CHECK_THROWS_WITH(with(""), Contains("x.idx: is no index"));
  CHECK_THROWS_WITH(with(good.substr(0, 33)), Contains("x.idx: is no index"));
  CHECK_THROWS_WITH(with("TNTIDX" + good.substr(6)), Contains("does not begin with MMIDIDX"));
  CHECK_THROWS_WITH(with("version https://git-lfs.github.com/spec/v1\n"), Contains("git lfs pull"));
  CHECK_THROWS_WITH(with(megatron_header(8, 4, 5, 2)), Contains("version 2"));
  CHECK_THROWS_WITH(with(megatron_header(7, 4, 5)), Contains("dtype 7"));
  CHECK_THROWS_WITH(with(megatron_header(0, 4, 5)), Contains("dtype 0"));
  CHECK_THROWS_WITH(with(megatron_header(9, 4, 5)), Contains("dtype 9"));
  CHECK_THROWS_WITH(with(megatron_header(8, 0, 1)), Contains("0 sequences"));
  CHECK_THROWS_WITH(with(megatron_header(8, ~0ull, 5)), Contains("more than any file"));
  CHECK_THROWS_WITH(with(megatron_header(8, 4, ~0ull)), Contains("more than any file"));
  CHECK_THROWS_WITH(with(good.substr(0, good.size() - 1)), Contains("its header promises"));
  CHECK_THROWS_WITH(with(good + std::string(4, '\0')), Contains("multimodal"));
  folder.write("x.bin", "1");
  CHECK_THROWS_WITH(with(good), Contains("x.bin: is 1 bytes"));
}

TEST_CASE("tokens outside of the vocabulary name file and document") {
  const test::TemporaryFolder folder;
  const auto bin = folder.write("x.bin", bytes_of<int32_t>({1, 2, -3, 60000}));
  folder.write("x.idx", megatron_index_of({{1}, {2}, {-3}, {60000}}, 4, 4));
  MegatronSource source(bin, kFacts);
  int64_t token = 0;
  const auto read = [&](uint64_t document) {
    source.open(document);
    source.copy(0, std::span(&token, 1));
  };
  CHECK_NOTHROW(read(1));
  CHECK_THROWS_WITH(read(2), Contains("x.bin: document 3 holds token -3, expected 0 to 59999"));
  CHECK_THROWS_WITH(read(3), Contains("x.bin: document 4 holds token 60000") && Contains("60000 entries"));
}

TEST_CASE("documents of OLMo's files end at EOS wherever the blocks are cut") {
  const test::TemporaryFolder folder;
  const auto path = folder.write("x.npy", tokens_as<uint16_t>(kDocuments));
  for (const uint64_t block : {1, 2, 3, 4, 5, 9, 10, 11, 1000}) {
    NumpySource source{InputFile(path), kFacts, block};
    CHECK(read_all(source) == kDocuments);
  }
  NumpySource source{InputFile(path), kFacts, 3};
  REQUIRE(source.open_block(1) ==
          2);  // tokens 3 to 5: EOS alone, and the document that goes on behind the block
  CHECK(source.location(0) == 4);
  CHECK(source.location(1) == 5);
  CHECK(source.open(1) == 5);
  CHECK(source.open_block(2) == 0);
  CHECK(source.open_block(3) == 1);
  TokenFacts without = kFacts;
  without.eos.reset();
  CHECK_THROWS_WITH(NumpySource(InputFile(path), without),
                    Contains("x.npy") && Contains("tokenizer has none"));
}

TEST_CASE("the vocabulary and the bytes decide the type of a file without a header") {
  const test::TemporaryFolder folder;
  const auto read = [&](const std::string& content, uint64_t vocabulary) {
    const InputFile file(folder.write("x.npy", content));
    NumpySource source(InputFile(file.path()), {vocabulary, vocabulary, kEnd});
    return std::pair(source.tokens().type, read_all(source));
  };
  CHECK(read(tokens_as<uint16_t>(kDocuments), 65536) == std::pair(TokenType::kU16, kDocuments));
  CHECK(read(tokens_as<uint32_t>(kDocuments), 65537) == std::pair(TokenType::kU32, kDocuments));
  CHECK(read(tokens_as<uint32_t>(kDocuments), 65536) == std::pair(TokenType::kU32, kDocuments));
  const Documents zeros = {{0, 0, 0, 0}};
  CHECK(read(tokens_as<uint16_t>(zeros), 100) == std::pair(TokenType::kU16, zeros));
  CHECK_THROWS_WITH(read("abc", 100), Contains("x.npy: is 3 bytes, expected tokens of 2 bytes"));
  CHECK_THROWS_WITH(read("abcdef", 100000), Contains("x.npy: is 6 bytes, expected tokens of 4 bytes"));
}

TEST_CASE("numpy's own files are read if they are one row of integers") {
  const test::TemporaryFolder folder;
  const auto file = [&](const std::string& type, const std::string& shape, const std::string& tokens,
                        const std::string& order = "False") {
    const std::string header =
        "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
    return "\x93NUMPY" + std::string("\x01\x00", 2) +
           bytes_of<uint16_t>({static_cast<uint16_t>(header.size())}) + header + tokens;
  };
  const auto read = [&](const std::string& content) {
    NumpySource source(InputFile(folder.write("x.npy", content)), kFacts);
    return read_all(source);
  };
  CHECK(read(file("<u2", "(10,)", tokens_as<uint16_t>(kDocuments))) == kDocuments);
  CHECK(read(file("<u4", "(10,)", tokens_as<uint32_t>(kDocuments))) == kDocuments);
  CHECK(read(file("<i4", "(10,)", tokens_as<int32_t>(kDocuments))) == kDocuments);
  CHECK_THROWS_WITH(read(file("<f4", "(10,)", "")), Contains("of type '<f4'"));
  CHECK_THROWS_WITH(read(file(">u2", "(10,)", "")), Contains("of type '>u2'"));
  CHECK_THROWS_WITH(read(file("<u2", "(5, 2)", tokens_as<uint16_t>(kDocuments))),
                    Contains("of shape (5, 2)"));
  CHECK_THROWS_WITH(read(file("<u2", "()", "")), Contains("of shape ()"));
  CHECK_THROWS_WITH(read(file("<u2", "(0,)", "")), Contains("no tokens"));
  CHECK_THROWS_WITH(read(file("<u2", "(99999999999999999999,)", "")), Contains("of shape (9"));
  CHECK_THROWS_WITH(read(file("<u2", "(9223372036854775809,)", "ab")),
                    Contains("promises 9223372036854775809 tokens"));
  CHECK_THROWS_WITH(read(file("<u2", "(10,)", "abc")), Contains("holds 3 bytes"));
  CHECK_THROWS_WITH(read("\x93NUMPY\x04"), Contains("version 4.0"));
  CHECK_THROWS_WITH(read("\x93NUMPY\x01"), Contains("does not fit the file"));
}

TEST_CASE("documents of llm.c begin with their first token") {
  const test::TemporaryFolder folder;
  const TokenFacts facts = {.vocab_size = 130000, .tokenizer_vocab_size = 130000, .eos = {}};
  const Documents two = {{7, 8}, {50256, 1, 2}, {50256}, {50256, 5}}, three = {{128000, 1}, {128000, 70000}};
  const auto read = [&](const std::string& content, uint64_t block) {
    LlmCSource source(InputFile(folder.write("x.bin", content)), facts, block);
    return read_all(source);
  };
  for (const uint64_t block : {1, 2, 3, 100}) {
    CHECK(read(llm_c({20240520, 1, 8}, tokens_as<uint16_t>(two)), block) == two);
    CHECK(read(llm_c({20240801, 7, 4}, tokens_as<uint32_t>(three)), block) == three);
  }
  CHECK_THROWS_WITH(read(llm_c({20240520, 2, 8}, tokens_as<uint16_t>(two)), 9),
                    Contains("version 2, expected 1"));
  CHECK_THROWS_WITH(read(llm_c({20240520, 1, 9}, tokens_as<uint16_t>(two)), 9),
                    Contains("16 bytes") && Contains("9 tokens"));
  CHECK_THROWS_WITH(read(llm_c({20240520, 1, -1}, ""), 9), Contains("4294967295 tokens"));
  CHECK_THROWS_WITH(read(llm_c({20240520, 1, 0}, ""), 9), Contains("no tokens"));
  CHECK_THROWS_WITH(read(llm_c({1}, ""), 9), Contains("x.bin: does not begin with the header of llm.c"));
  CHECK_THROWS_WITH(read(bytes_of<int32_t>({20240520, 1}), 9), Contains("header of llm.c"));
}

TEST_CASE("datatrove's documents end where its index says") {
  const test::TemporaryFolder folder;
  const auto read = [&](const std::string& tokens, std::vector<uint64_t> ends) {
    folder.write("x.ds.index", bytes_of(std::move(ends)));
    DatatroveSource source(folder.write("x.ds", tokens), kFacts);
    return read_all(source);
  };
  CHECK(read(tokens_as<uint16_t>(kDocuments), {3, 4, 9, 10}) == kDocuments);
  CHECK(read(tokens_as<uint32_t>(kDocuments), {3, 4, 9, 10}) == kDocuments);
  CHECK_THROWS_WITH(read(tokens_as<uint16_t>(kDocuments), {3, 5, 4, 10}),
                    Contains("x.ds: document 3") && Contains("tokens 5 to 4 of 10"));
  CHECK_THROWS_WITH(read(tokens_as<uint16_t>(kDocuments), {3, ~0ull, 10}), Contains("x.ds: document"));
  CHECK_THROWS_WITH(read(tokens_as<uint16_t>(kDocuments), {3, 9}), Contains("x.ds: is 20 bytes"));
  CHECK_THROWS_WITH(read(tokens_as<uint16_t>(kDocuments), {0}), Contains("ends at token 0"));
  CHECK_THROWS_WITH(read("ab", {}), Contains("x.ds.index is 0 bytes"));
}

TEST_CASE("token files are found by each of their names and in folders") {
  const test::TemporaryFolder folder;
  const std::string root = folder.path().string();
  const auto names = [](const std::vector<CorpusFile>& files) {
    std::vector<std::string> result;
    for (const CorpusFile& file : files) result.push_back(file.name);
    return result;
  };
  using Names = std::vector<std::string>;
  for (const std::string name : {"d/a_text", "d/b_text", "d/sub/c_text"}) {
    folder.write(name + ".bin", tokens_as<uint16_t>(kDocuments));
    folder.write(name + ".idx", megatron_index_of(kDocuments, 8, 2));
  }
  folder.write("d/e.ds", "ab");
  folder.write("d/e.ds.index", bytes_of<uint64_t>({1}));
  folder.write("d/f.npy", "ab");
  folder.write("d/cache/document_index.npy", "\x93NUMPY\x01");
  folder.write("d/llm/g.bin", llm_c({20240520, 1, 1}, "ab"));
  folder.write("d/llm/weights.bin", "ab");
  CHECK(names(find_corpus(root + "/d")) ==
        Names{"a_text.bin", "b_text.bin", "e.ds", "f.npy", "llm/g.bin", "sub/c_text.bin"});
  for (const std::string name :
       {"/d/a_text", "/d/a_text.bin", "/d/a_text.idx", "/d/a_te*", "/d/{a_text,nothing}"}) {
    const auto files = find_corpus(root + name);
    CHECK(names(files) == Names{"a_text.bin"});
    CHECK(files.at(0).format == CorpusFormat::kMegatron);
  }
  CHECK(names(find_corpus(root + "/d/{a,b}_text")) == Names{"a_text.bin", "b_text.bin"});
  CHECK(find_corpus(root + "/d/cache/document_index.npy").at(0).format == CorpusFormat::kNumpy);
  const uint64_t base = corpus_fingerprint(find_corpus(root + "/d/a_text"));
  folder.write("d/a_text.idx", "MMIDIDX");
  CHECK(base != corpus_fingerprint(find_corpus(root + "/d/a_text")));

  CHECK_THROWS_WITH(find_corpus(root + "/d/llm/weights.bin"), Contains("weights.idx is not next to it"));
  fs::remove(root + "/d/a_text.bin");
  CHECK_THROWS_WITH(find_corpus(root + "/d"),
                    Contains("a_text.idx: is an index of Megatron-LM, but a_text.bin"));
  fs::remove(root + "/d/a_text.idx");
  fs::remove(root + "/d/b_text.idx");
  folder.write("d/z.idx", "");
  CHECK_THROWS_WITH(find_corpus(root + "/d"), Contains("b_text.bin: b_text.idx is not next to it"));
  folder.write("d/b_text.idx", "");
  fs::remove(root + "/d/e.ds.index");
  CHECK_THROWS_WITH(find_corpus(root + "/d"), Contains("e.ds: e.ds.index is not next to it"));
  const std::string text = folder.write("t/b.bin", "{\"text\": \"a\"}\n");
  CHECK(find_corpus(text).at(0).format == CorpusFormat::kText);
}

TEST_CASE("the same documents train alike from every format") {
  const test::TemporaryFolder folder;
  Documents documents;
  for (int64_t i = 0; i < 200; ++i) {
    documents.push_back({50256});
    for (int64_t j = 0; j <= i * 7 % 31; ++j) documents.back().push_back(i * 100 + j + 10);
    documents.back().push_back(kEnd);
  }
  std::vector<uint64_t> ends;
  for (const I64& document : documents) ends.push_back((ends.empty() ? 0 : ends.back()) + document.size());
  const std::string tokens = tokens_as<uint16_t>(documents);
  const auto count = static_cast<int32_t>(ends.back());
  folder.write("m/x.bin", tokens);
  write_megatron_index(InputFile(folder.write("ends", bytes_of(ends))), TokenType::kU16,
                       folder.path() / "m/x.idx");
  folder.write("d/x.ds", tokens);
  folder.write("d/x.ds.index", bytes_of(ends));
  folder.write("n/x.npy", tokens);
  folder.write("l/x.bin", llm_c({20240520, 1, count}, tokens));
  const auto batches = [&](const std::string& name, int64_t vocab_size = 60000) {
    LoaderOptions options;
    options.sources = {{.path = (folder.path() / name).string()}};
    options.tokens.vocab_size = options.tokens.tokenizer_vocab_size = vocab_size;
    options.tokens.eos = kEnd;
    options.seq_len = 50;
    options.rows = 2;
    options.order = {.seed = 3, .shuffle = true, .repeat = true};
    DataLoader loader(options);
    std::vector<I64> result;
    for (int i = 0; i < 60; ++i) result.push_back(loader.next()->tokens);  // more than an epoch
    return result;
  };
  const auto expected = batches("m");
  for (const char* name : {"m/x", "d", "n", "l"}) CHECK(batches(name) == expected);
  CHECK_THROWS_WITH(batches("m", 30000), Contains("x.bin: holds token 50256") && Contains("30000 entries"));
}

}  // namespace hyperion::data
