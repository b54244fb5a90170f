// What layers of several ranks exchange over NCCL: on simulated GPUs under every schedule of their streams.
#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/device/device_library.h"
#include "models/layers/chunked_exchange.h"
#include "parallel/comm/process_group.h"
#include "parallel/comm/streamed_exchange.h"
#include "parallel/fsdp/replica_audit.h"
#include "parallel/job/failure_record.h"
#include "parallel/job/phase.h"
#include "tests/distributed/lost_rank.h"
#include "tests/gpu/gpu.h"
#include "tests/support/exact_nodes.h"

namespace hyperion {
namespace {

using parallel::Communicator;
using parallel::MeshDim;
using std::chrono::seconds;

std::vector<std::string> schedules() {
  return simulated() ? std::vector<std::string>{"eager", "late", "1"} : std::vector<std::string>{"1"};
}

// The groups of a rank on its own GPU.
struct GpuRank {
  GpuRank(const parallel::MeshConfig& mesh, const parallel::Environment& environment) {
    use_gpu(environment.rank);
    parallel::set_own_rank(environment);
    parallel::CommOptions options;
    options.backend = parallel::CommBackend::kNccl;
    options.device_index = environment.rank;
    options.init_timeout = seconds(120);
    groups.emplace(parallel::Mesh(mesh, environment.world_size), environment, options);
  }
  std::optional<parallel::ProcessGroups> groups;
};

at::Tensor numbers(int from, int to, int64_t count) {
  return at::arange(count).mul_(3).add_(from * 7 + to * 11).remainder_(61).to(at::kFloat).to(at::kCUDA);
}

double differences(const at::Tensor& a, const at::Tensor& b) {
  return a.ne(b).sum().item<double>();
}

}  // namespace

TEST_CASE("all-to-alls and transfers over NCCL bring everything to its rank whatever the streams do") {
  if (gpus(4) < 4) return;
  for (const std::string& schedule : schedules()) {
    CAPTURE(schedule);
    ::setenv("HYPERION_SIMULATED_SCHEDULE", schedule.c_str(), 1);
    const auto wrong = run_ranks(
        4,
        [](const parallel::Environment& environment) {
          GpuRank job({.dp_shard = 1, .tp = 4}, environment);
          Communicator& group = job.groups->get(MeshDim::kTp);
          const int own = group.rank(), next = (own + 1) % 4, before = (own + 3) % 4;
          double wrong = 0;
          for (const int64_t scale : {1, 40'001}) {
            std::vector<at::Tensor> in, expected;
            std::vector<int64_t> in_rows, out_rows;
            for (int r = 0; r < 4; ++r) {
              in_rows.push_back((own * 3 + r * 2) % 4 * scale);
              out_rows.push_back((r * 3 + own * 2) % 4 * scale);
              in.push_back(numbers(own, r, in_rows.back() * 3));
              expected.push_back(numbers(r, own, out_rows.back() * 3));
            }
            const at::Tensor wanted = at::cat(expected).view({-1, 3}), out = at::zeros_like(wanted);
            at::Tensor sum = at::ones({1000}, at::kCUDA);
            Pending exchange = group.start_all_to_all(out, at::cat(in).view({-1, 3}), out_rows, in_rows);
            group.all_reduce_sum(sum);
            exchange.wait();
            wrong += differences(out, wanted) + differences(sum, at::full_like(sum, 4));
            // The halves of each block of rows, all first halves before the others, and a gap behind each.
            std::vector<RowBlock> in_blocks, out_blocks;
            std::vector<at::Tensor> placed;
            int64_t in_first = 0, out_first = 0, gap = out.size(0);
            for (int r = 0; r < 4; ++r) {
              const int64_t in_half = in_rows[r] / 2, out_half = out_rows[r] / 2;
              in_blocks.insert(in_blocks.end(),
                               {{in_first, in_half}, {in_first + in_half, in_rows[r] - in_half}});
              out_blocks.insert(out_blocks.end(), {{out_first, out_half}, {gap, out_rows[r] - out_half}});
              in_first += in_rows[r];
              out_first += out_half;
              gap += out_rows[r] - out_half + 1;
            }
            const at::Tensor apart = at::full({gap, 3}, -1.0, out.options());
            Pending blocks =
                group.start_block_exchange(apart, at::cat(in).view({-1, 3}), out_blocks, in_blocks);
            group.all_reduce_sum(sum);
            blocks.wait();
            for (const auto& [first, rows] : out_blocks) placed.push_back(apart.narrow(0, first, rows));
            wrong += differences(at::cat(placed), wanted) + differences(sum, at::full_like(sum, 16));
            wrong += static_cast<double>((apart.eq(-1).all(1).sum() != gap - wanted.size(0)).item<bool>());
          }
          // A ring: what was received is sent on, three times.
          at::Tensor held = numbers(own, own, 500'003);
          for (int i = 0; i < 3; ++i) {
            const at::Tensor received = at::empty_like(held);
            group
                .start_transfers(
                    {{Transfer::Kind::kSend, held, next}, {Transfer::Kind::kReceive, received, before}})
                .wait();
            held = received;
          }
          wrong += differences(held, numbers(next, next, 500'003));
          // Two messages between the same ranks, in their order, and one alone.
          if (own < 2) {
            const int peer = 1 - own;
            const at::Tensor first = at::zeros({70'000}, at::kCUDA), second = at::zeros({3}, at::kCUDA);
            group
                .start_transfers({{Transfer::Kind::kSend, numbers(own, 8, 70'000), peer},
                                  {Transfer::Kind::kSend, numbers(own, 9, 3), peer},
                                  {Transfer::Kind::kReceive, first, peer},
                                  {Transfer::Kind::kReceive, second, peer}})
                .wait();
            wrong += differences(first, numbers(peer, 8, 70'000)) + differences(second, numbers(peer, 9, 3));
          }
          const at::Tensor last = at::zeros({100}, at::kCUDA);
          if (own == 2) group.start_send(numbers(2, 3, 100), 3).wait();
          if (own == 3) {
            group.start_recv(last, 2).wait();
            wrong += differences(last, numbers(2, 3, 100));
          }
          return wrong;
        },
        kGpuTimeout);
    for (const double of_rank : wrong) CHECK(of_rank == 0);
  }
}

TEST_CASE("simulated NCCL stops ranks whose sends and receives do not go together and says which") {
  if (!simulated()) return static_cast<void>(std::printf("skipped: a real NCCL hangs\n"));
  if (gpus(2) < 2) return;
  using Call = std::function<void(Communicator&)>;
  struct Case {
    Call of_rank_0, of_rank_1;
    std::vector<std::string> said;
  };
  const auto send = [](int64_t count, int to) -> Call {
    return [count, to](Communicator& group) { group.start_send(at::ones({count}, at::kCUDA), to).wait(); };
  };
  const auto receive = [](int64_t count, int from) -> Call {
    return
        [count, from](Communicator& group) { group.start_recv(at::ones({count}, at::kCUDA), from).wait(); };
  };
  const Call sum = [](Communicator& group) { group.all_reduce_sum(at::ones({8}, at::kCUDA)); };
  for (const auto& [of_rank_0, of_rank_1, said] : std::vector<Case>{
           {send(8, 1),
            receive(9, 0),
            {"rank 1 receive of 9 x Float from rank 0, rank 0 send of 8 x Float to rank 1"}},
           {send(8, 1), sum, {"rank 0 send of 8 x Float to rank 1, rank 1 all reduce of 8 x Float (sum)"}},
           {receive(8, 1),
            sum,
            {"rank 0 receive of 8 x Float from rank 1, rank 1 all reduce of 8 x Float (sum)"}},
           {send(8, 1), send(8, 0), {"send of 8 x Float to rank", "send to rank"}},
           {receive(8, 1), receive(8, 0), {"receive of 8 x Float from rank", "receive from rank"}}}) {
    const auto outcomes = run_ranks_outcome(
        2,
        [&](const parallel::Environment& environment) {
          GpuRank job({.dp_shard = 1, .tp = 2}, environment);
          Communicator& group = job.groups->get(MeshDim::kTp);
          const at::Tensor ones = at::ones({8}, at::kCUDA);
          group.all_reduce_sum(ones);
          environment.rank == 0 ? group.start_send(ones, 1).wait() : group.start_recv(ones, 0).wait();
          (environment.rank == 0 ? of_rank_0 : of_rank_1)(group);
          ones.cpu();
          std::this_thread::sleep_for(seconds(60));
        },
        kGpuTimeout);
    for (const RankOutcome& outcome : outcomes) {
      CAPTURE(outcome.error, outcome.output);
      CHECK(outcome.exit_code == 99);
      CHECK(outcome.output.find("ranks make different calls: ") != std::string::npos);
      for (const std::string& text : said) {
        CAPTURE(text);
        CHECK(outcome.output.find(text) != std::string::npos);
      }
    }
  }
}

// A product under each exchange, which are on a stream of their own; memory is freed and taken again all the
// time.
TEST_CASE("exchanges on a stream of their own give the bits of those that are waited for at once") {
  if (gpus(4) < 4) return;
  const auto run = [&](bool streamed) {
    return run_ranks(
        4,
        [streamed](const parallel::Environment& environment) {
          GpuRank job({.dp_shard = 2, .tp = 2}, environment);
          Communicator& group = job.groups->get(MeshDim::kTp);
          at::Tensor x = numbers(environment.rank, 0, 64 * 48).view({64, 48}).div_(61);
          std::optional<parallel::StreamedExchange> own_stream;
          if (streamed) own_stream.emplace(group, x.device());
          Exchange& exchange = streamed ? static_cast<Exchange&>(*own_stream) : group;
          const at::Tensor w = numbers(1, 2, 48 * 48).view({48, 48}).div_(61 * 24);
          for (int i = 0; i < 12; ++i) {
            at::Tensor all = at::empty({128, 48}, x.options());
            Pending gather = exchange.start_all_gather_into(all, x);
            const at::Tensor local = x.mm(w);  // under the gather
            gather.wait();
            const at::Tensor products = all.mm(w);
            at::Tensor sums = at::empty({64, 48}, x.options());
            Pending scatter = exchange.start_reduce_scatter_sum(sums, products);
            // Rank 0 keeps 20 of its rows and sends 44, rank 1 sends 24 and keeps 40.
            const bool first = group.rank() == 0;
            const std::vector<int64_t> in_rows =
                first ? std::vector<int64_t>{20, 44} : std::vector<int64_t>{24, 40};
            const std::vector<int64_t> out_rows =
                first ? std::vector<int64_t>{20, 24} : std::vector<int64_t>{44, 40};
            at::Tensor moved = at::empty({out_rows[0] + out_rows[1], 48}, x.options());
            Pending shuffle = exchange.start_all_to_all(moved, local, out_rows, in_rows);
            at::Tensor largest = products.abs().amax(0);
            Pending maximum = exchange.start_all_reduce_max(largest);
            // A gather of the other communicator at the same time, as FSDP's.
            at::Tensor weights = at::empty({2, 1000}, x.options());
            job.groups->get(MeshDim::kFsdp).all_gather_into(weights, numbers(environment.rank, i, 1000));
            scatter.wait();
            maximum.wait();
            shuffle.wait();
            const at::Tensor little = weights.mean().add(moved.mean()).mul(1e-3);
            x = sums.div(largest.add(1)).add(local, 0.5).add(little).tanh();
          }
          return parallel::hash_of_bits(x).item<int64_t>();
        },
        kGpuTimeout);
  };
  const auto wanted = run(false);
  for (const std::string& schedule : schedules()) {
    CAPTURE(schedule);
    ::setenv("HYPERION_SIMULATED_SCHEDULE", schedule.c_str(), 1);
    CHECK(run(true) == wanted);
  }
}

TEST_CASE("products in pieces on GPUs give the same bits whatever the streams do") {
  if (gpus(4) < 4) return;
  std::vector<std::vector<int64_t>> found;
  for (const std::string& schedule : schedules()) {
    ::setenv("HYPERION_SIMULATED_SCHEDULE", schedule.c_str(), 1);
    found.push_back(run_ranks(
        4,
        [](const parallel::Environment& environment) {
          GpuRank job({.dp_shard = 1, .tp = 4}, environment);
          parallel::StreamedExchange exchange(job.groups->get(MeshDim::kTp),
                                              at::Device(at::kCUDA, environment.rank));
          at::Tensor x = numbers(environment.rank, 0, 64 * 48).view({64, 48}).div_(61);
          const at::Tensor w = numbers(1, 2, 48 * 48).view({48, 48}).div_(61 * 24);
          for (int i = 0; i < 6; ++i) {
            std::vector<at::Tensor> products(4);
            const at::Tensor all = at::empty({4, 64, 48}, x.options());
            models::gather_chunks(all, x, exchange,
                                  [&](int r) { products[static_cast<size_t>(r)] = all[r].mm(w); });
            x = models::scatter_chunks(exchange, [&](int r) {
                  return products[static_cast<size_t>(r)].mm(w).add_(environment.rank);
                }).tanh();
          }
          return parallel::hash_of_bits(x).item<int64_t>();
        },
        kGpuTimeout));
  }
  for (const auto& of_schedule : found) CHECK(of_schedule == found.front());
}

TEST_CASE("nodes in pieces on GPUs have the bits of nodes that gather before and sum after") {
  const int ranks = GENERATE(2, 4);
  if (gpus(ranks) < ranks) return;
  for (const std::string& schedule : schedules())
    for (const bool packed : {true, false}) {
      CAPTURE(ranks, schedule, packed);
      ::setenv("HYPERION_SIMULATED_SCHEDULE", schedule.c_str(), 1);
      const auto differing = run_ranks(
          ranks,
          [&](const parallel::Environment& environment) {
            GpuRank job({.dp_shard = 1, .tp = ranks}, environment);
            const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(environment.rank));
            parallel::StreamedExchange exchange(job.groups->get(MeshDim::kTp), device);
            models::ExactNodes nodes{.packed = packed, .dtype = at::kBFloat16, .device = device};
            const std::vector<at::Tensor> pieces = nodes.run(exchange);
            nodes.chunked = false;
            const std::vector<at::Tensor> one = nodes.run(exchange);
            int64_t count = 0;
            for (size_t i = 0; i < one.size(); ++i) count += one[i].equal(pieces[i]) ? 0 : 1;
            return count;
          },
          kGpuTimeout);
      for (const int64_t count : differing) CHECK(count == 0);
    }
}

TEST_CASE("the audit of replicas on GPUs finds one flipped bit and names it") {
  if (gpus(4) < 4) return;
  for (const std::string& schedule : schedules()) {
    CAPTURE(schedule);
    ::setenv("HYPERION_SIMULATED_SCHEDULE", schedule.c_str(), 1);
    const auto outcomes = run_ranks_outcome(
        4,
        [](const parallel::Environment& environment) {
          GpuRank job({.dp_replicate = 2, .dp_shard = 1, .tp = 2}, environment);
          Communicator *const tp = &job.groups->get(MeshDim::kTp), *const replicas = &job.groups->get(
                                                                       MeshDim::kDpReplicate);
          const at::Tensor norm = numbers(1, 2, 10'001), offloaded = numbers(1, 2, 100).cpu();
          const at::Tensor matrix = numbers(environment.rank % 2, 0, 999).to(at::kBFloat16);
          const std::vector<parallel::ReplicatedTensor> tensors = {{"q_norm", norm.clone(), {tp, replicas}},
                                                                   {"norm", norm, {tp}},
                                                                   {"wq", matrix, {replicas}},
                                                                   {"offloaded", offloaded, {tp}}};
          parallel::audit_replicas(tensors);
          if (environment.rank == 3) norm.view(at::kInt)[9'000].bitwise_xor_(1);
          parallel::audit_replicas(tensors);
        },
        kGpuTimeout);
    for (const int rank : {0, 1, 2, 3}) {
      CAPTURE(rank, outcomes[rank].error, outcomes[rank].output);
      if (rank < 2) continue;  // their tensor parallel group has equal bits
      CHECK(outcomes[rank].exit_code == static_cast<int>(ExitCode::kBug));
      CHECK(outcomes[rank].error.find("over group tp/1 (ranks 2 3) 1 tensor with different bits") !=
            std::string::npos);
      CHECK(outcomes[rank].error.find("norm: rank 3 differs") != std::string::npos);
    }
  }
}

TEST_CASE("a rank killed inside an operation of the tensor parallel group over NCCL is named by the others") {
  if (gpus(3) < 3) return;
  using Start = std::function<Pending(Communicator&, const at::Tensor&)>;
  const std::vector<std::pair<std::string, Start>> cases = {
      {"all_gather, number 2",
       [](Communicator& g, const at::Tensor& x) {
         return g.start_all_gather_into(x.expand({3, 8}).contiguous(), x);
       }},
      {"reduce_scatter, number 2",
       [](Communicator& g, const at::Tensor& x) {
         return g.start_reduce_scatter_sum(x, x.expand({3, 8}).contiguous().view({-1}));
       }},
      {"all_to_all, number 2",
       [](Communicator& g, const at::Tensor& x) {
         const std::vector<int64_t> rows = {2, 2, 2};
         return g.start_all_to_all(at::empty({6}, x.options()), at::ones({6}, x.options()), rows, rows);
       }},
      {"recv from rank 2, number 1",
       [](Communicator& g, const at::Tensor& x) { return g.start_recv(x, 2); }}};
  for (const std::string& schedule : schedules()) {
    ::setenv("HYPERION_SIMULATED_SCHEDULE", schedule.c_str(), 1);
    for (const auto& [operation, start] : cases) {
      if (schedule != "late" && operation != cases[0].first) continue;
      const auto outcomes = run_ranks_outcome(
          3,
          [&, start = start](const parallel::Environment& environment) {
            GpuRank job({.dp_shard = 1, .tp = 3}, environment);
            Communicator& group = job.groups->get(MeshDim::kTp);
            const at::Tensor x = at::ones({8}, at::kCUDA);
            group.all_reduce_sum(x);
            x.cpu();
            const parallel::PhaseGuard phase("step 3 backward layers.1");
            kill_when_others_are_here(environment, 2);
            start(group, x).wait();
            x.cpu();
            std::this_thread::sleep_for(seconds(120));  // where nothing came to wait
          },
          kGpuTimeout);
      for (const int rank : {0, 1}) {
        CAPTURE(schedule, operation, outcomes[rank].error, outcomes[rank].output);
        CHECK(outcomes[rank].exit_code == static_cast<int>(ExitCode::kCommunication));
        for (const std::string& text :
             {std::string("rank 2 has ended"), std::string("in phase 'step 3 backward layers.1'"),
              "the operation started last: " + operation + " of group tp/0"}) {
          CAPTURE(text);
          CHECK(outcomes[rank].output.find(text) != std::string::npos);
        }
      }
    }
  }
}

TEST_CASE("a GPU without room for the tensor parallel communicator is said at the start") {
  if (!simulated()) return static_cast<void>(std::printf("skipped: a real GPU has room\n"));
  if (gpus(4) < 4) return;
  ::setenv("HYPERION_SIMULATED_MEMORY", std::to_string(400 << 20).c_str(), 1);
  const auto outcomes = run_ranks_outcome(
      4, [](const parallel::Environment& environment) { GpuRank({.dp_shard = 2, .tp = 2}, environment); },
      kGpuTimeout);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const RankOutcome& outcome = outcomes[rank];
    CAPTURE(rank, outcome.error, outcome.output);
    // The store ends with rank 0: a rank that comes later finds it gone.
    const bool late = rank > 0 && outcome.exit_code == static_cast<int>(ExitCode::kCommunication);
    CHECK((late || outcome.exit_code == static_cast<int>(ExitCode::kResources)));
    CHECK(outcome.error.find(late ? "could not connect group tp/"
                                  : "ran out while NCCL connected group tp/") != std::string::npos);
  }
}

TEST_CASE("sums over all ranks on GPUs go through the sharding, replica and tensor parallel groups") {
  if (gpus(4) < 4) return;
  for (const parallel::MeshConfig& mesh : {parallel::MeshConfig{.dp_shard = 2, .tp = 2},
                                           parallel::MeshConfig{.dp_replicate = 2, .dp_shard = 1, .tp = 2},
                                           parallel::MeshConfig{.dp_shard = 1, .tp = 4},
                                           parallel::MeshConfig{.dp_replicate = 2, .dp_shard = 2}}) {
    const auto sums = run_ranks(
        4,
        [&](const parallel::Environment& environment) {
          GpuRank job(mesh, environment);
          const at::Tensor all = at::full({1}, 1 << environment.rank, at::kCUDA), data = all.clone();
          job.groups->all_ranks().all_reduce_sum(all);
          job.groups->loss_groups().all_reduce_sum(data);
          return std::vector<int64_t>{all.item<int64_t>(), data.item<int64_t>()};
        },
        kGpuTimeout);
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(sums[rank][0] == 15);
      // Ranks of one batch, which differ in their tensor parallel coordinate, count once.
      const int64_t data = mesh.tp == 1 ? 15 : mesh.tp == 2 ? (rank % 2 == 0 ? 5 : 10) : 1 << rank;
      CHECK(sums[rank][1] == data);
    }
  }
}

}  // namespace hyperion
