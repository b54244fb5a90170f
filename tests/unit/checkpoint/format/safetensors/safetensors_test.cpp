#include "checkpoint/format/safetensors/safetensors.h"

#include <fstream>
#include <numeric>
#include <sstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "base/files.h"
#include "checkpoint/format/safetensors/safetensors_writer.h"
#include "tests/support/memory_source.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;

namespace {

// A file of this header and `data` bytes; `length` replaces the header's true length.
std::string file_of(const std::string& header, size_t data, std::optional<uint64_t> length = {}) {
  const uint64_t bytes = length.value_or(header.size());
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + header + std::string(data, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  test::MemorySource source("m.safetensors", std::as_bytes(std::span(file)));
  return read_safetensors_header(source);
}

// The error that a header leads to.
std::string refusal(const std::string& header, size_t data, std::optional<uint64_t> length = {}) {
  const std::string file = file_of(header, data, length);
  try {
    parse(file);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kBadData);
    CHECK_THAT(error.what(), Catch::StartsWith("m.safetensors: "));
    return error.what();
  }
  return "accepted";
}

std::string tensor(const std::string& name, const std::string& shape, size_t begin, size_t end) {
  return fmt::format(R"("{}":{{"dtype":"F32","shape":{},"data_offsets":[{},{}]}})", name, shape, begin, end);
}

void put(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string index_json(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text;
  for (const auto& [name, file] : entries)
    text += fmt::format("{}\"{}\": \"{}\"", text.empty() ? "" : ", ", name, file);
  return fmt::format(R"({{"metadata": {{}}, "weight_map": {{{}}}}})", text);
}

// The whole tensor, put together from its chunks by rows.
std::string assemble(const fs::path& folder, const TensorRecord& record) {
  const uint64_t elements =
      std::accumulate(record.shape.begin(), record.shape.end(), uint64_t{1}, std::multiplies<>());
  std::string whole(elements * size_of(record.dtype), '\0');
  for (const Chunk& chunk : record.chunks) {
    const std::string file = read_file(folder / chunk.where.file);
    const uint64_t row = whole.size() / static_cast<uint64_t>(record.shape[0]);
    file.copy(whole.data() + row * static_cast<uint64_t>(chunk.offset[0]), chunk.where.length,
              chunk.where.offset);
  }
  return whole;
}

std::string fnv1a64(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

void check_golden(const std::string& name, const std::string& folder) {
  const fs::path goldens = fs::path(HYPERION_SOURCE_DIR) / "tests/goldens/hf";
  const CheckpointIndex index = read_safetensors(goldens / name / folder);
  CHECK(index.layout == CheckpointIndex::Layout::kBareBytes);
  std::istringstream lines(read_file(goldens / (name + ".tsv")));
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    std::istringstream fields(line);
    std::string key, dtype, shape, bytes, hash;
    fields >> key >> dtype >> shape >> bytes >> hash;
    CAPTURE(name, folder, key);
    REQUIRE(index.tensors.contains(key));
    const TensorRecord& record = index.tensors.at(key);
    CHECK(torch_name(record.dtype) == dtype);
    CHECK(fmt::format("{}", record.shape.size() == 1
                                ? fmt::format("{}", record.shape[0])
                                : fmt::format("{},{}", record.shape[0], record.shape[1])) == shape);
    CHECK(fnv1a64(assemble(goldens / name / folder, record)) == hash);
  }
  CHECK(count == index.tensors.size());
}

}  // namespace

TEST_CASE("the Hugging Face goldens of torch are read whole and in shards with every hash right") {
  for (const char* name : {"hf_single", "hf_two_files"})
    for (const char* folder : {"", "sharded"}) check_golden(name, folder);
}

TEST_CASE("a safetensors header gives names and places") {
  const std::string header = R"({"__metadata__":{"format":"pt"},)" + tensor("b", "[2,3]", 4, 28) + "," +
                             tensor("a", "[]", 0, 4) + "," + tensor("e", "[0,7]", 28, 28) + "}   ";
  const SafetensorsHeader read = parse(file_of(header, 28));
  CHECK(read.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(read.tensors.size() == 3);
  CHECK(read.tensors.at("a").offset == 8 + header.size());
  CHECK(read.tensors.at("b").offset == 12 + header.size());
  CHECK(read.tensors.at("b").bytes == 24);
  CHECK(read.tensors.at("b").shape == Dims{2, 3});
  CHECK(read.tensors.at("e").shape == Dims{0, 7});
  CHECK(parse(file_of("{}", 0)).tensors.empty());
}

TEST_CASE("hostile safetensors headers are refused one rule at a time") {
  using Catch::Contains;
  const std::string good = tensor("a", "[2]", 0, 8);
  SECTION("length") {
    CHECK_THROWS_WITH(parse("1234567"), Contains("too few"));
    CHECK_THROWS_WITH(parse("version https://git-lfs.github.com/spec/v1\n"), Contains("pointer of Git LFS"));
    CHECK_THROWS_WITH(parse("<!DOCTYPE html>"), Contains("page of a web server"));
    CHECK_THROWS_WITH(parse("\xFF\xFE{\"name\"}"), Contains("UTF-16"));
    CHECK_THAT(refusal("{}", 0, 3), Contains("cut short"));
    CHECK_THAT(refusal("{}", 0, UINT64_MAX), Contains("cut short"));
    CHECK_THAT(refusal("{}", 0, 0), Contains("does not begin with {"));
    CHECK_THAT(refusal("{}", 100'000'100, 100'000'001), Contains("at most 100000000"));
  }
  SECTION("text") {
    CHECK_THAT(refusal(" {}", 0), Contains("does not begin with {"));
    CHECK_THAT(refusal("{\"a", 0), Contains("not valid JSON"));
    CHECK_THAT(refusal("{} x", 0), Contains("not valid JSON"));
    CHECK_THAT(refusal(std::string("{}\0junk", 7), 0), Contains("zero byte"));
    CHECK_THAT(refusal("{\"\xC3\x28\":1}", 0), Contains("not valid JSON"));
    CHECK_THAT(refusal("{" + good + "," + good + "}", 8), Contains("key \"a\" twice"));
    CHECK_THAT(refusal(R"({"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4),
               Contains("key \"dtype\" twice"));
    CHECK_THAT(refusal("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0),
               Contains("more than 4 levels"));
    CHECK_THAT(refusal("{\"a\":[" + std::string(9'000'000, ',') + "]}", 0), Contains("not valid JSON"));
    std::string many = "{\"a\":[0";
    for (int i = 0; i < 4'200'000; ++i) many += ",0";
    CHECK_THAT(refusal(many + "]}", 0), Contains("many times the memory of the text"));
  }
  SECTION("entries") {
    CHECK_THAT(refusal(R"({"a":1})", 0), Contains("expected exactly"));
    CHECK_THAT(refusal(R"({"a":{"dtype":"F32","shape":[2]}})", 8), Contains("expected exactly"));
    CHECK_THAT(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8),
               Contains("expected exactly"));
    CHECK_THAT(refusal(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1),
               Contains("\"F4\" is not known"));
    CHECK_THAT(refusal(R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", 8), Contains("not known"));
    CHECK_THAT(refusal(R"({"a":{"dtype":"","shape":[2],"data_offsets":[0,8]}})", 8), Contains("not known"));
    CHECK_THAT(refusal("{" + tensor("a", "[-2]", 0, 8) + "}", 8), Contains("whole numbers"));
    CHECK_THAT(refusal("{" + tensor("a", "[2.0]", 0, 8) + "}", 8), Contains("whole numbers"));
    CHECK_THAT(refusal("{" + tensor("a", "2", 0, 8) + "}", 8), Contains("whole numbers"));
    CHECK_THAT(refusal("{" + tensor("a", "[18446744073709551618]", 0, 8) + "}", 8),
               Contains("whole numbers"));
    CHECK_THAT(refusal("{" + tensor("a", "[4294967296,4294967296]", 0, 0) + "}", 0), Contains("64 bits"));
    CHECK_THAT(refusal("{" + tensor("a", "[4294967296,4294967296,0]", 0, 0) + "}", 0), Contains("64 bits"));
    CHECK_THAT(refusal("{" + tensor("a", "[2]", 8, 0) + "}", 8), Contains("not a begin and an end"));
    CHECK_THAT(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4,8]}})", 8),
               Contains("not a begin"));
    CHECK_THAT(refusal("{" + tensor("a", "[3]", 0, 8) + "}", 8), Contains("hold 8 bytes"));
  }
  SECTION("coverage") {
    CHECK(refusal("{" + good + "}", 8) == "accepted");
    CHECK_THAT(refusal("{" + tensor("a", "[1]", 4, 8) + "}", 8), Contains("hole"));
    CHECK_THAT(refusal("{" + good + "," + tensor("b", "[1]", 12, 16) + "}", 16), Contains("hole"));
    CHECK_THAT(refusal("{" + good + "," + tensor("b", "[1]", 4, 8) + "}", 8), Contains("overlap"));
    CHECK_THAT(refusal("{" + good + "}", 9), Contains("bytes follow"));
    CHECK_THAT(refusal("{" + good + "}", 7), Contains("cut short"));
    CHECK_THAT(refusal("{}", 1), Contains("bytes follow"));
  }
  SECTION("metadata") {
    CHECK_THAT(refusal(R"({"__metadata__":[]})", 0), Contains("__metadata__"));
    CHECK_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), Contains("__metadata__[\"a\"]"));
    CHECK_THAT(refusal(R"({"__metadata__":null})", 0), Contains("__metadata__"));
  }
}

TEST_CASE("the safetensors index is checked against the files") {
  using Catch::Contains;
  const test::TemporaryFolder folder;
  put(folder.path() / "one.safetensors", file_of("{" + tensor("a", "[2]", 0, 8) + "}", 8));
  put(folder.path() / "two.safetensors", file_of("{" + tensor("b", "[1]", 0, 4) + "}", 4));
  const auto with_index = [&](const std::string& text) {
    put(folder.path() / kSafetensorsIndex, text);
    return read_safetensors(folder.path());
  };
  CHECK(with_index(index_json({{"a", "one.safetensors"}, {"b", "two.safetensors"}})).tensors.size() == 2);
  CHECK(with_index(index_json({{"a", "one.safetensors"}})).tensors.size() ==
        1);  // other files are not its own
  CHECK_THROWS_WITH(with_index(index_json({{"a", "three.safetensors"}})),
                    Contains("three.safetensors, which is not there"));
  CHECK_THROWS_WITH(with_index(index_json({{"a", "one.safetensors"}, {"c", "two.safetensors"}})),
                    Contains("\"b\", which"));
  CHECK_THROWS_WITH(with_index(index_json({{"a", "one.safetensors"}, {"c", "one.safetensors"}})),
                    Contains("does not hold tensor \"c\""));
  CHECK_THROWS_WITH(with_index(index_json({{"a", "two.safetensors"}, {"b", "two.safetensors"}})),
                    Contains("does not hold tensor \"a\""));
  CHECK_THROWS_WITH(with_index(index_json({{"a", "one.safetensors"}, {"a", "one.safetensors"}})),
                    Contains("twice"));
  for (const char* bad : {"../one.safetensors", "/etc/passwd", ".", "..", "", "a/b"})
    CHECK_THROWS_WITH(with_index(index_json({{"a", bad}})), Contains("name of a file in the same folder"));
  CHECK_THROWS_WITH(with_index(R"({"weight_map": {"a": "one.safetensors\u0000"}})"),
                    Contains("name of a file"));
  CHECK_THROWS_WITH(with_index(R"({"weight_map": {"a": 7}})"), Contains("name of a file"));
  CHECK_THROWS_WITH(with_index("{}"), Contains("no table weight_map"));
  CHECK_THROWS_WITH(with_index("[]"), Contains("no table weight_map"));
  put(folder.path() / "three.safetensors", file_of("{" + tensor("a", "[2]", 0, 8) + "}", 8));
  CHECK_THROWS_WITH(with_index(index_json({{"a", "one.safetensors"}, {"b", "three.safetensors"}})),
                    Contains("puts into one.safetensors"));
  fs::remove(folder.path() / kSafetensorsIndex);
  CHECK_THROWS_WITH(read_safetensors(folder.path()), Contains("and so does one.safetensors"));
  CHECK(read_safetensors(folder.path() / "two.safetensors").tensors.at("b").chunks[0].where.file ==
        "two.safetensors");
  put(folder.path() / kSafetensorsFile, file_of("{" + tensor("z", "[]", 0, 4) + "}", 4));
  CHECK(read_safetensors(folder.path()).tensors.contains("z"));
  CHECK_THROWS_WITH(read_safetensors(folder.path() / "none"), Contains("cannot open"));
  fs::create_directory(folder.path() / "empty");
  CHECK_THROWS_WITH(read_safetensors(folder.path() / "empty"), Contains("neither"));
}

TEST_CASE("shards of torch that do not fit together are refused") {
  using Catch::Contains;
  const test::TemporaryFolder folder;
  const auto shard = [&](const char* file, const std::string& offsets, const std::string& shape, size_t bytes,
                         const char* dtype = "F32") {
    put(folder.path() / file,
        file_of(
            fmt::format(R"({{"__metadata__":{{"DCP_SHARDING_INFO":"{{\"a\":{{\"saved_offsets\":{}}}}}"}},)"
                        R"("a":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})",
                        offsets, dtype, shape, bytes),
            bytes));
  };
  shard("1.safetensors", "[0,0]", "[1,2]", 8);
  shard("2.safetensors", "[1,0]", "[2,2]", 16);
  shard("3.safetensors", "[3,0]", "[0,2]", 0);
  const CheckpointIndex index = read_safetensors(folder.path());
  CHECK(index.tensors.at("a").shape == Dims{3, 2});
  CHECK(index.tensors.at("a").chunks.size() == 3);
  shard("2.safetensors", "[2,0]", "[2,2]", 16);
  CHECK_THROWS_WITH(read_safetensors(folder.path()), Contains("part of the tensor is missing"));
  shard("2.safetensors", "[0,0]", "[2,2]", 16);
  CHECK_THROWS_WITH(read_safetensors(folder.path()), Contains("overlap"));
  shard("2.safetensors", "[1,0]", "[2,2]", 8, "F16");
  CHECK_THROWS_WITH(read_safetensors(folder.path()), Contains("differ in dtype"));
  shard("2.safetensors", "[1]", "[2,2]", 16);
  CHECK_THROWS_WITH(read_safetensors(folder.path()), Contains("no offsets of 2 dimensions"));
  shard("2.safetensors", "[9223372036854775807,0]", "[2,2]", 16);
  CHECK_THROWS_WITH(read_safetensors(folder.path()), Contains("beyond 2^63"));
  shard("2.safetensors", "[4611686018427387904,0]", "[2,2]", 16);
  CHECK_THROWS_WITH(read_safetensors(folder.path()), Contains("no possible tensor"));
  put(folder.path() / "2.safetensors", file_of(R"({"__metadata__":{"DCP_SHARDING_INFO":"["}})", 0));
  CHECK_THROWS_WITH(read_safetensors(folder.path()), Contains("DCP_SHARDING_INFO: is not valid JSON"));
}

TEST_CASE("a plan of safetensors files splits by size and aligns data") {
  const std::vector<NamedTensor> tensors = {{"a", Dtype::kBFloat16, {3, 5}},
                                            {"b", Dtype::kFloat32, {2}},
                                            {"big", Dtype::kUInt8, {100}},
                                            {"e", Dtype::kFloat32, {0, 4}},
                                            {"s", Dtype::kInt64, {}}};
  const SafetensorsPlan one = plan_safetensors(tensors);
  REQUIRE(one.files.size() == 1);
  CHECK(one.files[0].name == "model.safetensors");
  CHECK(one.index.empty());
  CHECK(one.files[0].header.size() % 8 == 0);
  for (size_t i = 0; i < tensors.size(); ++i) CHECK(one.places[i].offset % size_of(tensors[i].dtype) == 0);
  const SafetensorsPlan many = plan_safetensors(tensors, 38);
  REQUIRE(many.files.size() == 3);
  CHECK(many.files[2].name == "model-00003-of-00003.safetensors");
  CHECK(std::vector<size_t>{many.places[0].file, many.places[1].file, many.places[2].file,
                            many.places[3].file, many.places[4].file} == std::vector<size_t>{0, 0, 1, 1, 2});
  CHECK_THAT(many.index,
             Catch::StartsWith(
                 "{\n  \"metadata\": {\n    \"total_size\": 146\n  },\n  \"weight_map\": {\n    \"a\": "
                 "\"model-00001-of-00003.safetensors\""));
  CHECK_THROWS_WITH(plan_safetensors({{"x", Dtype::kComplex128, {1}}}), Catch::Contains("complex128"));
  CHECK_THROWS_WITH(plan_safetensors({{"x", Dtype::kInt8, {1}}, {"x", Dtype::kInt8, {1}}}),
                    Catch::Contains("once"));
  CHECK_THROWS_WITH(plan_safetensors({{"__metadata__", Dtype::kInt8, {1}}}), Catch::Contains("__metadata__"));
  CHECK_THROWS_WITH(plan_safetensors({{"\xC3\x28", Dtype::kInt8, {1}}}), Catch::Contains("UTF-8"));
}

TEST_CASE("what the safetensors writer writes is read back") {
  const test::TemporaryFolder folder;
  const std::vector<NamedTensor> tensors = {{"odd", Dtype::kBFloat16, {3, 5}},
                                            {"e", Dtype::kFloat32, {0, 4}},
                                            {"quote\"\n", Dtype::kUInt8, {7}},
                                            {"w", Dtype::kFloat64, {2, 2}}};
  for (const uint64_t limit : {kSafetensorsFileBytes, uint64_t{32}}) {
    const fs::path out = folder.path() / std::to_string(limit);
    const SafetensorsPlan plan = plan_safetensors(tensors, limit);
    fs::create_directory(out);
    create_safetensors(out, plan);
    CHECK_THROWS_WITH(create_safetensors(out, plan), Catch::Contains("EEXIST"));
    SafetensorsWriter writer(out, plan), other(out, plan);
    for (size_t i = tensors.size(); i-- > 0;) {  // any order, in two pieces by two writers
      const std::string bytes(plan.places[i].bytes, static_cast<char>('A' + i));
      writer.write(i, bytes.size() / 2, std::as_bytes(std::span(bytes)).subspan(bytes.size() / 2));
      other.write(i, 0, std::as_bytes(std::span(bytes)).first(bytes.size() / 2));
      const std::string longer = bytes + "x";
      CHECK_THROWS_AS(writer.write(i, 0, std::as_bytes(std::span(longer))), Error);
    }
    writer.sync();
    const CheckpointIndex index = read_safetensors(out);
    REQUIRE(index.tensors.size() == 4);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorRecord& record = index.tensors.at(tensors[i].name);
      CHECK(record.dtype == tensors[i].dtype);
      CHECK(record.shape == tensors[i].shape);
      const Span where = record.chunks.at(0).where;
      CHECK(read_file(out / where.file).substr(where.offset, where.length) ==
            std::string(where.length, static_cast<char>('A' + i)));
    }
    CHECK(fs::exists(out / kSafetensorsIndex) == (limit == 32));
  }
}

}  // namespace hyperion::checkpoint
