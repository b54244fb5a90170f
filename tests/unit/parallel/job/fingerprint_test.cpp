#include "parallel/job/fingerprint.h"

#include <catch2/catch.hpp>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

const Fingerprint kJob = {{"binary", "1"}, {"data", "austen"}, {"training.steps", "10"}};

// What the ranks 11, 12 ... have otherwise than rank 0.
std::string compare(const Fingerprint& rank0, const std::vector<Fingerprint>& others) {
  std::vector<DifferingRank> differing;
  for (size_t r = 0; r < others.size(); ++r) {
    const Fingerprint entries = differing_entries(rank0, others[r]);
    if (!entries.empty()) differing.push_back({static_cast<int>(11 + r), entries});
  }
  return differing.empty() ? "" : describe_differences(rank0, differing);
}

Fingerprint with(const std::string& key, const std::string& value) {
  Fingerprint changed = kJob;
  changed[key] = value;
  return changed;
}

}  // namespace

TEST_CASE("equal fingerprints agree") {
  CHECK(compare(kJob, {kJob, kJob}).empty());
  CHECK(compare({}, {{}}).empty());
}

TEST_CASE("the ranks that differ are named only for the keys that differ") {
  const std::string text = compare(kJob, {with("data", "x"), kJob, with("data", "y"), with("data", "x")});
  CHECK(text.find("1 entry differs") != std::string::npos);
  CHECK(text.find("data: austen on rank 0, x on rank 11 14, y on rank 13") != std::string::npos);
  CHECK(text.find("training.steps") == std::string::npos);
}

TEST_CASE("an entry that only some ranks have is a difference") {
  CHECK(compare(kJob, {with("extra key", "v")}).find("extra key: nothing on rank 0, v on rank 11") !=
        std::string::npos);
  CHECK(compare(with("extra key", "v"), {kJob}).find("extra key: v on rank 0, nothing on rank 11") !=
        std::string::npos);
}

TEST_CASE("values may be of several lines and long values and lists are cut") {
  CHECK(compare(with("data", "a\nb c"), {with("data", "a\nb c")}).empty());
  CHECK(compare(kJob, {with("data", std::string(200, 'x'))})
            .find(", " + std::string(80, 'x') + "... on rank 11") != std::string::npos);
  Fingerprint many, other;
  for (int i = 0; i < 50; ++i) many["key" + std::to_string(i)] = "1", other["key" + std::to_string(i)] = "2";
  const std::string text = compare(many, {other});
  CHECK(text.find("50 entries differ") != std::string::npos);
  CHECK(text.find("and 30 more") != std::string::npos);
}

}  // namespace hyperion::parallel
