#include <cstring>

#include <catch2/catch.hpp>

#include "checkpoint/storage/manifest.h"
#include "checkpoint/tools/tools.h"
#include "tests/unit/checkpoint/tools/fixture.h"

namespace hyperion::checkpoint {

using namespace test;
namespace fs = std::filesystem;
using Format = WeightFormat;

namespace {

Ran convert(const ConvertOptions& options) {
  return run_tool([&](std::FILE* out) { return convert_checkpoint(options, out); });
}

// wq's 8 rows as two heads of 4 in Hugging Face's order: stored row -> our row.
int64_t our_row(int64_t stored) {
  return stored / 4 * 4 + stored % 2 * 2 + stored % 4 / 2;
}

const std::vector<std::pair<std::string, std::string>> kNames = {
    {"tok_embeddings.weight", "model.embed_tokens.weight"},
    {"layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight"},
    {"norm.weight", "model.norm.weight"}};

std::vector<ConvertedTensor> to_stored(const OpenCheckpoint&) {
  std::vector<ConvertedTensor> tensors;
  for (const auto& [ours, stored] : kNames) tensors.push_back({ours, stored});
  tensors[1].row_map = our_row;
  return tensors;
}
std::vector<ConvertedTensor> to_ours(const OpenCheckpoint&) {
  std::vector<ConvertedTensor> tensors;
  for (const auto& [ours, stored] : kNames) tensors.push_back({stored, ours});
  tensors[1].row_map = our_row;  // of heads of 4 it is its own inverse
  return tensors;
}

uint64_t model_digest(const fs::path& path) {
  return digest_of(path, {.component = "model"}).total();
}

}  // namespace

TEST_CASE("a tensor of another shape than the model's is not converted") {
  const TemporaryFolder folder;
  const fs::path source = save_toy(folder.path(), 8);
  const Ran ran = convert(
      {.source = source, .destination = folder.path() / "new", .tensors = [](const OpenCheckpoint& opened) {
         std::vector<ConvertedTensor> tensors = to_stored(opened);
         tensors[0].shape = {3, 1, 4};
         return tensors;
       }});
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains(", and the model has [3, 1, 4]"));
  CHECK_FALSE(fs::exists(folder.path() / "new"));
}

TEST_CASE("convert to safetensors and back gives the same weights") {
  const TemporaryFolder folder;
  const fs::path source = save_toy(folder.path(), 8, {.shards = 3});
  const fs::path hf = folder.path() / "hf", back = folder.path() / "back";
  const Ran out = convert({.source = source,
                           .destination = hf / "",
                           .format = Format::kSafetensors,
                           .tensors = to_stored,
                           .more_files = {{"config.json", "{}\n"}}});
  INFO(out.text);
  CHECK(out.code == ExitCode::kOk);
  CHECK(read_file(hf / "config.json") == "{}\n");
  CHECK(open_checkpoint(hf).index.tensors.size() == 3);
  const Ran in = convert({.source = hf, .destination = back, .format = Format::kDcp, .tensors = to_ours});
  INFO(in.text);
  CHECK(in.code == ExitCode::kOk);
  CHECK(model_digest(back) == model_digest(source));
  const Manifest manifest = read_manifest(back);
  CHECK(manifest.kind == CheckpointKind::kModel);
  CHECK(manifest.facts.at("converted_from") == hf.string());
  CHECK(run_tool([&](std::FILE* file) { return verify_checkpoints({.path = back}, file); }).code ==
        ExitCode::kOk);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path()))
    CHECK(entry.path().filename().string().find(".convert") == std::string::npos);
}

TEST_CASE("convert moves rows as the map says and changes types") {
  const TemporaryFolder folder;
  const fs::path source = save_toy(folder.path(), 8);
  const fs::path hf = folder.path() / "hf";
  REQUIRE(convert({.source = source,
                   .destination = hf,
                   .format = Format::kSafetensors,
                   .dtype = Dtype::kBFloat16,
                   .tensors = to_stored})
              .code == ExitCode::kOk);
  const OpenCheckpoint checkpoint = open_checkpoint(hf);
  const TensorRecord& record = checkpoint.index.tensors.at("model.layers.0.self_attn.q_proj.weight");
  CHECK(record.dtype == Dtype::kBFloat16);
  const std::string file = read_file(hf / record.chunks.at(0).where.file);
  for (int64_t row = 0; row < 8; ++row) {
    uint16_t bits = 0;
    std::memcpy(&bits, file.data() + record.chunks[0].where.offset + row * 6 * 2, 2);
    const uint32_t word = uint32_t{bits} << 16;
    float number = 0;
    std::memcpy(&number, &word, 4);
    CHECK(number == Approx(our_row(row) * 6 + 28.0 / 64).epsilon(0.004));
  }
}

TEST_CASE("convert refuses numbers that are not finite by name and leaves nothing") {
  const TemporaryFolder folder;
  const fs::path source = save_toy(folder.path(), 8, {.offsets = {{"norm.weight", 1e6F}}});
  const auto only_the_source = [&] { return std::distance(fs::directory_iterator(folder.path()), {}) == 1; };
  for (const Format format : {Format::kSafetensors, Format::kDcp}) {
    ConvertOptions options{.source = source, .destination = folder.path() / "new", .format = format};
    options.dtype = Dtype::kFloat16;
    const Ran large = convert(options);
    INFO(large.text);
    CHECK(large.code == ExitCode::kNonFinite);  // the source is sound
    CHECK_THAT(large.text,
               Catch::Contains("too large for float16") && Catch::Contains("norm.weight (1 number)"));
    CHECK(only_the_source());
  }
  const OpenCheckpoint checkpoint = open_checkpoint(source);
  put_not_finite(checkpoint, "norm.weight", 2);
  put_not_finite(checkpoint, "layers.0.attention.wq.weight", 1);
  put_not_finite(checkpoint, "ema.tok_embeddings.weight", 7);  // is not converted
  rewrite_manifest(source);
  for (const Format format : {Format::kSafetensors, Format::kDcp}) {
    for (const std::optional<Dtype> dtype : {std::optional<Dtype>(), std::optional(Dtype::kBFloat16)}) {
      const Ran ran =
          convert({.source = source, .destination = folder.path() / "new", .format = format, .dtype = dtype});
      INFO(ran.text);
      CHECK(ran.code == ExitCode::kBadData);
      CHECK_THAT(ran.text, Catch::Contains("holds NaN or infinite numbers") &&
                               Catch::Contains("norm.weight (2 numbers)") &&
                               Catch::Contains("layers.0.attention.wq.weight (1 number)") &&
                               !Catch::Contains("ema"));
      CHECK(only_the_source());
    }
  }
}

TEST_CASE("convert names the matrix of a stack whose numbers are not finite") {
  const TemporaryFolder folder;
  const std::string wq = "layers.0.attention.wq.weight";
  REQUIRE(convert({.source = save_toy(folder.path(), 8),
                   .destination = folder.path() / "hf",
                   .tensors =
                       [&](const OpenCheckpoint&) {
                         return std::vector<ConvertedTensor>{{wq, "expert.0"}, {wq, "expert.1"}};
                       }})
              .code == ExitCode::kOk);
  put_not_finite(open_checkpoint(folder.path() / "hf"), "expert.1", 3);
  const Ran ran = convert({.source = folder.path() / "hf",
                           .destination = folder.path() / "dcp",
                           .format = Format::kDcp,
                           .tensors = [](const OpenCheckpoint& source) {
                             TensorRecord stack{Dtype::kFloat32, {2, 8, 6}, {}};
                             for (int64_t i = 0; i < 2; ++i) {
                               Chunk chunk = source.index.tensors.at(fmt::format("expert.{}", i)).chunks[0];
                               chunk.offset.insert(chunk.offset.begin(), i);
                               chunk.shape.insert(chunk.shape.begin(), 1);
                               stack.chunks.push_back(chunk);
                             }
                             ConvertedTensor one{"expert.0", "experts"};
                             one.record = std::make_shared<const TensorRecord>(stack);
                             return std::vector<ConvertedTensor>{one};
                           }});
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains("in expert.1 (3 numbers)") && !Catch::Contains("expert.0"));
}

TEST_CASE("convert takes the averages on request") {
  const TemporaryFolder folder;
  const fs::path source = save_toy(folder.path(), 8, {.offsets = {{"ema.tok_embeddings.weight", 3.0F}}});
  const fs::path ema = folder.path() / "ema";
  REQUIRE(convert({.source = source, .destination = ema, .format = Format::kDcp, .ema = true}).code ==
          ExitCode::kOk);
  const Digest digest = digest_of(ema), whole = digest_of(source);
  REQUIRE(digest.entries.size() == 1);
  CHECK(digest.entries[0].key == "tok_embeddings.weight");
  CHECK(digest.entries[0].hash ==
        std::ranges::find(whole.entries, "ema.tok_embeddings.weight", &DigestEntry::key)->hash);
  const Ran none =
      convert({.source = ema, .destination = folder.path() / "none", .format = Format::kDcp, .ema = true});
  CHECK(none.code == ExitCode::kBadData);
  CHECK_THAT(none.text, Catch::Contains("no averaged weights"));
}

TEST_CASE("convert writes nothing when it cannot finish") {
  const TemporaryFolder folder;
  const fs::path source = save_toy(folder.path() / "job", 8);
  fs::create_directory(folder.path() / "there");
  CHECK(convert({.source = source, .destination = folder.path() / "there"}).code == ExitCode::kUsage);
  flip_bit(source / "__0_0.distcp", 900);
  for (const Format format : {Format::kDcp, Format::kSafetensors})
    CHECK(convert({.source = source, .destination = folder.path() / "new", .format = format}).code !=
          ExitCode::kOk);
  std::vector<std::string> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path()))
    left.push_back(entry.path().filename().string());
  std::ranges::sort(left);
  CHECK(left == std::vector<std::string>{"job", "there"});
}

TEST_CASE("convert to a step folder gives its manifest that step") {
  const TemporaryFolder folder;
  const fs::path source = save_toy(folder.path() / "job", 8);
  REQUIRE(convert({.source = source, .destination = folder.path() / "other/step-2", .format = Format::kDcp})
              .code == ExitCode::kOk);
  CHECK(read_manifest(folder.path() / "other/step-2").step == 2);
  CHECK(model_digest(folder.path() / "other/step-2") == model_digest(source));
}

}  // namespace hyperion::checkpoint
