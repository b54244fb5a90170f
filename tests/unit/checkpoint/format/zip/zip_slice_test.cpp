#include "checkpoint/format/zip/zip_slice.h"

#include "checkpoint/format/zip/zip_writer.h"
#include "tests/support/memory_source.h"
#include "tests/unit/checkpoint/format/format_fixtures.h"

namespace hyperion::checkpoint {

namespace {

std::string two_records() {
  ZipWriter zip;
  zip.add("data.pkl", "first content");
  zip.add("version", "3\n");
  zip.finish();
  return zip.take_text();
}

// Everything a caller can see of an archive.
std::string open_all(const std::string& archive) {
  test::MemorySource source("a.distcp", bytes_of(archive));
  std::string all;
  for (const ZipRecord& record : open_zip(source).records) {
    check_crc(source, record);
    all += record.name + "=" + read_record(source, record) + ";";
  }
  return all;
}

std::string open_refusal(const std::string& archive) {
  return refusal([&] { open_all(archive); });
}

// Overwrites `bytes` at the given distance from a signature.
std::string with(std::string archive, const char* signature, size_t distance, const std::string& bytes) {
  return archive.replace(archive.rfind(signature) + distance, bytes.size(), bytes);
}

}  // namespace

TEST_CASE("a zip archive that was written reads back") {
  CHECK(open_all(two_records()) == "data.pkl=first content;version=3\n;");
}

TEST_CASE("an elsewhere record begins aligned and reads back") {
  for (const uint64_t bytes : {0, 1, 100}) {
    for (size_t name_length = 1; name_length < 80; ++name_length) {
      ZipWriter zip;
      const std::string name(name_length, 'n'), content(bytes, 'x');
      zip.begin_elsewhere(name, bytes, 64);
      std::string archive = zip.take_text();
      CHECK(archive.size() % 64 == 0);
      archive += content;
      zip.end_elsewhere(0);
      zip.finish();
      CHECK(open_all(archive + zip.take_text()) == name + "=" + content + ";");
    }
  }
}

TEST_CASE("every prefix of a zip archive is refused") {
  const std::string archive = two_records();
  for (size_t length = 0; length < archive.size(); ++length) {
    INFO(length);
    CHECK_FALSE(is_accepted([&] { open_all(archive.substr(0, length)); }));
  }
  CHECK_THAT(open_refusal(archive.substr(0, archive.size() - 1)),
             Catch::Contains("a.distcp") && Catch::Contains("complete"));
  CHECK_THAT(open_refusal(std::string(archive.size(), '\0')), Catch::Contains("complete"));
}

TEST_CASE("no flipped bit of a zip archive changes what is read unnoticed") {
  const std::string archive = two_records(), content = open_all(archive);
  size_t refused = 0;
  for (size_t bit = 0; bit < archive.size() * 8; ++bit) {
    std::string damaged = archive;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    INFO("bit " << bit % 8 << " of byte " << bit / 8);
    std::string seen;
    if (is_accepted([&] { seen = open_all(damaged); }))
      CHECK(seen == content);  // a time, a version: nothing is read of them
    else
      ++refused;
  }
  CHECK(refused > archive.size() * 5);
  std::string damaged = archive;
  damaged[damaged.find("first")] ^= 1;
  CHECK_THAT(open_refusal(damaged), Catch::Contains("'data.pkl'") && Catch::Contains("damaged"));
}

TEST_CASE("hostile zip directories are refused with the reason") {
  const std::string archive = two_records();
  const char* const local = "PK\3\4";
  const char* const central = "PK\1\2";
  const char* const end = "PK\5\6";
  CHECK_THAT(open_refusal(with(archive, central, 10, "\x08")), Catch::Contains("compressed"));
  CHECK_THAT(open_refusal(with(archive, central, 8, "\x01")), Catch::Contains("flags"));
  CHECK_THAT(open_refusal(with(archive, central, 24, "\xff\xff\xff\x7f")), Catch::Contains("compressed"));
  for (const std::string& size : {"\xf0\0\0\0\xf0\0\0\0"s, "\xff\xff\xff\xff\xff\xff\xff\xff"s}) {
    CHECK_THAT(open_refusal(with(archive, central, 20, size)), Catch::Contains("disagree"));
    CHECK_THAT(open_refusal(with(with(archive, local, 18, size), central, 20, size)),
               Catch::Contains("beyond"));
  }
  CHECK_THAT(open_refusal(with(archive, central, 42, "\0\0\0\x70"s)), Catch::Contains("begins at"));
  CHECK_THAT(open_refusal(with(archive, central, 42, "\0\0\0\0"s)), Catch::Contains("disagree"));
  CHECK_THAT(open_refusal(with(archive, local, 31, "R")), Catch::Contains("disagree"));
  CHECK_THAT(open_refusal(with(archive, end, 8, "\xff\x7f\xff\x7f")), Catch::Contains("32767 records"));
  CHECK_THAT(open_refusal(with(archive, end, 8, "\x03\0\x03\0"s)), Catch::Contains("cut short"));
  CHECK_THAT(open_refusal(with(archive, end, 8, "\x01\0\x01\0"s)), Catch::Contains("more than its 1"));
  CHECK_THAT(open_refusal(with(archive, end, 16, "\0\0\0\0"s)), Catch::Contains("directory"));

  ZipWriter twice;
  twice.add("data.pkl", "a");
  twice.add("data.pkl", "b");
  twice.finish();
  CHECK_THAT(open_refusal(twice.take_text()), Catch::Contains("twice"));
  ZipWriter many;
  for (int i = 0; i < 17; ++i) many.add(std::to_string(i), "");
  many.finish();
  CHECK_THAT(open_refusal(many.take_text()), Catch::Contains("17 records"));
}

TEST_CASE("an archive written with checksums off is read and says so") {
  std::string archive = two_records();
  for (size_t at = 0; (at = archive.find("PK\1\2", at)) != std::string::npos; at += 4)
    archive.replace(at + 16, 4, 4, '\0');
  for (size_t at = 0; (at = archive.find("PK\3\4", at)) != std::string::npos; at += 4)
    archive.replace(at + 14, 4, 4, '\0');
  CHECK(open_all(archive) == "data.pkl=first content;version=3\n;");
  test::MemorySource source("a.distcp", bytes_of(archive));
  for (const ZipRecord& record : open_zip(source).records) CHECK_FALSE(record.crc);
}

}  // namespace hyperion::checkpoint
