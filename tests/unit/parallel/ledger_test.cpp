#include "parallel/ledger.h"

#include <thread>
#include <vector>

#include <catch2/catch.hpp>

namespace hyperion::parallel {

TEST_CASE("the ledger adds up per group and operation") {
  CommLedger ledger;
  ledger.add("fsdp/0", "all_gather", 100);
  ledger.add("fsdp/0", "all_gather", 50);
  ledger.add("fsdp/0", "reduce_scatter", 7);
  CHECK(ledger.entry("fsdp/0", "all_gather").calls == 2);
  CHECK(ledger.entry("fsdp/0", "all_gather").bytes == 150);
  CHECK(ledger.entry("fsdp/1", "all_gather").calls == 0);
  CHECK(ledger.entries().size() == 2);
  CHECK(ledger.total_bytes() == 157);
  ledger.reset();
  CHECK(ledger.total_bytes() == 0);
}

TEST_CASE("the ledger may be used from several threads") {
  CommLedger ledger;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) ledger.add("g", "op", 1);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(ledger.entry("g", "op").calls == 4000);
}

}  // namespace hyperion::parallel
