#include "parallel/comm/communicator.h"

#include <numeric>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "parallel/job/phase.h"
#include "tests/distributed/trace_ranges.h"
#include "tests/support/comm_ledger.h"

namespace hyperion::parallel {
namespace {

// A group whose every operation breaks, at once or when waited for.
class BrokenCommunicator : public Communicator {
 public:
  explicit BrokenCommunicator(bool late) : Communicator("fsdp/1", 1, {4, 5}), late_(late) {}
  std::string_view backend() const override { return "broken"; }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  Finish broken() const {
    if (!late_) throw std::runtime_error("the cable is cut");
    return [] { TORCH_CHECK(false, "the cable is cut"); };
  }
  Finish do_all_gather(const std::vector<CollectivePart>&) override { return broken(); }
  Finish do_reduce_scatter_sum(const std::vector<CollectivePart>&) override { return broken(); }
  Finish do_all_reduce(const at::Tensor&, bool) override { return broken(); }
  Finish do_barrier() override { return broken(); }
  bool late_;
};

}  // namespace

TEST_CASE("a fake group gathers its input into every slot and leaves reductions as they are") {
  const auto group = make_fake_communicator("fsdp/0", 2, {0, 1, 2, 3});
  CHECK(group->size() == 4);
  CHECK(group->backend() == "fake");
  const at::Tensor in = at::arange(5, at::kFloat);
  at::Tensor out = at::zeros({4, 5});
  group->all_gather_into(out, in);
  for (int r = 0; r < 4; ++r) CHECK(out[r].equal(in));
  at::Tensor chunk = at::zeros({5}), full = at::arange(20, at::kFloat);
  group->start_reduce_scatter_sum(chunk, full).wait();
  CHECK(chunk.equal(full.narrow(0, 10, 5)));
  group->all_reduce_sum(full);
  CHECK(full.equal(at::arange(20, at::kFloat)));
  group->barrier();
  CHECK(group->gather("x").empty());  // it is not rank 0
  const std::string text(1000, 'x');
  CHECK(make_fake_communicator("fsdp/0", 0, {0, 1, 2})->gather(text) == std::vector<std::string>(3, text));
  CHECK(make_fake_communicator("fsdp/0", 0, {0, 1, 2})->broadcast(text) == text);
}

TEST_CASE("a fake group gathers tensors of any size and alignment and several at once") {
  std::vector<int> ranks(GENERATE(3, 200));  // few slots, and more than are copied at once
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto size = static_cast<int64_t>(ranks.size());
  const auto group = make_fake_communicator("fsdp/0", 1, ranks);
  for (int64_t count : {1, 2, 3, 7, 8, 16, 31, 4096}) {
    for (int64_t offset : {0, 1, 4, 16}) {
      CAPTURE(count, offset);
      const at::Tensor in = at::randint(0, 255, {offset + count}, at::kByte).narrow(0, offset, count);
      const at::Tensor other = at::randint(0, 255, {16}, at::kByte);
      const at::Tensor out = at::zeros({size, count}, at::kByte), all = at::zeros({size, 16}, at::kByte);
      group->start_all_gather_into({{out, in}, {all, other}}).wait();
      CHECK(out.equal(in.expand({size, count})));
      CHECK(all.equal(other.expand({size, 16})));
      all[1].fill_(7);
      group->all_gather_into(all, all[1]);  // its own slot
      CHECK(all.equal(at::full({size, 16}, 7, at::kByte)));
    }
  }
  CommLedger ledger;
  group->set_observer([&](const CommOperation& operation) {
    ledger.add(std::string(operation.group), std::string(operation.name), operation.sent_bytes);
  });
  group
      ->start_all_gather_into(
          {{at::zeros({size, 5}), at::zeros({5})}, {at::zeros({size, 2}), at::zeros({2})}})
      .wait();
  CHECK(ledger.entry("fsdp/0", "all_gather").calls == 1);
  CHECK(ledger.entry("fsdp/0", "all_gather").bytes == (size - 1) * 7 * 4);
  CHECK_THROWS_AS(group->start_all_gather_into({{at::zeros({3}), at::zeros({1})},
                                                {at::zeros({3}, at::kByte), at::zeros({1}, at::kByte)}}),
                  Error);
}

TEST_CASE("an observer is told group and dtype and sent bytes of every collective that moves something") {
  const auto group = make_fake_communicator("fsdp/0", 2, {0, 1, 2, 3});
  const at::Tensor chunk = at::zeros({5}), full = at::zeros({20}), small = at::zeros({7}, at::kBFloat16);
  group->all_reduce_sum(full);  // before anybody observes
  CommLedger ledger;
  std::vector<at::ScalarType> dtypes;
  group->set_observer([&](const CommOperation& operation) {
    ledger.add(std::string(operation.group), std::string(operation.name), operation.sent_bytes);
    dtypes.push_back(operation.dtype);
  });
  group->start_reduce_scatter_sum(chunk, full).wait();
  group->all_reduce_sum(full);
  group->all_gather_into(at::zeros({28}, at::kBFloat16), small);
  group->barrier();
  group->all_reduce_max(at::zeros({0}));
  CHECK(ledger.entry("fsdp/0", "reduce_scatter").bytes == 3 * 5 * 4);
  CHECK(ledger.entry("fsdp/0", "all_reduce").bytes == 2 * 80 * 3 / 4);
  CHECK(ledger.entry("fsdp/0", "all_gather").bytes == 3 * 7 * 2);
  CHECK(dtypes == std::vector<at::ScalarType>{at::kFloat, at::kFloat, at::kBFloat16});
}

TEST_CASE("a fake group opens a range for each collective that says what a real one would send") {
  const auto group = make_fake_communicator("tp/0", 0, {0, 1, 2, 3}),
             alone = make_solo_communicator("tp/0", 0);
  std::vector<std::string> ranges;
  const TraceRangeListener listener([&](const std::string& name) { ranges.push_back(name); });
  const at::Tensor chunk = at::zeros({5}), full = at::zeros({20});
  group->start_all_gather_into({{full, chunk}, {full.clone(), chunk}}).wait();
  group->start_reduce_scatter_sum({{chunk, full}, {chunk.clone(), full}}).wait();
  group->all_reduce_sum(full);
  group->start_transfers({{Transfer::Kind::kSend, chunk, 1}, {Transfer::Kind::kReceive, full, 3}}).wait();
  alone->all_gather_into(chunk, chunk);
  alone->all_reduce_sum(chunk);
  CHECK(ranges == std::vector<std::string>{"fake all_gather 120 bytes sent in tp/0 of 4 ranks",
                                           "fake reduce_scatter 120 bytes sent in tp/0 of 4 ranks",
                                           "fake all_reduce 120 bytes sent in tp/0 of 4 ranks",
                                           "fake transfers 20 bytes sent in tp/0 of 4 ranks"});
}

TEST_CASE("a fake group receives zeros and keeps its own block of an all-to-all") {
  const auto group = make_fake_communicator("ep/0", 1, {0, 1, 2});
  CommLedger ledger;
  group->set_observer([&](const CommOperation& operation) {
    ledger.add(std::string(operation.group), std::string(operation.name), operation.sent_bytes);
  });
  const at::Tensor in = at::arange(12, at::kFloat).view({6, 2}), out = at::full({4, 2}, 7.0);
  const std::vector<int64_t> in_rows = {0, 2, 4}, out_rows = {1, 2, 1};
  group->start_all_to_all(out, in, out_rows, in_rows).wait();
  CHECK(out.narrow(0, 1, 2).equal(in.narrow(0, 0, 2)));
  CHECK(out[0].equal(at::zeros({2})));
  CHECK(out[3].equal(at::zeros({2})));
  CHECK(ledger.entry("ep/0", "all_to_all").bytes == 4 * 2 * 4);
  // Two blocks for each rank, received in another order, with a row between them.
  const std::vector<RowBlock> in_blocks = {{0, 1}, {1, 0}, {1, 1}, {2, 1}, {3, 2}, {5, 1}},
                              out_blocks = {{0, 1}, {3, 1}, {4, 1}, {1, 1}, {6, 0}, {5, 1}};
  const at::Tensor apart = at::full({6, 2}, 7.0);
  group->start_block_exchange(apart, in, out_blocks, in_blocks).wait();
  const at::Tensor zeros = at::zeros({1, 2}), gap = at::full({1, 2}, 7.0);
  CHECK(apart.equal(at::cat({zeros, in.narrow(0, 2, 1), gap, zeros, in.narrow(0, 1, 1), zeros})));
  CHECK(ledger.entry("ep/0", "all_to_all").bytes == 4 * 2 * 4 + 4 * 2 * 4);
  const at::Tensor received = at::ones({5});
  group->start_transfers({{Transfer::Kind::kSend, in, 2}, {Transfer::Kind::kReceive, received, 0}}).wait();
  CHECK(received.equal(at::zeros({5})));
  CHECK(ledger.entry("ep/0", "send").bytes == 12 * 4);
  CHECK(ledger.entry("ep/0", "send").calls == 1);
}

TEST_CASE("all-to-alls and transfers that do not fit are refused before anything is sent") {
  const auto group = make_fake_communicator("ep/0", 1, {4, 5});
  using Rows = std::vector<int64_t>;
  const auto all_to_all = [&](at::IntArrayRef out, const Rows& out_rows, at::IntArrayRef in,
                              const Rows& in_rows) {
    return group->start_all_to_all(at::zeros(out), at::zeros(in), out_rows, in_rows);
  };
  all_to_all({3, 2}, {2, 1}, {1, 2}, {0, 1}).wait();
  CHECK_THROWS_AS(all_to_all({3, 2}, {2, 2}, {1, 2}, {0, 1}), Error);     // not the rows of out
  CHECK_THROWS_AS(all_to_all({3, 2}, {2, 1}, {1, 2}, {1, 0}), Error);     // the own block has two sizes
  CHECK_THROWS_AS(all_to_all({3, 2}, {2, 1}, {1, 3}, {0, 1}), Error);     // rows of two sizes
  CHECK_THROWS_AS(all_to_all({3, 2}, {2, 1, 0}, {1, 2}, {0, 1}), Error);  // of three ranks
  CHECK_THROWS_AS(all_to_all({1, 2}, {0, 1}, {1, 2}, {-1, 2}), Error);    // less than none
  const auto exchange = [&](const std::vector<RowBlock>& out, const std::vector<RowBlock>& in) {
    return group->start_block_exchange(at::zeros({3, 2}), at::zeros({2, 2}), out, in);
  };
  exchange({{0, 1}, {1, 0}, {2, 1}, {1, 1}}, {{0, 0}, {0, 1}, {1, 1}, {0, 1}}).wait();
  CHECK_THROWS_AS(exchange({{0, 4}, {0, 1}}, {{0, 1}, {1, 1}}), Error);          // behind the end
  CHECK_THROWS_AS(exchange({{-1, 1}, {0, 1}}, {{0, 1}, {1, 1}}), Error);         // before the first row
  CHECK_THROWS_AS(exchange({{0, 1}, {1, 1}}, {{0, 1}, {1, 1}, {0, 0}}), Error);  // not as many for each rank
  CHECK_THROWS_AS(exchange({}, {}), Error);
  for (const int peer : {-1, 1, 2})
    CHECK_THROWS_WITH(group->start_send(at::zeros({1}), peer),
                      Catch::Contains("group ep/0: rank 1 of 2 has no peer"));
  CHECK(group->start_transfers({}).done());
  BrokenCommunicator broken(false);
  CHECK_THROWS_WITH(broken.start_recv(at::zeros({1}), 0),
                    Catch::Contains("group fsdp/1: broken groups move nothing between two ranks"));
}

TEST_CASE("a group of one sends nothing and copies nothing in place") {
  const auto group = make_solo_communicator("fsdp/0", 3);
  int64_t sent = 0;
  group->set_observer([&](const CommOperation& operation) { sent += operation.sent_bytes; });
  CHECK(group->size() == 1);
  CHECK(group->rank() == 0);
  CHECK(group->global_ranks() == std::vector<int>{3});
  at::Tensor both = at::arange(6, at::kFloat), other = at::zeros({2, 3});
  CHECK(group->start_all_gather_into(both, both).done());
  group->all_gather_into(other, both);
  CHECK(other.view({-1}).equal(both));
  group->start_reduce_scatter_sum(other, at::ones({6})).wait();
  CHECK(other.sum().item<float>() == 6);
  const std::vector<int64_t> two = {2};
  group->start_all_to_all(other.view({2, 3}), both.view({2, 3}), two, two).wait();
  CHECK(other.view({-1}).equal(both));
  CHECK(sent == 0);
  CHECK(group->gather("me") == std::vector<std::string>{"me"});
  CHECK(group->broadcast("me") == "me");
}

TEST_CASE("a group that moves no text refuses one by name") {
  BrokenCommunicator group(false);
  CHECK_THROWS_WITH(group.gather("x"), Catch::Contains("group fsdp/1: broken groups move no text"));
  CHECK_THROWS_WITH(group.broadcast("x"), Catch::Contains("group fsdp/1: broken groups move no text"));
}

TEST_CASE("tensors that do not fit together are refused before anything is sent") {
  const auto group = make_fake_communicator("fsdp/0", 0, {0, 1});
  CHECK_THROWS_AS(group->all_gather_into(at::zeros({7}), at::zeros({3})), Error);
  CHECK_THROWS_AS(group->all_gather_into(at::zeros({6}), at::zeros({3}, at::kBFloat16)), Error);
  CHECK_THROWS_AS(group->start_reduce_scatter_sum(at::zeros({3}), at::zeros({7})), Error);
  CHECK_THROWS_AS(
      group->start_reduce_scatter_sum(
          {{at::zeros({3}), at::zeros({6})}, {at::zeros({3}, at::kBFloat16), at::zeros({6}, at::kBFloat16)}}),
      Error);
  CHECK_THROWS_AS(group->all_reduce_sum(at::zeros({4, 4}).t().narrow(0, 0, 2)), Error);
}

TEST_CASE("a failure names rank and group and operation and the phase in which it started") {
  for (bool late : {false, true}) {
    BrokenCommunicator group(late);
    group.set_post_mortem([](const std::string& operation, const std::string& phase) {
      return PostMortem{" [" + operation + "|" + phase + "]", {4}};
    });
    at::Tensor out = at::zeros({4}), in = at::zeros({2});
    try {
      Pending pending;
      {
        PhaseGuard phase("step 2 forward layers.1");
        pending = group.start_all_gather_into(out, in);
      }
      set_phase("elsewhere");
      const Pending later = group.start_all_gather_into(out, in);  // has the number 2
      pending.wait();
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kCommunication);
      CHECK(std::string(error.what()) ==
            "rank 5: all_gather (number 1 of group fsdp/1, ranks 4 5) failed in phase 'step 2 forward "
            "layers.1': the "
            "cable is cut [all_gather|step 2 forward layers.1]");
    }
    set_phase("");
  }
}

}  // namespace hyperion::parallel
