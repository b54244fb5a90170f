#include "parallel/agreement.h"

#include <catch2/catch.hpp>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

const Fingerprint kJob = {{"binary", "1"}, {"data", "austen"}, {"training.steps", "10"}};

std::string compare(const std::vector<Fingerprint>& ranks) {
  std::vector<std::string> texts;
  std::vector<int> global;
  for (size_t r = 0; r < ranks.size(); ++r) {
    texts.push_back(serialize_hashes(ranks[r]));
    global.push_back(static_cast<int>(10 + r));
  }
  return describe_disagreement(texts, global);
}

Fingerprint with(const std::string& key, const std::string& value) {
  Fingerprint changed = kJob;
  changed[key] = value;
  return changed;
}

}  // namespace

TEST_CASE("equal fingerprints agree") {
  CHECK(compare({kJob, kJob, kJob}).empty());
  CHECK(compare({kJob}).empty());
  CHECK(compare({{}, {}}).empty());
}

TEST_CASE("the minority is named by global rank and only for the keys that differ") {
  const std::string text = compare({kJob, with("data", "x"), kJob, with("data", "y")});
  CHECK(text.find("1 entries differ") != std::string::npos);
  CHECK(text.find("data: rank 11 13 differs") != std::string::npos);
  CHECK(text.find("binary") == text.find("binary and data"));  // only in the advice
}

TEST_CASE("an entry that only some ranks have is a difference") {
  CHECK(compare({kJob, with("extra key", "v")}).find("extra key: rank 11 differs") != std::string::npos);
}

TEST_CASE("values may hold any bytes and long lists are cut") {
  CHECK(compare({with("data", "a\nb c"), with("data", "a\nb c")}).empty());
  Fingerprint many, other;
  for (int i = 0; i < 50; ++i) many["key" + std::to_string(i)] = "1", other["key" + std::to_string(i)] = "2";
  const std::string text = compare({many, other});
  CHECK(text.find("50 entries differ") != std::string::npos);
  CHECK(text.find("and 30 more") != std::string::npos);
}

}  // namespace hyperion::parallel
