// The checkpoints that PyTorch wrote (tests/goldens/dcp), value for value.
#include <fstream>
#include <sstream>

#include <catch2/catch.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tests/support/dcp_folder.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;

namespace {

const fs::path kGoldens = fs::path(HYPERION_SOURCE_DIR) / "tests/goldens/dcp";

std::string fnv1a64(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

// "3,4", "-" for 0-d.
std::string shape_text(const Dims& shape) {
  return shape.empty() ? "-" : fmt::format("{}", fmt::join(shape, ","));
}

Object object_of(const nlohmann::json& json) {
  const std::string type = json["t"];
  if (type == "none") return {};
  const nlohmann::json& value = json["v"];
  if (type == "bool") return value.get<bool>();
  if (type == "int") return value.get<int64_t>();
  if (type == "float") return std::stod(value.get<std::string>());
  if (type == "str") return value.get<std::string>();
  if (type == "bytes") {
    Bytes bytes;
    const auto hex = value.get<std::string>();
    for (size_t i = 0; i < hex.size(); i += 2)
      bytes.value += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
  }
  if (type == "dict") {
    Dict dict;
    for (const auto& item : value) dict.items.emplace_back(object_of(item[0]), object_of(item[1]));
    return dict;
  }
  REQUIRE((type == "list" || type == "tuple"));
  Sequence sequence{type == "list" ? Sequence::Kind::kList : Sequence::Kind::kTuple, {}};
  for (const auto& item : value) sequence.items.push_back(object_of(item));
  return sequence;
}

KeyPath path_of(const nlohmann::json& json) {
  KeyPath path;
  for (const auto& part : json) {
    if (part.is_number())
      path.emplace_back(part.get<int64_t>());
    else
      path.emplace_back(part.get<std::string>());
  }
  return path;
}

void check_golden(const test::DcpFolder& content, const std::string& name) {
  std::ifstream table(kGoldens / (name + ".tsv"));
  std::string line;
  size_t tensors = 0;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string key, dtype, shape, bytes, fnv;
    for (std::string* field : {&key, &dtype, &shape, &bytes, &fnv}) std::getline(fields, *field, '\t');
    INFO(name << ": " << key);
    REQUIRE(content.tensors.contains(key));
    const test::WholeTensor& tensor = content.tensors.at(key);
    CHECK(torch_name(tensor.dtype) == dtype);
    CHECK(shape_text(tensor.shape) == shape);
    CHECK(fnv1a64(tensor.bytes) == fnv);
    ++tensors;
  }
  CHECK(tensors > 0);
  CHECK(tensors == content.tensors.size());

  std::ifstream manifest_file(kGoldens / (name + ".json"));
  const nlohmann::json manifest = nlohmann::json::parse(manifest_file);
  CHECK(manifest["objects"].size() == content.objects.size());
  for (const auto& object : manifest["objects"]) {
    const std::string key = object["key"];
    INFO(name << ": " << key << " = " << object["value"].dump());
    REQUIRE(content.objects.contains(key));
    CHECK(content.objects.at(key) == object_of(object["value"]));
    CHECK(content.paths.at(key) == path_of(object["path"]));
  }
  for (const auto& tensor : manifest["tensors"])
    CHECK(content.paths.at(tensor["key"]) == path_of(tensor["path"]));
}

}  // namespace

TEST_CASE("every DCP golden of PyTorch reads with every hash and object right") {
  for (const char* name : {"fsdp4", "hsdp2x2", "compiled", "compiled_whole", "bf16", "misc"})
    check_golden(test::read_dcp_folder(kGoldens / name), name);
}

TEST_CASE("what is written from a golden with other shards reads as the golden") {
  for (const char* name : {"fsdp4", "misc"}) {
    for (const int shards : {1, 3}) {
      const test::TemporaryFolder folder;
      test::write_dcp_folder(folder.path(), test::read_dcp_folder(kGoldens / name), shards);
      check_golden(test::read_dcp_folder(folder.path()), name);
    }
  }
}

}  // namespace hyperion::checkpoint
