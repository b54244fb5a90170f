// All-to-alls, sends and receives through shared memory and Gloo.
#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "parallel/comm/process_group.h"
#include "tests/distributed/lost_rank.h"
#include "tests/support/comm_ledger.h"
#include "tests/support/ranks.h"

namespace hyperion::parallel {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The tensor parallel group of a job that is nothing else.
struct TensorRanks {
  TensorRanks(int ranks, const Environment& environment, bool shared_memory)
      : groups(Mesh({.dp_shard = 1, .tp = ranks}, ranks), environment, options(shared_memory)),
        group(groups.get(MeshDim::kTp)) {
    if (group.backend() != (shared_memory ? "shm" : "gloo") || group.name() != "tp/0")
      throw std::runtime_error("group " + group.name() + " on " + std::string(group.backend()));
  }
  static CommOptions options(bool shared_memory) {
    CommOptions options;
    options.shared_memory = shared_memory;
    return options;
  }
  ProcessGroups groups;
  Communicator& group;
};

// Different for every sender, receiver and place; exact in every dtype.
at::Tensor numbers(int from, int to, int64_t count, at::ScalarType dtype) {
  return at::arange(count, at::kLong).mul_(3).add_(from * 7 + to * 11).remainder_(61).to(dtype);
}

// Rows that rank `from` has for rank `to`, its own included: some none, and not the same both ways.
int64_t rows(int from, int to, int64_t scale) {
  return (from * 3 + to * 2) % 4 * scale;
}

int64_t wrong_in_all_to_all(Communicator& group, int64_t scale, at::ScalarType dtype) {
  constexpr int64_t kWidth = 5;
  std::vector<at::Tensor> in, wanted;
  std::vector<int64_t> in_rows, out_rows;
  for (int r = 0; r < group.size(); ++r) {
    in_rows.push_back(rows(group.rank(), r, scale));
    out_rows.push_back(rows(r, group.rank(), scale));
    in.push_back(numbers(group.rank(), r, in_rows.back() * kWidth, dtype));
    wanted.push_back(numbers(r, group.rank(), out_rows.back() * kWidth, dtype));
  }
  const at::Tensor expected = at::cat(wanted).view({-1, kWidth});
  const at::Tensor out = at::zeros_like(expected);
  group.start_all_to_all(out, at::cat(in).view({-1, kWidth}), out_rows, in_rows).wait();
  return out.ne(expected).sum().item<int64_t>();
}

// Block `part` of `from` for `to` is numbered as if each part had ranks of its own.
at::Tensor block_of(int from, int to, int part, int64_t scale, int64_t width) {
  return numbers(from + 5 * part, to, rows(from + part, to, scale) * width, at::kBFloat16);
}

// Three blocks for each rank, from places in another order than they are sent in, to places with gaps.
int64_t wrong_in_blocks(Communicator& group, int64_t scale) {
  constexpr int64_t kWidth = 5, kGap = 2;
  constexpr int kParts = 3;
  const int own = group.rank(), ranks = group.size();
  std::vector<RowBlock> in_blocks(static_cast<size_t>(ranks * kParts)), out_blocks(in_blocks);
  std::vector<at::Tensor> in, wanted;
  int64_t in_rows = 0, out_rows = 0;
  for (int part = 0; part < kParts; ++part) {
    for (int r = 0; r < ranks; ++r) {
      const auto block = static_cast<size_t>(r * kParts + part);
      in.push_back(block_of(own, r, part, scale, kWidth));
      wanted.push_back(block_of(r, own, part, scale, kWidth));
      in_blocks[block] = {in_rows, in.back().numel() / kWidth};
      out_blocks[block] = {out_rows, wanted.back().numel() / kWidth};
      in_rows += in_blocks[block].rows;
      out_rows += out_blocks[block].rows;
    }
    wanted.push_back(at::full({kGap * kWidth}, -1, at::kBFloat16));
    out_rows += kGap;
  }
  const at::Tensor out = at::full({out_rows, kWidth}, -1, at::kBFloat16);
  group.start_block_exchange(out, at::cat(in).view({-1, kWidth}), out_blocks, in_blocks).wait();
  return out.view({-1}).ne(at::cat(wanted)).sum().item<int64_t>();
}

}  // namespace

TEST_CASE("an all-to-all brings every row to its rank also where some have none") {
  const int ranks = GENERATE(2, 3, 4);
  const bool shared_memory = GENERATE(true, false);
  CAPTURE(ranks, shared_memory);
  const auto results = run_ranks(ranks, [&](const Environment& environment) {
    TensorRanks job(ranks, environment, shared_memory);
    int64_t wrong = 0;
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte})
      for (const int64_t scale : {int64_t{0}, int64_t{1}, int64_t{70'001}})  // up to 8 MiB for one rank
        wrong += wrong_in_all_to_all(job.group, dtype == at::kLong ? scale / 3 : scale, dtype);
    for (const int64_t scale : {int64_t{0}, int64_t{1}, int64_t{10'001}})
      wrong += wrong_in_blocks(job.group, scale);
    return wrong;
  });
  for (const int64_t wrong : results) CHECK(wrong == 0);
}

TEST_CASE("many transfers in flight arrive in order whatever is waited for first") {
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(3, [&](const Environment& environment) {
    TensorRanks job(3, environment, shared_memory);
    Communicator& group = job.group;
    const std::vector<int64_t> counts = {1, 0, 500'003, 7, 1'500'001, 64};  // up to 6 MB
    std::vector<at::Tensor> received, expected;
    std::vector<Pending> pending;
    at::Tensor sum = at::ones({300'000});
    const at::Tensor gathered = at::zeros({3, 1'000'000});
    for (size_t i = 0; i < counts.size(); ++i) {
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == group.rank()) continue;
        const int mark = static_cast<int>(i);
        pending.push_back(group.start_send(numbers(group.rank() + mark, peer, counts[i], at::kFloat), peer));
        received.push_back(at::zeros({counts[i]}));
        expected.push_back(numbers(peer + mark, group.rank(), counts[i], at::kFloat));
        pending.push_back(group.start_recv(received.back(), peer));
      }
      if (i == 2) pending.push_back(group.start_all_reduce_sum(sum));
      if (i == 3)
        pending.push_back(group.start_all_gather_into(gathered, at::full({1'000'000}, 1.0 * group.rank())));
    }
    for (size_t i = pending.size(); i-- > 0;) pending[i].wait();
    int64_t wrong = sum.ne(3).sum().item<int64_t>();
    for (int r = 0; r < 3; ++r) wrong += gathered[r].ne(r).sum().item<int64_t>();
    for (size_t i = 0; i < received.size(); ++i) wrong += received[i].ne(expected[i]).sum().item<int64_t>();
    return wrong;
  });
  for (const int64_t wrong : results) CHECK(wrong == 0);
}

// Each waits for something that the other can only do when this one goes on with something else.
TEST_CASE("a rank that waits for one operation goes on with the others that it has started") {
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(2, [&](const Environment& environment) {
    TensorRanks job(2, environment, shared_memory);
    Communicator& group = job.group;
    const bool first = group.rank() == 0;
    const at::Tensor large = at::full({2 * kMiB}, 5.0), received = at::zeros({2 * kMiB});  // 8 MiB
    at::Tensor sum = at::ones({10});
    if (first) {
      Pending send = group.start_send(large, 1);
      group.all_reduce_sum(sum);
      send.wait();
    } else {
      group.start_recv(received, 0).wait();
      group.all_reduce_sum(sum);
    }
    // More than the ring of shared memory holds.
    const at::Tensor all = at::zeros({2, 10 * kMiB}), own = at::full({10 * kMiB}, 1.0 + group.rank());
    Pending gather = group.start_all_gather_into(all, own);
    if (first) {
      group.start_recv(received, 1).wait();
      gather.wait();
    } else {
      gather.wait();
      group.start_send(large, 0).wait();
    }
    return (received - 5).abs().sum().item<double>() + (all[0] - 1).abs().sum().item<double>() +
           (all[1] - 2).abs().sum().item<double>() + (sum - 2).abs().sum().item<double>();
  });
  for (const double wrong : results) CHECK(wrong == 0);
}

TEST_CASE("ranks that both send first and receive then come through in one call and small ones in any") {
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(2, [&](const Environment& environment) {
    TensorRanks job(2, environment, shared_memory);
    Communicator& group = job.group;
    const int peer = 1 - group.rank();
    const at::Tensor own = at::full({4 * kMiB}, 1.0 + group.rank()), other = at::zeros({4 * kMiB});  // 16 MiB
    group.start_transfers({{Transfer::Kind::kSend, own, peer}, {Transfer::Kind::kReceive, other, peer}})
        .wait();
    double wrong = (other - 1 - peer).abs().sum().item<double>();
    other.zero_();
    Pending send = group.start_send(own, peer);
    group.start_recv(other, peer).wait();
    send.wait();
    wrong += (other - 1 - peer).abs().sum().item<double>();
    if (shared_memory) {  // a mailbox holds 2 MiB
      const int64_t fits = kMiB / 2;
      other.zero_();
      group.start_send(own.narrow(0, 0, fits), peer).wait();
      group.start_recv(other.narrow(0, 0, fits), peer).wait();
      wrong += (other.narrow(0, 0, fits) - 1 - peer).abs().sum().item<double>();
    }
    return wrong;
  });
  for (const double wrong : results) CHECK(wrong == 0);
}

TEST_CASE("the ledger counts what leaves a rank by sends and all-to-alls") {
  struct Sent {
    int64_t send, sends, all_to_all, total;
  };
  const auto results = run_ranks(2, [](const Environment& environment) {
    TensorRanks job(2, environment, true);
    CommLedger ledger;
    job.groups.set_observer([&](const CommOperation& operation) {
      ledger.add(std::string(operation.group), std::string(operation.name), operation.sent_bytes);
    });
    Communicator& group = job.group;
    const at::Tensor tensor = at::ones({100}, at::kBFloat16);
    group.rank() == 0 ? group.start_send(tensor, 1).wait() : group.start_recv(tensor, 0).wait();
    // Rank 0 keeps one row, sends two and gets three; rank 1 keeps four.
    const std::vector<int64_t> in =
        group.rank() == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{3, 4};
    const std::vector<int64_t> out =
        group.rank() == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{2, 4};
    group.start_all_to_all(at::empty({out[0] + out[1], 10}), at::ones({in[0] + in[1], 10}), out, in).wait();
    return Sent{ledger.entry("tp/0", "send").bytes, ledger.entry("tp/0", "send").calls,
                ledger.entry("tp/0", "all_to_all").bytes, ledger.total_bytes()};
  });
  CHECK(results[0].send == 200);
  CHECK(results[0].sends == 1);
  CHECK(results[0].all_to_all == 2 * 10 * 4);
  CHECK(results[0].total == 280);
  CHECK(results[1].sends == 0);
  CHECK(results[1].total == 3 * 10 * 4);
}

TEST_CASE("a message that does not fit is reported also where another rank is lost") {
  const bool shared_memory = GENERATE(true, false);
  const auto outcomes = run_ranks_outcome(3, [&](const Environment& environment) {
    const int own = environment.rank;
    TensorRanks ranks(3, environment, shared_memory);
    ranks.group.all_reduce_sum(at::ones({1}));
    kill_when_others_are_here(environment, 2);
    wait_for_end_of(2);
    if (own == 1) return ranks.group.start_recv(at::empty({9}), 0).wait();
    Pending sent = ranks.group.start_send(at::ones({10}), 1);
    wait_for_end_of(1);
    sent.wait();
  });
  const std::string& error = outcomes[1].error;
  CAPTURE(error);
  CHECK(outcomes[1].exit_code == static_cast<int>(ExitCode::kCommunication));
  CHECK(error.ends_with(
      "rank 0: its next message is 40 bytes of Float in a send, and this rank expects 36 bytes "
      "of Float in a send; rank 2 is lost: see its log first"));
}

}  // namespace hyperion::parallel
