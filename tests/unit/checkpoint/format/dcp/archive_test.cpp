#include "checkpoint/format/dcp/archive.h"

#include <numeric>

#include "checkpoint/format/pickle/pickle_writer.h"
#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/format/zip/zip_writer.h"
#include "tests/support/memory_source.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/format/format_fixtures.h"

namespace hyperion::checkpoint {

using namespace test;

namespace {

std::string tensor_archive(Dtype dtype, const Dims& shape, const std::string& elements) {
  return tensor_archive_head(dtype, shape) + elements +
         tensor_archive_tail(dtype, shape, crc32(0, elements.data(), elements.size()));
}

// Bytes that differ from each other, for `shape` int32 elements: 0, 1, 2, ...
std::string counting(int64_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

// An archive of int32 0, 1, 2, ... (`count` of them) with any shape, strides and storage offset.
std::string strided_archive(const Dims& shape, const Dims& strides, int64_t first, int64_t count,
                            int64_t claimed = -1) {
  PickleWriter writer;
  const auto tuple = [&](const Dims& dims) {
    writer.op(PickleOp::kMark);
    for (const int64_t extent : dims) writer.integer(extent);
    writer.op(PickleOp::kTuple);
  };
  writer.global("torch._utils", "_rebuild_tensor_v2");
  writer.op(PickleOp::kMark);
  writer.op(PickleOp::kMark);
  writer.text("storage");
  writer.global("torch", "IntStorage");
  writer.text("0");
  writer.text("cuda:3");
  writer.integer(claimed < 0 ? count : claimed);
  writer.op(PickleOp::kTuple);
  writer.op(PickleOp::kPersistentId);
  writer.integer(first);
  tuple(shape);
  tuple(strides);
  writer.boolean(false);
  writer.global("collections", "OrderedDict");
  writer.op(PickleOp::kEmptyTuple);
  writer.op(PickleOp::kReduce);
  writer.op(PickleOp::kTuple);
  writer.op(PickleOp::kReduce);
  ZipWriter zip;
  zip.add("data.pkl", writer.finish());
  zip.add("version", "3\n");
  zip.add("data/0", counting(count));
  zip.finish();
  return zip.take_text();
}

std::string archive_of(const std::string& pickle, const std::string& version = "3\n") {
  ZipWriter zip;
  zip.add("data.pkl", pickle);
  zip.add("version", version);
  zip.finish();
  return zip.take_text();
}

TensorArchive open(const std::string& bytes) {
  MemorySource entry("__0_0.distcp", bytes_of(bytes));
  const TensorArchive archive = open_tensor_archive(entry);
  check_crc(entry, archive.data);
  return archive;
}

std::vector<int32_t> box(const std::string& bytes, const Dims& offset, const Dims& shape) {
  MemorySource entry("__0_0.distcp", bytes_of(bytes));
  const TensorArchive archive = open_tensor_archive(entry);
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  std::vector<int32_t> values(count);
  read_box(entry, archive, {offset, shape}, values.data());
  return values;
}

Object read_object(const std::string& bytes) {
  MemorySource entry("__0_0.distcp", bytes_of(bytes));
  return read_object_archive(entry);
}

}  // namespace

TEST_CASE("a tensor archive has exactly the promised length and aligned elements for all dtypes and shapes") {
  for (int type = 0; type <= static_cast<int>(Dtype::kFloat8E8M0FNU); ++type) {
    const auto dtype = static_cast<Dtype>(type);
    for (const Dims& shape :
         {Dims{}, Dims{0}, Dims{7}, Dims{300, 5}, Dims{0, 70000, 3}, Dims{1, 2, 3, 4, 5}, Dims{65536}}) {
      int64_t count = 1;
      for (const int64_t extent : shape) count *= extent;
      const std::string elements(static_cast<size_t>(count) * size_of(dtype), '\x01');
      const std::string archive = tensor_archive(dtype, shape, elements);
      INFO(torch_name(dtype) << " of rank " << shape.size());
      CHECK(archive.size() == tensor_archive_bytes(dtype, shape));
      CHECK(tensor_archive_head(dtype, shape).size() % 64 == 0);
      const TensorArchive read = open(archive);
      CHECK(read.dtype == dtype);
      CHECK(read.shape == shape);
      CHECK(read.first == 0);
      CHECK(read.data.data_offset == tensor_archive_head(dtype, shape).size());
      CHECK(read.data.data_bytes == elements.size());
      CHECK(read.data.crc == crc32(0, elements.data(), elements.size()));
    }
  }
}

TEST_CASE("a tensor beyond 4 GiB has ZIP64 records and its length is known without its bytes") {
  const Dims shape = {3, int64_t{1} << 30};
  const std::string head = tensor_archive_head(Dtype::kFloat32, shape);
  const std::string tail = tensor_archive_tail(Dtype::kFloat32, shape, 0x12345678);
  const uint64_t bytes = uint64_t{12} << 30;
  CHECK(head.size() + bytes + tail.size() == tensor_archive_bytes(Dtype::kFloat32, shape));

  // The archive without the memory for it.
  class Sparse : public ByteSource {
   public:
    Sparse(std::string head, std::string tail, uint64_t hole)
        : head_(std::move(head)), tail_(std::move(tail)), hole_(hole) {}
    const std::string& name() const override { return name_; }
    uint64_t size() const override { return head_.size() + hole_ + tail_.size(); }
    void read(uint64_t offset, void* out, uint64_t count) override {
      require_inside(offset, count);
      const uint64_t tail_at = head_.size() + hole_;
      for (uint64_t i = offset; i < offset + count; ++i)
        static_cast<char*>(out)[i - offset] = i < head_.size() ? head_[i]
                                              : i >= tail_at   ? tail_[i - tail_at]
                                                               : '\0';
    }

   private:
    std::string name_ = "sparse", head_, tail_;
    uint64_t hole_;
  } source(head, tail, bytes);
  const TensorArchive archive = open_tensor_archive(source);
  CHECK(archive.shape == shape);
  CHECK(archive.data.data_bytes == bytes);
  CHECK(archive.data.crc == 0x12345678u);
}

TEST_CASE("boxes and rows of strided tensors come out row-major") {
  const std::string plain = tensor_archive(Dtype::kInt32, {4, 3}, counting(12));
  CHECK(box(plain, {1, 0}, {2, 3}) == std::vector<int32_t>{3, 4, 5, 6, 7, 8});
  CHECK(box(plain, {1, 1}, {2, 2}) == std::vector<int32_t>{4, 5, 7, 8});
  CHECK(box(plain, {4, 0}, {0, 3}).empty());
  const std::string transposed = strided_archive({3, 4}, {1, 3}, 0, 12);
  CHECK(box(transposed, {0, 0}, {3, 4}) == std::vector<int32_t>{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11});
  CHECK(box(transposed, {1, 2}, {2, 2}) == std::vector<int32_t>{7, 10, 8, 11});
  CHECK(box(strided_archive({2, 2}, {4, 2}, 3, 12), {0, 0}, {2, 2}) == std::vector<int32_t>{3, 5, 7, 9});
  CHECK(box(strided_archive({2, 3}, {0, 1}, 5, 12), {0, 0}, {2, 3}) ==
        std::vector<int32_t>{5, 6, 7, 5, 6, 7});
  CHECK(box(strided_archive({}, {}, 5, 12), {}, {}) == std::vector<int32_t>{5});
  MemorySource entry("__0_0.distcp", bytes_of(transposed));
  std::vector<int32_t> rows(8);
  read_box(entry, open_tensor_archive(entry), {{1, 0}, {2, 4}}, rows.data());
  CHECK(rows == std::vector<int32_t>{1, 4, 7, 10, 2, 5, 8, 11});
}

TEST_CASE("a big strided tensor is read in parts") {
  constexpr int64_t kRows = 700, kColumns = 900;  // 2.5 MB, far more than is gathered at once when sparse
  const std::string archive = strided_archive({kColumns, kRows}, {1, kColumns}, 0, kRows * kColumns);
  const std::vector<int32_t> values = box(archive, {10, 5}, {3, kRows - 5});
  bool right = true;
  for (int64_t column = 0; column < 3; ++column)
    for (int64_t row = 0; row < kRows - 5; ++row)
      right &= values[static_cast<size_t>(column * (kRows - 5) + row)] == (row + 5) * kColumns + column + 10;
  CHECK(right);
}

TEST_CASE("runs of columns are announced before they are read, and gaps of a page or more are not read") {
  // A tensor of 64 rows whose bytes nobody has.
  class Watched : public ByteSource {
   public:
    explicit Watched(uint64_t bytes) : bytes_(bytes) {}
    const std::string& name() const override { return name_; }
    uint64_t size() const override { return bytes_; }
    void read(uint64_t offset, void*, uint64_t bytes) override { read_.emplace_back(offset, bytes); }
    void will_read(uint64_t offset, uint64_t bytes) override {
      CHECK(read_.empty());
      announced_.emplace_back(offset, bytes);
    }
    std::vector<std::pair<uint64_t, uint64_t>> announced_, read_;

   private:
    std::string name_ = "watched";
    uint64_t bytes_;
  };
  const auto watch = [](int64_t width, int64_t first, int64_t columns) {
    const TensorArchive archive = row_major_archive(Dtype::kFloat32, {64, width}, 100);
    Watched source(100 + archive.data.data_bytes);
    std::vector<float> out(static_cast<size_t>(64 * columns));
    read_box(source, archive, {{0, first}, {64, columns}}, out.data());
    return source;
  };
  const Watched wide = watch(4096, 1024, 1024);
  REQUIRE(wide.read_.size() == 64);
  CHECK(wide.announced_ == wide.read_);
  for (uint64_t row = 0; row < 64; ++row)
    CHECK(wide.read_[row] == std::pair<uint64_t, uint64_t>{100 + (row * 4096 + 1024) * 4, 4096});
  CHECK(watch(2047, 1000, 1024).read_.size() == 1);   // gaps of 4,092 bytes
  CHECK(watch(2048, 1000, 1024).read_.size() == 64);  // of 4,096
  CHECK(watch(4096, 0, 255).read_.size() == 16);      // runs of less than 1 KiB: four rows at a time
}

TEST_CASE("tensors that reach outside their storage are refused") {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const auto open_refusal = [](const std::string& bytes) { return refusal([&] { open(bytes); }); };
  CHECK_THAT(open_refusal(strided_archive({4, 3}, {3, 1}, 1, 12)), Catch::Contains("beyond its storage"));
  CHECK_THAT(open_refusal(strided_archive({4, 3}, {4, 1}, 0, 12)), Catch::Contains("beyond its storage"));
  CHECK_THAT(open_refusal(strided_archive({4, 3}, {kHuge, 1}, 0, 12)), Catch::Contains("beyond its storage"));
  CHECK_THAT(open_refusal(strided_archive({2}, {kHuge - 1}, kHuge - 1, 12)),
             Catch::Contains("beyond its storage"));
  CHECK_THAT(open_refusal(strided_archive({kHuge, kHuge}, {0, 0}, 0, 12)), Catch::Contains("impossible"));
  CHECK_THAT(open_refusal(strided_archive({3}, {-1}, 2, 12)), Catch::Contains("strides"));
  CHECK_THAT(open_refusal(strided_archive({3}, {1}, -1, 12)), Catch::Contains("offset"));
  CHECK_THAT(open_refusal(strided_archive({3}, {1, 1}, 0, 12)), Catch::Contains("rank"));
  CHECK_THAT(open_refusal(strided_archive({3}, {1}, 0, 12, 13)), Catch::Contains("48 bytes, expected 52"));
  CHECK_THAT(open_refusal(strided_archive({3}, {1}, 0, 12, kHuge)), Catch::Contains("impossible"));
  CHECK(open(strided_archive({0, 5}, {kHuge, kHuge}, 0, 12)).shape == Dims{0, 5});
  CHECK_THAT(open_refusal(strided_archive({kHuge / 8}, {0}, 0, 12)), Catch::Contains("only 12"));
  CHECK_THAT(open_refusal(strided_archive({13}, {0}, 0, 12)), Catch::Contains("it was expanded"));
}

TEST_CASE("no flipped bit of a tensor archive goes unnoticed") {
  const std::string elements = counting(6), archive = tensor_archive(Dtype::kInt32, {3, 2}, elements);
  const std::vector<int32_t> values = box(archive, {0, 0}, {3, 2});
  size_t refused = 0;
  for (size_t bit = 0; bit < archive.size() * 8; ++bit) {
    std::string damaged = archive;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    INFO("bit " << bit % 8 << " of byte " << bit / 8);
    if (is_accepted([&] { open(damaged); }))
      CHECK(box(damaged, {0, 0}, {3, 2}) == values);  // padding, times, versions
    else
      ++refused;
  }
  CHECK(refused > archive.size() * 4);
}

TEST_CASE("every prefix of an entry is refused") {
  const std::string tensor = tensor_archive(Dtype::kInt32, {3, 2}, counting(6)),
                    object = object_archive("value");
  for (size_t length = 0; length < tensor.size(); ++length)
    CHECK_FALSE(is_accepted([&] { open(tensor.substr(0, length)); }));
  for (size_t length = 0; length < object.size(); ++length)
    CHECK_FALSE(is_accepted([&] { read_object(object.substr(0, length)); }));
}

TEST_CASE("objects come back and their archives are lean") {
  const Object value =
      Dict{{{"lr", 3e-4}, {"betas", Object::tuple({0.9, 0.95})}, {"state", Bytes{"\x80\xff"}}}};
  CHECK(read_object(object_archive(value)) == value);
  CHECK(object_archive(7).size() < 300);
  std::string damaged = object_archive("a value");
  damaged[damaged.find("a value")] ^= 1;
  CHECK_THAT(refusal([&] { read_object(damaged); }),
             Catch::Contains("__0_0.distcp") && Catch::Contains("damaged"));
}

TEST_CASE("archives of other kinds are refused with the reason") {
  const std::string object = object_archive(7);
  CHECK_THAT(refusal([&] { open(object); }), Catch::Contains("something else than one tensor"));
  CHECK_THAT(refusal([&] { read_object(strided_archive({3}, {1}, 0, 12)); }),
             Catch::Contains("tensor inside"));
  CHECK_THAT(refusal([&] { read_object(archive_of("N.", "11\n")); }), Catch::Contains("version '11"));
  CHECK_THAT(refusal([&] { read_object(archive_of("N.", "x")); }), Catch::Contains("version 'x'"));
  ZipWriter big_endian, script, nothing;
  for (ZipWriter* zip : {&big_endian, &script}) {
    zip->add("data.pkl", "N.");
    zip->add("version", "3\n");
  }
  big_endian.add("byteorder", "big");
  big_endian.finish();
  CHECK_THAT(refusal([&] { read_object(big_endian.take_text()); }), Catch::Contains("byte order 'big'"));
  script.add("constants.pkl", "");
  script.finish();
  CHECK_THAT(refusal([&] { read_object(script.take_text()); }), Catch::Contains("TorchScript"));
  nothing.add("version", "3\n");
  nothing.finish();
  CHECK_THAT(refusal([&] { read_object(nothing.take_text()); }), Catch::Contains("no data.pkl"));
}

TEST_CASE("a malicious pickle in an entry is refused by name and nothing runs") {
  const test::TemporaryFolder folder;
  const auto canary = folder.path() / "canary";
  for (const MaliciousPickle& pickle : malicious_pickles(canary)) {
    const std::string archive = archive_of(pickle.bytes);
    CHECK_THAT(refusal([&] { read_object(archive); }), Catch::Contains("it names " + pickle.name + ","));
    CHECK_THAT(refusal([&] { open(archive); }), Catch::Contains("it names " + pickle.name + ","));
  }
  CHECK(!std::filesystem::exists(canary));
}

}  // namespace hyperion::checkpoint
