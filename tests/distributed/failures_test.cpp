// What the surviving ranks say when a rank is dead, stopped, late, missing or different.
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <thread>

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/durable.h"
#include "base/error.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/nccl_job.h"
#include "parallel/comm/process_group.h"
#include "parallel/health/failure_detector.h"
#include "parallel/job/failure_record.h"
#include "parallel/job/phase.h"
#include "parallel/job/rendezvous.h"
#include "parallel/job/sockets.h"
#include "tests/distributed/lost_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/reserved_port.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kCommunication = static_cast<int>(ExitCode::kCommunication);
constexpr int kUsage = static_cast<int>(ExitCode::kUsage);

void check_mentions(const RankOutcome& outcome, const std::vector<std::string>& parts) {
  CAPTURE(outcome.error, outcome.output);
  for (const auto& part : parts) {
    CAPTURE(part);
    CHECK(outcome.error.find(part) != std::string::npos);
  }
}

// The store of the rendezvous outlives rank 0's part in it, as where torchrun holds it: no rank is late for
// it or for what it says in the end.
class HeldStore {
 public:
  // In every rank of the run, before it joins.
  explicit HeldStore(Environment& environment) {
    if (environment.rank != 0) return;
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(environment.master_port);
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = environment.master_listen_fd;
    store_ = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
    environment.agent_store = true;
  }
  ~HeldStore() {
    if (store_) wait_for_end_of_others();
  }
  HeldStore(const HeldStore&) = delete;
  HeldStore& operator=(const HeldStore&) = delete;

  // On rank 0: returns when these have joined.
  void wait_for_joined(const std::vector<int>& ranks) {
    if (!store_) return;
    for (const int rank : ranks) store_->wait({fmt::format("hyperion/0/joined/{}", rank)}, kPatience);
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

// A store's client beside that of the rank's job.
c10::intrusive_ptr<c10d::Store> client_store(const Environment& environment) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::PrefixStore>(
      "hyperion/0", c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options));
}

}  // namespace

TEST_CASE("a timeout names rank and group and operation and phase") {
  const bool shared_memory = GENERATE(true, false);
  const auto outcomes = run_ranks_outcome(3, [&](const Environment& environment) {
    CommOptions options;
    options.shared_memory = shared_memory;
    options.response_timeout = seconds(5);
    ProcessGroups groups(Mesh({}, 3), environment, options);
    groups.set_timeout(milliseconds(700));
    PhaseGuard phase("step 17 backward layers.3");
    at::Tensor out = at::empty({10}), in = at::ones({30});
    if (environment.rank == 1) return wait_for_end_of_others();
    groups.get(MeshDim::kFsdp).start_reduce_scatter_sum(out, in).wait();
  });
  for (int rank : {0, 2}) {
    CHECK(outcomes[rank].exit_code == kCommunication);
    check_mentions(outcomes[rank], {"rank " + std::to_string(rank) + ":", "reduce_scatter", "group fsdp/0",
                                    "ranks 0 1 2", "phase 'step 17 backward layers.3'"});
    check_silent(outcomes, rank, 1);
  }
}

TEST_CASE("a rank killed inside a collective is found by its peers at once") {
  const bool shared_memory = GENERATE(true, false);
  const auto outcomes = run_ranks_outcome(3, [&](const Environment& environment) {
    const CommOptions options{.shared_memory = shared_memory};
    ProcessGroups groups(Mesh({}, 3), environment, options);
    Communicator& group = groups.get(MeshDim::kFsdp);
    at::Tensor out = at::empty({3, 1000}), in = at::ones({1000});
    group.all_gather_into(out, in);
    PhaseGuard phase("step 3 forward layers.0");
    kill_when_others_are_here(environment, 2);
    group.all_gather_into(out, in);
  });
  CHECK(outcomes[2].exit_code == 128 + SIGKILL);
  for (int rank : {0, 1}) {
    CHECK(outcomes[rank].exit_code == kCommunication);
    check_mentions(outcomes[rank], {"all_gather", "fsdp/0", "step 3 forward layers.0"});
    check_lost(outcomes, rank, 2);
  }
}

TEST_CASE("a rank killed inside an operation of the tensor parallel group is named by the others with it") {
  const bool shared_memory = GENERATE(true, false);
  using Start = std::function<Pending(Communicator&)>;
  for (const auto& [operation, start] : std::vector<std::pair<std::string, Start>>{
           {"all_gather",
            [](Communicator& g) { return g.start_all_gather_into(at::empty({30}), at::ones({10})); }},
           {"reduce_scatter",
            [](Communicator& g) { return g.start_reduce_scatter_sum(at::empty({10}), at::ones({30})); }},
           {"all_reduce", [](Communicator& g) { return g.start_all_reduce_max(at::ones({10})); }},
           {"all_to_all",
            [](Communicator& g) {
              const std::vector<int64_t> rows = {1, 1, 1};
              return g.start_all_to_all(at::empty({3, 10}), at::ones({3, 10}), rows, rows);
            }},
           {"recv from rank 2", [](Communicator& g) { return g.start_recv(at::empty({10}), 2); }},
           {"send to rank 2", [](Communicator& g) { return g.start_send(at::empty({2 << 20}), 2); }}}) {
    const auto outcomes = run_ranks_outcome(3, [&](const Environment& environment) {
      const CommOptions options{.shared_memory = shared_memory};
      ProcessGroups groups(Mesh({.dp_shard = 1, .tp = 3}, 3), environment, options);
      Communicator& group = groups.get(MeshDim::kTp);
      group.all_reduce_sum(at::ones({1}));
      PhaseGuard phase("step 3 backward layers.1");
      kill_when_others_are_here(environment, 2);
      start(group).wait();
    });
    for (int rank : {0, 1}) {
      CAPTURE(operation);
      CHECK(outcomes[rank].exit_code == kCommunication);
      check_mentions(outcomes[rank], {"rank " + std::to_string(rank) + ": " + operation + " (number ",
                                      "of group tp/0, ranks 0 1 2", "phase 'step 3 backward layers.1'"});
      check_lost(outcomes, rank, 2);
    }
  }
}

TEST_CASE("ranks that wait for one another name the lost one alone and so does a rank that comes later") {
  const bool shared_memory = GENERATE(true, false);
  const auto outcomes = run_ranks_outcome(4, [&](const Environment& environment) {
    const int own = environment.rank;
    const CommOptions options{.shared_memory = shared_memory};
    ProcessGroups groups(Mesh({.dp_shard = 1, .tp = 4}, 4), environment, options);
    Communicator& group = groups.get(MeshDim::kTp);
    group.all_reduce_sum(at::ones({1}));
    PhaseGuard phase("step 3");
    kill_when_others_are_here(environment, 3);
    if (own == 0) {  // it computes for longer than the others wait for an answer
      wait_for_end_of(1);
      wait_for_end_of(2);
    }
    group.start_recv(at::empty({10}), own + 1).wait();
  });
  CHECK(outcomes[3].exit_code == 128 + SIGKILL);
  for (int rank : {0, 1, 2}) {
    CHECK(outcomes[rank].exit_code == kCommunication);
    check_mentions(outcomes[rank], {"recv from rank " + std::to_string(rank + 1), "phase 'step 3'"});
    check_lost(outcomes, rank, 3);
  }
}

TEST_CASE("a rank that stands still for less than the response timeout is not called lost") {
  const bool shared_memory = GENERATE(true, false);
  const test::TemporaryFolder records;
  const auto outcomes = run_ranks_outcome(3, [&](const Environment& environment) {
    ::setenv("HYPERION_FAILURE_DIR", records.path().c_str(), 1);
    set_own_rank(environment);
    CommOptions options;
    options.shared_memory = shared_memory;
    options.response_timeout = seconds(15);  // half as long again rank 0 holds the store
    ProcessGroups groups(Mesh({}, 3), environment, options);
    groups.set_timeout(milliseconds(700));
    while (environment.rank == 1 && !(std::filesystem::exists(records.path() / "rank_0.json") &&
                                      std::filesystem::exists(records.path() / "rank_2.json")))
      std::this_thread::sleep_for(milliseconds(20));
    // Through memory rank 1 finds what the others have sent, and fails in the second one.
    for (int i = 0; i < 2; ++i) groups.get(MeshDim::kFsdp).all_reduce_sum(at::ones({10}));
  });
  for (int rank : {0, 1, 2}) {
    CHECK(outcomes[rank].exit_code == kCommunication);
    check_mentions(outcomes[rank], {"; rank " + std::to_string((rank + 1) % 3) + " failed too: all_reduce",
                                    "; rank " + std::to_string((rank + 2) % 3) + " failed too: all_reduce"});
    CHECK(outcomes[rank].error.find("see its log") == std::string::npos);
  }
}

TEST_CASE("a rank that fails within the response timeout after rank 0 still learns of the others") {
  const auto outcomes = run_ranks_outcome(4, [&](const Environment& environment) {
    CommOptions options;
    options.response_timeout = seconds(10);
    ProcessGroups groups(Mesh({.dp_shard = 2, .tp = 2}, 4), environment, options);
    groups.set_timeout(milliseconds(700));
    if (environment.rank >= 2) {
      wait_for_end_of(1);
      std::this_thread::sleep_for(seconds(4));  // more than the default
    }
    groups.get(MeshDim::kTp).start_recv(at::empty({10}), 1 - environment.rank % 2).wait();
  });
  for (const int rank : {2, 3}) {
    CHECK(outcomes[rank].exit_code == kCommunication);
    check_mentions(outcomes[rank], {"; rank 0 failed too: recv", "; rank 1 failed too: recv"});
  }
}

TEST_CASE("messages of another size or dtype or operation than expected are refused with both") {
  const bool shared_memory = GENERATE(true, false);
  struct Case {
    std::function<Pending(Communicator&)> send, receive;
    std::string message;  // of rank 1
    std::string of_rank_0 =
        "";  // where it finds the same: it may close its connections before rank 1 has looked
  };
  const std::vector<int64_t> even = {1, 1}, more = {1, 2};
  for (const auto& [send, receive, message, of_rank_0] : std::vector<Case>{
           {[](Communicator& g) { return g.start_send(at::ones({10}), 1); },
            [](Communicator& g) { return g.start_recv(at::ones({9}), 0); },
            "its next message is 40 bytes of Float in a send, and this rank expects 36 bytes of Float in a "
            "send"},
           {[](Communicator& g) { return g.start_send(at::ones({10}), 1); },
            [](Communicator& g) { return g.start_recv(at::ones({10}, at::kInt), 0); },
            "40 bytes of Float in a send, and this rank expects 40 bytes of Int in a send"},
           {[](Communicator& g) { return g.start_send(at::ones({0}), 1); },
            [](Communicator& g) { return g.start_recv(at::ones({10}), 0); },
            "0 bytes of Float in a send, and this rank expects 40 bytes"},
           {[&](Communicator& g) {
              return g.start_all_to_all(at::ones({3, 4}), at::ones({3, 4}), more, more);
            },
            [&](Communicator& g) {
              return g.start_all_to_all(at::ones({2, 4}), at::ones({2, 4}), even, even);
            },
            "32 bytes of Float in an all-to-all, and this rank expects 16 bytes",
            "16 bytes of Float in an all-to-all, and this rank expects 32 bytes"},
           {[](Communicator& g) { return g.start_send(at::ones({4}), 1); },
            [&](Communicator& g) {
              return g.start_all_to_all(at::ones({2, 4}), at::ones({2, 4}), even, even);
            },
            "16 bytes of Float in a send, and this rank expects 16 bytes of Float in an all-to-all"}}) {
    const auto outcomes = run_ranks_outcome(2, [&](const Environment& environment) {
      const CommOptions options{.shared_memory = shared_memory};
      ProcessGroups groups(Mesh({.dp_shard = 1, .tp = 2}, 2), environment, options);
      Communicator& group = groups.get(MeshDim::kTp);
      PhaseGuard phase("step 3");
      if (environment.rank == 1) return receive(group).wait();
      const struct UntilRank1HasEnded {
        ~UntilRank1HasEnded() { wait_for_end_of(1); }
      } stay;
      send(group).wait();
    });
    CHECK(outcomes[1].exit_code == kCommunication);
    check_mentions(outcomes[1], {"rank 1: ", "of group tp/0", "phase 'step 3'"});
    if (of_rank_0.empty() || outcomes[0].error.find(of_rank_0) == std::string::npos)
      check_mentions(outcomes[1], {"rank 0: ", message});
  }
}

TEST_CASE("a transfer that its peer does not start times out with its name") {
  const bool shared_memory = GENERATE(true, false), sends = GENERATE(true, false);
  const auto outcomes = run_ranks_outcome(2, [&](const Environment& environment) {
    const CommOptions options{.shared_memory = shared_memory};
    ProcessGroups groups(Mesh({.dp_shard = 1, .tp = 2}, 2), environment, options);
    groups.set_timeout(milliseconds(700));
    if (environment.rank == 1) return wait_for_end_of(0);
    Communicator& group = groups.get(MeshDim::kTp);
    PhaseGuard phase("step 17 backward layers.3");
    const at::Tensor tensor = at::ones({1 << 20});  // more than a mailbox holds
    (sends ? group.start_send(tensor, 1) : group.start_recv(tensor, 1)).wait();
  });
  CAPTURE(shared_memory, sends);
  CHECK(outcomes[0].exit_code == kCommunication);
  check_mentions(outcomes[0], {std::string("rank 0: ") + (sends ? "send to" : "recv from") +
                               " rank 1 (number 1 of group tp/0, ranks 0 1) failed in phase "
                               "'step 17 backward layers.3'"});
  check_silent(outcomes, 0, 1);
}

TEST_CASE("a watched rank ends its peers unless it has taken leave") {
  struct Case {
    std::function<void(FailureDetector&)> end;
    int exit_code;
    const char* said;
  };
  for (const auto& [end, exit_code, said] : std::vector<Case>{
           {[](FailureDetector&) { raise(SIGKILL); }, kCommunication, "rank 1 has ended"},
           {[](FailureDetector&) { throw_data("unhappy"); }, kCommunication, "rank 1 has failed"},
           {[](FailureDetector& detector) { detector.leave(FailureDetector::End::kDone); }, 0, ""},
           {[](FailureDetector&) {}, 0, ""}}) {
    const auto outcomes = run_ranks_outcome(3, [&](const Environment& environment) {
      set_own_rank(environment);
      set_phase("step 3");
      FailureDetector detector(join_ranks(environment, {}, kPatience), environment, kPatience);
      // Those that are to end would wait until the harness ends them; the others for longer than that would
      // take.
      environment.rank == 1 ? end(detector) : std::this_thread::sleep_for(seconds(exit_code == 0 ? 14 : 600));
    });
    for (int rank : {0, 2}) {
      CAPTURE(said, outcomes[rank].output);
      CHECK(outcomes[rank].exit_code == exit_code);
      CHECK(outcomes[rank].output.find(said) != std::string::npos);
      CHECK((outcomes[rank].output.find("in phase 'step 3'") != std::string::npos) == (exit_code != 0));
    }
  }
}

TEST_CASE(
    "a thread of libtorch that fails ends the process with the code of what it met and names the lost") {
  const auto thrown_in_a_thread = [](const auto& error) {
    return run_ranks_outcome(2, [&](const Environment& environment) {
      FailureDetector detector(join_ranks(environment, {}, kPatience), environment, kPatience,
                               kPeerResponseTimeout, /*ends_process=*/false);
      if (environment.rank == 1) return wait_for_end_of(0);
      std::set_terminate([] { ::_exit(static_cast<int>(ExitCode::kResources)); });  // the program's own
      report_failures_of_threads();
      std::thread([&] { throw error; }).join();
    })[0];
  };
  const c10::SourceLocation here = {__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  const RankOutcome lost = thrown_in_a_thread(c10::DistBackendError(here, "Watchdog caught a timeout"));
  CHECK(lost.exit_code == kCommunication);
  CHECK(lost.output.find("Watchdog caught a timeout; no word from rank 1") != std::string::npos);
  const RankOutcome bug =
      thrown_in_a_thread(c10::DistBackendError(here, "CUDA error: an illegal memory access"));
  CHECK(bug.exit_code == static_cast<int>(ExitCode::kBug));
  CHECK(bug.output.find("internal error on the GPU: CUDA error") != std::string::npos);
  CHECK(thrown_in_a_thread(std::bad_alloc()).exit_code == static_cast<int>(ExitCode::kResources));
}

TEST_CASE("missing ranks are named when the rendezvous times out") {
  const auto outcomes = run_ranks_outcome(3, [](const Environment& environment) {
    Environment larger = environment;
    larger.world_size = larger.local_world_size = 5;
    HeldStore store(larger);
    store.wait_for_joined({1, 2});
    CommOptions options;
    options.init_timeout = environment.rank == 0 ? seconds(2) : kPatience;
    ProcessGroups groups(Mesh({}, 5), larger, options);
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.exit_code == kCommunication);
    check_mentions(outcome, {"3 of 5 ranks joined", "missing: rank 3 4"});
  }
}

TEST_CASE("two processes of one rank are refused") {
  const auto outcomes = run_ranks_outcome(3, [](const Environment& environment) {
    Environment wrong = environment;
    HeldStore store(wrong);
    if (wrong.rank == 2) {
      client_store(environment)->wait({"joined/1"}, kPatience);
      wrong.rank = 1;
    }
    CommOptions options;
    options.init_timeout = kPatience;
    ProcessGroups groups(Mesh({}, 3), wrong, options);
  });
  CHECK(outcomes[2].exit_code == kUsage);
  check_mentions(outcomes[2], {"two processes have RANK 1"});
}

TEST_CASE("an absent master is named with its address") {
  const test::ReservedPort nobody_listens;
  const auto outcomes = run_ranks_outcome(1, [&](const Environment& environment) {
    Environment second = environment;
    second.rank = second.local_rank = 1;
    second.world_size = second.local_world_size = 2;
    second.master_port = nobody_listens.number();
    CommOptions options;
    options.init_timeout = milliseconds(1000);
    ProcessGroups groups(Mesh({}, 2), second, options);
  });
  CHECK(outcomes[0].exit_code == kCommunication);
  check_mentions(outcomes[0], {"rank 1", "127.0.0.1", "MASTER_PORT"});
}

TEST_CASE("ranks of another world size or mesh or configuration end all ranks at once with the values") {
  const auto outcomes = run_ranks_outcome(4, [](const Environment& environment) {
    Environment own = environment;
    HeldStore store(own);
    store.wait_for_joined({1, 2, 3});
    CommOptions options;
    options.identity = {{"training.seq_len", "256"}, {"optimizer.lr", "0.1"}};
    MeshConfig mesh;
    if (own.rank == 1) own.world_size = own.local_world_size = 8;
    if (own.rank == 2) mesh.dp_replicate = 2;
    if (own.rank == 3) options.identity["optimizer.lr"] = "0.2";
    ProcessGroups groups(Mesh(mesh, own.world_size), own, options);
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.exit_code == kUsage);
    CHECK(outcome.error.find("seq_len") == std::string::npos);
    if (!host_ran(outcomes)) {  // rank 0 waits for three seconds for all to compare
      check_mentions(outcome, {" on rank 0, "});
      continue;
    }
    check_mentions(outcome,
                   {"WORLD_SIZE: 4 on rank 0, 8 on rank 1", "optimizer.lr: 0.1 on rank 0, 0.2 on rank 3",
                    "dp_replicate 2 x dp_shard 2", "on rank 2"});
  }
}

TEST_CASE("a rank that is told to use sockets ends a job of shared memory at once") {
  const auto outcomes = run_ranks_outcome(2, [](const Environment& environment) {
    Environment own = environment;
    const HeldStore store(own);
    if (own.rank == 1) own.local_world_size = 1;
    ProcessGroups groups(Mesh({}, 2), own, {});
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.exit_code == kUsage);
    check_mentions(outcome, {"WORLD_SIZE = LOCAL_WORLD_SIZE: yes on rank 0, no on rank 1"});
  }
}

TEST_CASE("the last rank may join while rank 0 looks who is missing") {
  const auto outcomes = run_ranks_outcome(2, [](const Environment& environment) {
    CommOptions options;
    options.init_timeout = seconds(1);
    if (environment.rank == 0) {
      ProcessGroups groups(Mesh({}, 2), environment, options);
      return;
    }
    const auto store = client_store(environment);
    store->add("joined/1", 1);
    std::this_thread::sleep_for(milliseconds(2000));  // rank 0's time is over by now
    store->set("complete", "");
    store->wait({"gate"}, kPatience);
    if (!store->get_to_str("gate").empty()) throw_comm("{}", store->get_to_str("gate"));
    store->wait({"watch/0"}, kPatience);  // rank 0 goes on to watch the others
  });
  if (!host_ran(outcomes)) {
    WARN("the host stood still, perhaps for longer than rank 0 waits");
    return;
  }
  CHECK(outcomes[1].exit_code == 0);
  CHECK(outcomes[1].error == "");
  CHECK(outcomes[0].error.find("missing") == std::string::npos);
}

TEST_CASE("the store listens on the address of the master alone") {
  const test::ReservedPort of_127_0_0_1;
  const int port = of_127_0_0_1.number();
  const Descriptor socket(listen_on("127.0.0.2", port));
  REQUIRE(socket);
  const auto reaches = [&](const char* address) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, address, &to.sin_addr);
    const Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  };
  CHECK(reaches("127.0.0.2"));
  CHECK_FALSE(reaches("127.0.0.1"));
  CHECK_THROWS_WITH(listen_on("127.0.0.2", port), Catch::Contains("port is in use"));
  CHECK(listen_on("198.51.100.1", port) == -1);  // no address of this host
}

TEST_CASE("ranks that disagree all list the keys and who differs") {
  const auto outcomes = run_ranks_outcome(3, [](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 3), environment, {});
    Fingerprint fingerprint = {{"training.steps", "10"}, {"training.seq_len", "256"}, {"debug.seed", "1"}};
    if (environment.rank == 1) fingerprint["training.steps"] = "11";
    if (environment.rank == 2) fingerprint["data"] = "extra";
    require_agreement(groups.host(), fingerprint);
  });
  for (const auto& outcome : outcomes) {
    CHECK(outcome.exit_code == kUsage);
    check_mentions(outcome, {"2 entries differ", "training.steps: 10 on rank 0, 11 on rank 1",
                             "data: nothing on rank 0, extra on rank 2"});
    CHECK(outcome.error.find("seq_len") == std::string::npos);
  }
}

TEST_CASE("the harness names the first rank that failed and shows its last lines") {
  const auto failing = [](const Environment& environment) {
    if (environment.rank == 1) {
      std::puts("these are my last words");
      throw_data("rank one is unhappy");
    }
    std::this_thread::sleep_for(seconds(environment.rank == 0 ? 0 : 600));
    return 1.0;
  };
  try {
    run_ranks(3, failing);
    FAIL("a failing rank went unnoticed");
  } catch (const std::runtime_error& error) {
    const std::string text = error.what();
    CHECK(text.find("rank 1 of 3 failed first, exit code 65: rank one is unhappy") != std::string::npos);
    CHECK(text.find("these are my last words") != std::string::npos);
  }
  const auto slow = run_ranks_outcome(
      1, [](const Environment&) { std::this_thread::sleep_for(seconds(600)); }, seconds(1));
  CHECK(slow[0].error == "timed out");
}

}  // namespace hyperion::parallel
