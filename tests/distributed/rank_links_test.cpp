// What hosts tell each other about lost ranks, with a process for each host.
#include "parallel/health/rank_links.h"

#include <functional>
#include <sstream>
#include <thread>

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/durable.h"
#include "base/error.h"
#include "parallel/health/failure_detector.h"
#include "parallel/job/phase.h"
#include "parallel/job/rendezvous.h"
#include "parallel/job/sockets.h"
#include "tests/support/ranks.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// "ended 1 2", "failed 3": the first that a host hears within `timeout`; empty: nothing.
std::string first_loss(RankLinks& links, seconds timeout) {
  for (const auto end = Clock::now() + timeout;;) {
    const LostRanks lost = links.poll();
    if (!lost.ranks.empty())
      return fmt::format("{} {}", lost.failed ? "failed" : "ended", fmt::join(lost.ranks, " "));
    if (Clock::now() >= end) return "";
    std::this_thread::sleep_for(milliseconds(20));
  }
}

constexpr seconds kSilence{2};  // after which nothing is expected to come any more

// Marks of reach().
constexpr int kReady = 1, kHeard = 2;

void wait_for_all(const Environment& environment) {
  reach(kReady);
  for (int rank = 0; rank < environment.world_size; ++rank) wait_until_reached(rank, kReady);
}

// Runs `act` on one host of three, and returns what each heard within `patience`; "" for the host that acted.
std::vector<std::string> heard(int acting, const std::function<void(RankLinks&)>& act,
                               seconds patience = kPatience) {
  const auto outcomes = run_ranks_outcome(3, [&](const Environment& environment) {
    Environment host = environment;
    host.local_rank = 0;
    host.local_world_size = 1;
    const auto store = join_ranks(environment, {}, kPatience);
    RankLinks links(*store, host, kPatience);
    wait_for_all(host);
    if (host.rank == acting) {
      act(links);
      if (host.rank == 0) wait_for_end_of_others();  // which it is not to end for
      return;
    }
    // The error is how a rank of run_ranks_outcome tells more than a code.
    const std::string news = first_loss(links, patience);
    reach(kHeard);
    for (int rank = 0; rank < 3; ++rank)  // or the others hear that this one ends
      if (rank != acting) wait_until_reached(rank, kHeard);
    throw_data("{}", news);
  });
  std::vector<std::string> texts;
  for (const RankOutcome& outcome : outcomes) texts.push_back(outcome.error);
  return texts;
}

}  // namespace

TEST_CASE("every host hears that a process has ended or fails") {
  const auto kill = [](RankLinks&) { ::raise(SIGKILL); };
  CHECK(heard(1, kill) == std::vector<std::string>{"ended 1", "signal 9", "ended 1"});
  CHECK(heard(0, kill) == std::vector<std::string>{"signal 9", "ended 0", "ended 0"});
  const auto fail = [](RankLinks& links) { links.send(RankLinks::End::kFailed); };
  CHECK(heard(2, fail) == std::vector<std::string>{"failed 2", "failed 2", ""});
  CHECK(heard(0, fail) == std::vector<std::string>{"", "failed 0", "failed 0"});
}

TEST_CASE("a host that is done is no loss") {
  const auto done = [](RankLinks& links) { links.send(RankLinks::End::kDone); };
  CHECK(heard(1, done, kSilence) == std::vector<std::string>(3));
}

TEST_CASE("a rank that goes on keeps no verdict from a connection that broke without the end of a process") {
  const auto outcomes = run_ranks_outcome(2, [](const Environment& environment) {
    Environment host = environment;  // of four, each on a host of its own
    host.local_rank = 0;
    host.local_world_size = 1;
    host.world_size = 4;
    const auto store = join_ranks(environment, {}, kPatience);
    if (host.rank == 0) {
      FailureDetector detector(store, host, kPatience, kPeerResponseTimeout, /*ends_process=*/false);
      throw_data("{}", fmt::join(detector.ended_ranks(kPatience), " "));
    }
    store->wait({"watch/rank0"}, kPatience);
    std::istringstream words(store->get_to_str("watch/rank0"));
    int port = 0;
    std::string token;
    words >> port >> token;
    const auto link_of = [&](int rank, const std::string& news) {
      Descriptor socket = connect_to("127.0.0.1", port, kPatience);
      const std::string text = fmt::format("{} {}\n{}", token, rank, news);
      if (!socket || ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0)
        throw_data("rank 0 cannot be told");
      return socket;
    };
    Descriptor broken = link_of(1, ""), alive = link_of(2, "failed 2\n");
    pollfd heard = {broken.get(), POLLIN, 0};
    char bytes[64];
    if (::poll(&heard, 1, static_cast<int>(milliseconds(kPatience).count())) != 1 ||
        ::recv(broken.get(), bytes, sizeof bytes, 0) <= 0)
      throw_data("rank 0 does not pass on the news");
    const linger reset = {1, 0};
    ::setsockopt(broken.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    broken = {};
    const Descriptor ended = link_of(3, "");
    ::shutdown(ended.get(), SHUT_WR);
    wait_for_end_of(0);
  });
  CHECK(outcomes[0].error == "3");
  CHECK(outcomes[1].error == "");
}

TEST_CASE("a connection that is not of the job is not heard") {
  const auto outcomes = run_ranks_outcome(2, [](const Environment& environment) {
    Environment host = environment;
    host.local_rank = 0;
    host.local_world_size = 1;
    const auto store = join_ranks(environment, {}, kPatience);
    RankLinks links(*store, host, kPatience);
    if (host.rank == 0) {
      std::string news;
      while (news.empty() && !has_reached(1, kReady)) news = first_loss(links, seconds(0));
      if (news.empty()) news = first_loss(links, kSilence);
      reach(kHeard);
      if (!news.empty()) throw_data("{}", news);
      return wait_for_end_of(1);
    }
    const int port = std::stoi(store->get_to_str("watch/rank0"));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    for (const std::string text :
         {"", "0123456789abcdef 1\nended 0\n", "nothing", "GET / HTTP/1.1\r\n\r\n"}) {
      const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        throw_data("not connected");
      if (!text.empty() && ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0)
        throw_data("not sent");
    }
    reach(kReady);
    wait_until_reached(0, kHeard);
  });
  for (const RankOutcome& outcome : outcomes) CHECK(outcome.error == "");
}

TEST_CASE("ranks of two hosts end when one of them is killed and do not when it takes leave") {
  struct Case {
    int rank;
    std::function<void(FailureDetector&)> end;
    int exit_code;
    std::string said;
  };
  const int communication = static_cast<int>(ExitCode::kCommunication);
  const auto kill = [](FailureDetector&) { ::raise(SIGKILL); };
  for (const auto& [lost, end, exit_code, said] : std::vector<Case>{
           {3, kill, communication, "rank 3 has ended"},
           {2, kill, communication, "rank 2 has ended"},
           {0, kill, communication, "rank 0 has ended"},
           {3, [](FailureDetector& detector) { detector.leave(FailureDetector::End::kDone); }, 0, ""}}) {
    const auto outcomes = run_ranks_outcome(4, [&](const Environment& environment) {
      Environment on_host = environment;
      on_host.local_rank = environment.rank % 2;
      on_host.local_world_size = 2;
      set_phase("step 3");
      const auto store = join_ranks(environment, {}, kPatience);
      FailureDetector detector(store, on_host, kPatience);
      wait_for_all(on_host);
      // Those that are to end would wait until the harness ends them.
      environment.rank == lost ? end(detector)
                               : std::this_thread::sleep_for(seconds(exit_code == 0 ? 4 : 600));
    });
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == lost) continue;
      CAPTURE(lost, said, rank, outcomes[rank].output);
      CHECK(outcomes[rank].exit_code == exit_code);
      CHECK(outcomes[rank].output.find(said) != std::string::npos);
    }
  }
}

}  // namespace hyperion::parallel
