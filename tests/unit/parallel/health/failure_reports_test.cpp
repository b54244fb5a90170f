#include "parallel/health/failure_reports.h"

#include <chrono>
#include <numeric>
#include <thread>

#include <catch2/catch.hpp>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Counts requests and the bytes of keys and values.
class CountingStore : public c10d::HashStore {
 public:
  using Bytes = std::vector<uint8_t>;
  void set(const std::string& key, const Bytes& value) override {
    count(key.size() + value.size());
    HashStore::set(key, value);
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    Bytes value = HashStore::compareSet(key, expected, desired);
    count(key.size() + expected.size() + desired.size() + value.size());
    return value;
  }
  Bytes get(const std::string& key) override {
    Bytes value = HashStore::get(key);
    count(key.size() + value.size());
    return value;
  }
  void append(const std::string& key, const Bytes& value) override {
    count(key.size() + value.size());
    HashStore::append(key, value);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    count(keys.front().size());
    HashStore::wait(keys, timeout);
  }
  int64_t requests = 0;
  size_t bytes = 0;

 private:
  void count(size_t more) {
    ++requests;
    bytes += more;
  }
};

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

constexpr const char* kReport = "all_gather in phase 'step 12 forward layers.3'";

}  // namespace

TEST_CASE("the failure reports of 16,384 ranks take four requests per rank and names the lost rank") {
  constexpr int kWorld = 16384, kLost = 5000;
  const auto store = c10::make_intrusive<CountingStore>();
  const std::vector<int> world = first_ranks(kWorld);
  int others = 0;
  for (const int rank : world)
    if (rank != kLost) others += leave_failure_report(*store, rank, world, kReport) != 0;
  CHECK(others == 0);  // rank 0, the first one, collects
  collect_failure_reports(*store, milliseconds(0));
  int wrong = 0;
  for (const int rank : world)
    if (rank != kLost) wrong += read_failure_reports(*store, rank, 0, seconds(1)).lost != std::vector{kLost};
  CHECK(wrong == 0);
  const std::string report = kReport;
  CHECK(read_failure_reports(*store, 1, 0, seconds(1)).text ==
        "; no word from rank 5000: see its log first; rank 0 failed too: " + report +
            "; rank 2 failed too: " + report + "; rank 3 failed too: " + report + "; and 16379 more ranks");
  CHECK(store->requests < 4 * kWorld + 10);
  CHECK(store->bytes < size_t{16} << 20);
}

TEST_CASE("ranks are looked for in every group that failed") {
  const auto store = c10::make_intrusive<CountingStore>();
  CHECK(leave_failure_report(*store, 2, {2, 3}, "all_reduce in phase ''") == 2);
  CHECK(leave_failure_report(*store, 0, {0, 2, 5, 9}, "barrier in\nphase 'x'") == 2);
  collect_failure_reports(*store, milliseconds(0));
  const PostMortem found = read_failure_reports(*store, 2, 2, seconds(1));
  CHECK(found.lost == std::vector{3, 5, 9});
  CHECK(found.text ==
        "; no word from rank 3 5 9: see its log first; rank 0 failed too: barrier in phase 'x'");
}

TEST_CASE("a rank whose operation fails late is told of the others and not of itself") {
  const auto store = c10::make_intrusive<CountingStore>();
  CHECK(leave_failure_report(*store, 0, {0, 1}, "all_reduce in phase ''") == 0);
  collect_failure_reports(*store, milliseconds(0));
  CHECK(read_failure_reports(*store, 0, 0, seconds(1)).lost == std::vector{1});
  CHECK(leave_failure_report(*store, 1, {0, 1}, "all_reduce in phase ''") == 0);
  const PostMortem late = read_failure_reports(*store, 1, 0, seconds(1));
  CHECK(late.lost.empty());
  CHECK(late.text == "; rank 0 failed too: all_reduce in phase ''");
}

TEST_CASE("failure reports are collected until every rank of the groups has left one") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK(leave_failure_report(*store, 1, {0, 1}, "barrier in phase ''") == 1);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(250));
    leave_failure_report(*store, 0, {0, 1}, "barrier in phase ''");
  });
  collect_failure_reports(*store, seconds(3600));  // of which ctest would not wait for the end
  late.join();
  const PostMortem found = read_failure_reports(*store, 1, 1, seconds(1));
  CHECK(found.lost.empty());
  CHECK(found.text == "; rank 0 failed too: barrier in phase ''");
}

TEST_CASE("the reports of ranks that are known to be lost are not waited for") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK(leave_failure_report(*store, 1, {0, 1, 2, 3}, "barrier in phase ''") == 1);
  leave_failure_report(*store, 2, {0, 1, 2, 3}, "barrier in phase ''");
  collect_failure_reports(*store, seconds(3600), {0, 3});  // of which ctest would not wait for the end
  CHECK(read_failure_reports(*store, 2, 1, seconds(1)).lost == std::vector{0, 3});
}

TEST_CASE("a rank that was to collect the reports and has ended is named") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK(leave_failure_report(*store, 3, {0, 3}, "barrier in phase ''") == 3);
  CHECK(leave_failure_report(*store, 0, {0, 3}, "barrier in phase ''") == 3);
  const PostMortem found = read_failure_reports(*store, 0, 3, milliseconds(50));
  CHECK(found.lost == std::vector{3});
  CHECK(found.text == "; rank 3, which asks the others, does not answer: see its log first");
}

TEST_CASE("where the rank that was to collect the reports does not answer another does it") {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  for (const int rank : {3, 0, 1})
    CHECK(leave_failure_report(*store, rank, {0, 1, 2, 3}, "barrier in phase ''") == 3);
  const PostMortem found = read_failure_reports(*store, 0, 3, milliseconds(50));
  CHECK(found.lost == std::vector{2});
  CHECK(
      found.text ==
      "; no word from rank 2: see its log first; rank 1 failed too: barrier in phase ''; rank 3 failed too: "
      "barrier in phase ''");
  CHECK(read_failure_reports(*store, 1, 3, milliseconds(50)).lost == std::vector{2});
}

}  // namespace hyperion::parallel
