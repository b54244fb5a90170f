#include "parallel/job/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <unistd.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/collective.h"
#include "base/device/error_text.h"
#include "base/durable.h"
#include "base/error.h"
#include "base/log.h"
#include "base/pack.h"
#include "base/rank_list.h"
#include "base/resources.h"
#include "parallel/job/failure_record.h"
#include "parallel/job/sockets.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kProcesses = "processes of the rank";
constexpr const char* kLeft = "left";  // "RANK WHY" of a rank that has ended before all had met

std::atomic<bool> met_or_left{false};  // whether this rank has

// --- the store ---

// Rank 0's socket for the store; -1 lets libtorch listen on every interface.
int listening_socket(const Environment& environment) {
  if (environment.master_listen_fd >= 0) return environment.master_listen_fd;
  Descriptor socket(listen_on(environment.master_addr, environment.master_port));
  const char* why = nullptr;
  if (!socket)
    why = "is no address of this host";
  else if (!environment.single_host() && is_loopback(socket.get()))
    why = "is the loopback address on this host, which other hosts cannot reach";
  if (why == nullptr) return socket.release();
  log_warning(
      "MASTER_ADDR {} {}: the rendezvous listens on every interface; set MASTER_ADDR to the address of rank "
      "0's host in the network of the job",
      environment.master_addr, why);
  return -1;
}

[[noreturn]] void throw_unreachable(const Environment& environment, const std::string& why) {
  throw_comm(
      "rank {} could not {} the rendezvous at {}:{}: {}; check MASTER_ADDR and MASTER_PORT and that rank 0 "
      "runs",
      environment.rank, environment.rank == 0 && !environment.agent_store ? "open" : "reach",
      environment.master_addr, environment.master_port, why);
}

// Waits until rank 0 listens, and returns the remaining time. libtorch would spend all of it on each
// address family.
milliseconds await_listener(const Environment& environment, milliseconds timeout) {
  constexpr milliseconds kPause{100}, kLeast{1000};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto left = [&] {
    return std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  };
  while (!connect_to(environment.master_addr, environment.master_port,
                     std::clamp(left(), kPause, milliseconds(3000)))) {
    const std::error_code why(errno, std::generic_category());
    if (exhausted_resource(std::system_error(why))) throw std::system_error(why);
    if (left() <= kPause)
      throw_unreachable(
          environment,
          fmt::format("no connection within {} s ({})", std::chrono::duration<double>(timeout).count(),
                      why == std::errc::address_not_available ? "the name has no address that can be reached"
                                                              : why.message()));
    std::this_thread::sleep_for(kPause);
  }
  return std::max(left(), kLeast);
}

c10::intrusive_ptr<c10d::Store> connect(const Environment& environment, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && !environment.agent_store;
  options.waitWorkers = false;  // we wait ourselves, to say which ranks are missing
  options.timeout = timeout;
  constexpr size_t kOfLoop = 16;  // libuv's files, listening sockets, connections of this host's ranks
  require_open_files(kOfLoop + (options.isServer ? static_cast<size_t>(environment.world_size) : 0));
  if (options.isServer) {
    const int socket = listening_socket(environment);
    if (socket >= 0) options.masterListenFd = socket;
  } else {
    options.timeout = await_listener(environment, timeout);
  }
  try {
    const auto store = c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
    store->setTimeout(timeout);
    return c10::make_intrusive<c10d::PrefixStore>(fmt::format("hyperion/{}", environment.restart_count),
                                                  store);
  } catch (const c10::Error& error) {
    if (exhausted_resource(error)) throw;
    const std::string why = brief(error);
    if (options.isServer && why.find("EADDRINUSE") != std::string::npos)
      throw_port_in_use(environment.master_addr, environment.master_port);
    throw_unreachable(environment, why);
  }
}

std::string joined_key(int rank) {
  return fmt::format("joined/{}", rank);
}

// --- rank 0 ---

// Why the rendezvous fails; empty once all have joined, or one that differs has.
std::string describe_missing_ranks(c10d::Store& store, int world, milliseconds timeout, milliseconds grace) {
  if (wait_for_keys(store, {"complete"}, timeout)) return "";
  const double waited = static_cast<double>(timeout.count()) / 1000.0;
  std::vector<int> missing;
  for (int r = 0; r < world; ++r)
    if (!store.check({joined_key(r)})) missing.push_back(r);
  if (!missing.empty())
    return fmt::format(
        "{} of {} ranks joined within {} s, missing: rank {}; see the logs of the missing ranks",
        world - missing.size(), world, waited, rank_list(missing));
  if (wait_for_keys(store, {"complete"}, grace)) return "";  // the last one has just joined
  return fmt::format("all {} ranks joined within {} s, but they do not answer: see their logs", world,
                     waited);
}

std::vector<DifferingRank> differing_ranks(c10d::Store& store, int world, milliseconds grace) {
  // Ranks that start a little later are then named too, and end with this message as well.
  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (store.add("agreeing", 0) + store.add("differing", 0) < world - 1 &&
         std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(50));
  std::vector<DifferingRank> ranks;
  const int64_t count = store.add("differing", 0);
  for (int64_t i = 1; i <= count; ++i) {
    Fingerprint entries = unpack<Fingerprint>(store.get_to_str(fmt::format("differing/{}", i)));
    const auto rank = entries.extract("");
    ranks.push_back({std::stoi(rank.mapped()), std::move(entries)});
  }
  return ranks;
}

// Returns when every rank has joined as the same job; else sends all ranks the reason, and throws it.
// `grace` is for ranks that join, or read the reason, a little later.
void require_all_ranks(c10d::Store& store, int world, const Fingerprint& identity, milliseconds timeout,
                       milliseconds grace) {
  store.set("identity", pack(identity));
  std::string problem = describe_missing_ranks(store, world, timeout, grace);
  ExitCode code = ExitCode::kCommunication;
  int left = 0;
  if (store.check({kLeft})) {
    const std::string text = store.get_to_str(kLeft);
    left = std::stoi(text);
    problem = fmt::format("rank {} ended before all ranks had met: {}; see its log", left,
                          text.substr(text.find(' ') + 1));
  } else if (store.add("differing", 0) > 0) {
    code = ExitCode::kUsage;
    problem = describe_differences(identity, differing_ranks(store, world, grace));
  }
  store.set("gate", problem.empty() ? "" : encode_error(Error(code, problem)));
  if (problem.empty()) return;
  std::vector<std::string> readers;
  for (int r = 1; r < world; ++r)
    if (r != left && store.check({joined_key(r)})) readers.push_back(fmt::format("read/{}", r));
  wait_for_keys(store, readers, grace);  // the store ends with this process
  throw Error(code, problem);
}

// --- the others ---

void report_difference(c10d::Store& store, int rank, Fingerprint entries) {
  entries[""] = std::to_string(rank);
  const int64_t number = store.add("differing", 1);
  store.set(fmt::format("differing/{}", number), pack(entries));
  store.set("complete", "");
}

// Returns nothing for what a rank of another build has packed differently, so that every entry differs.
Fingerprint unpack_or_nothing(const std::string& bytes) {
  try {
    return unpack<Fingerprint>(bytes);
  } catch (const Error&) {
    return {};
  }
}

void join_rank0(c10d::Store& store, const Environment& environment, const Fingerprint& identity,
                milliseconds timeout, milliseconds grace) {
  const int rank = environment.rank;
  store.wait({"identity"}, timeout);
  const Fingerprint differing = differing_entries(unpack_or_nothing(store.get_to_str("identity")), identity);
  if (!differing.empty())
    report_difference(store, rank, differing);
  else if (store.add("agreeing", 1) == environment.world_size - 1)
    store.set("complete", "");
  store.wait({"gate"}, timeout + grace + seconds(2));  // rank 0 speaks first: it knows who is missing
  const std::string answer = store.get_to_str("gate");
  store.set(fmt::format("read/{}", rank), "");
  if (!answer.empty()) throw_encoded_error(answer);
}

}  // namespace

// Time is counted in ticks, so that a suspended process does not find it over when it resumes.
StoreWatch::StoreWatch(const Environment& environment, milliseconds limit) {
  if (environment.rank == 0 && !environment.agent_store) return;
  thread_ = std::jthread([&environment, limit](const std::stop_token& done) {
    constexpr milliseconds kTick{50};
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any changed;
    // An error within the limit says more.
    for (milliseconds left = limit + seconds(2); left > milliseconds(0); left -= kTick)
      if (changed.wait_for(lock, done, kTick, [] { return false; }) || done.stop_requested()) return;
    ::_exit(report_failure(ExitCode::kCommunication,
                           fmt::format("rank {}: the rendezvous at {}:{}, or a rank that is waited for "
                                       "there, has not answered for {} s: "
                                       "see the log of {} first",
                                       environment.rank, environment.master_addr, environment.master_port,
                                       std::chrono::duration<double>(limit).count(),
                                       environment.agent_store ? "the launcher" : "rank 0")));
  });
}

bool wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys, milliseconds timeout) {
  try {
    store.wait(keys, timeout);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

c10::intrusive_ptr<c10d::Store> join_ranks(const Environment& environment, const Fingerprint& identity,
                                           milliseconds timeout, milliseconds response_timeout) {
  std::optional<StoreWatch> watch(std::in_place, environment, timeout);
  const auto store = connect(environment, timeout);
  const struct MetOrLeft {
    ~MetOrLeft() { met_or_left = true; }
  } at_the_end;  // an error that ends the rendezvous has been sent, too
  Fingerprint expected = identity;
  expected.emplace(kProcesses, "1");
  const milliseconds grace = response_timeout + seconds(1);
  try {
    if (store->add(joined_key(environment.rank), 1) > 1) {
      report_difference(*store, environment.rank, {{kProcesses, "2"}});
      throw_config("two processes have RANK {}: every process of the job needs its own", environment.rank);
    }
    watch.emplace(environment, 2 * timeout + grace + seconds(2));  // rank 0 may come late and wait itself
    if (environment.rank == 0)
      require_all_ranks(*store, environment.world_size, expected, timeout, grace);
    else
      join_rank0(*store, environment, expected, timeout, grace);
  } catch (const c10::Error& error) {
    if (exhausted_resource(error)) throw;
    throw_comm("rank {} lost rank 0 during rendezvous: {}", environment.rank, brief(error));
  }
  return store;
}

void leave_ranks(const Environment& environment, const std::string& why) noexcept {
  if (environment.rank == 0 || met_or_left.exchange(true)) return;
  try {
    if (!connect_to(environment.master_addr, environment.master_port, seconds(1))) return;
    const auto store = connect(environment, seconds(2));
    store->set(kLeft, fmt::format("{} {}", environment.rank, why));
    store->set("complete", "");
  } catch (const std::exception&) {  // they will find out when comm.init_timeout_seconds have passed
  }
}

}  // namespace hyperion::parallel
