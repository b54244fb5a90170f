#include "trainer/config/writers_choice.h"

#include <catch2/catch.hpp>

namespace hyperion::config {
namespace {

using checkpoint::Writers;

}  // namespace

TEST_CASE("one replica writes by default where there are replicas and more than 512 ranks") {
  const auto automatic = [](int64_t ranks, int64_t replicas) {
    return choose_writers(WritersChoice::kAuto, ranks, replicas);
  };
  CHECK(automatic(1, 1).text == "1 rank (checkpoint.writers = \"auto\": at most 512 ranks)");
  CHECK(automatic(512, 8).text == "all 512 ranks (checkpoint.writers = \"auto\": at most 512 ranks)");
  CHECK(automatic(512, 8).writers == Writers::kAll);
  CHECK(automatic(514, 2).text ==
        "one replica, 257 of 514 ranks (checkpoint.writers = \"auto\": more than 512 ranks, and 2 replicas)");
  CHECK(automatic(513, 3).writers == Writers::kOneReplica);
  CHECK(automatic(514, 1).writers == Writers::kAll);
  CHECK(
      automatic(16384, 1).text ==
      "all 16,384 ranks (checkpoint.writers = \"auto\": without replicas each rank has a shard of its own)");
}

TEST_CASE("what checkpoint.writers names is done on any number of ranks") {
  for (const int64_t ranks : {4, 512, 1024})
    for (const int64_t replicas : {1, 2}) {
      CHECK(choose_writers(WritersChoice::kAll, ranks, replicas).writers == Writers::kAll);
      CHECK(choose_writers(WritersChoice::kOneReplica, ranks, replicas).writers == Writers::kOneReplica);
    }
  CHECK(choose_writers(WritersChoice::kAll, 1024, 2).text ==
        "all 1,024 ranks (checkpoint.writers = \"all\")");
  CHECK(choose_writers(WritersChoice::kOneReplica, 4, 2).text ==
        "one replica, 2 of 4 ranks (checkpoint.writers = \"one_replica\")");
}

}  // namespace hyperion::config
