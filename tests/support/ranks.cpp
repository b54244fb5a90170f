#include "tests/support/ranks.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <stdexcept>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "base/error.h"
#include "base/standard_streams.h"

namespace hyperion {
namespace {

using Clock = std::chrono::steady_clock;

using std::chrono::milliseconds;

constexpr int kEnded = INT_MAX;  // a mark

// What the harness and all ranks see of a rank.
struct RankProgress {
  std::atomic<int> mark{0};
  std::atomic<Clock::duration> last_seen{};  // since the clock's begin
  std::atomic<Clock::duration> stood_still{};
  static_assert(std::atomic<Clock::duration>::is_always_lock_free);

  void see(Clock::duration expected = {}) {
    const Clock::duration now = Clock::now().time_since_epoch(), pause = now - last_seen.load() - expected;
    if (pause > stood_still.load()) stood_still = pause;
    last_seen = now;
  }
};

std::span<RankProgress> progress;  // of the run under way, in memory that its processes share
int own_rank = -1;                 // in the process of a rank

class SharedProgress {
 public:
  explicit SharedProgress(int ranks) : bytes_(static_cast<size_t>(ranks) * sizeof(RankProgress)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    progress = {static_cast<RankProgress*>(memory_), static_cast<size_t>(ranks)};
    for (RankProgress& rank : progress)
      (new (&rank) RankProgress)->last_seen = Clock::now().time_since_epoch();
  }
  ~SharedProgress() {
    progress = {};
    munmap(memory_, bytes_);
  }
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;

 private:
  size_t bytes_;
  void* memory_;
};

// Has the times noted for which the host does not run this process.
void note_pauses(RankProgress& own) {
  own.last_seen = Clock::now().time_since_epoch();
  std::thread([&own] {
    for (;;) {
      constexpr milliseconds kTick{50};
      std::this_thread::sleep_for(kTick);
      own.see(kTick);
    }
  }).detach();
}

struct Child {
  pid_t pid = -1;
  int result_fd = -1;  // memory files: unlike pipes they never fill up and need no reader
  int output_fd = -1;
  bool running = true;
  int status = 0;
  Clock::time_point ended;
};

int listening_socket(int& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw std::runtime_error(fmt::format("no listening socket on 127.0.0.1: {}", std::strerror(errno)));
  }
  port = ntohs(address.sin_port);
  return fd;
}

std::string read_all(int fd) {
  std::string content(static_cast<size_t>(lseek(fd, 0, SEEK_END)), '\0');
  if (pread(fd, content.data(), content.size(), 0) != static_cast<ssize_t>(content.size())) content.clear();
  close(fd);
  return content;
}

void write_all(int fd, const void* data, size_t size) {
  if (write(fd, data, size) != static_cast<ssize_t>(size)) _exit(70);
}

void export_environment(const parallel::Environment& environment) {
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(environment.rank));
  set("LOCAL_RANK", std::to_string(environment.local_rank));
  set("WORLD_SIZE", std::to_string(environment.world_size));
  set("LOCAL_WORLD_SIZE", std::to_string(environment.local_world_size));
  set("GROUP_RANK", "0");
  set("MASTER_ADDR", environment.master_addr);
  set("MASTER_PORT", std::to_string(environment.master_port));
}

using Function = std::function<std::string(const parallel::Environment&)>;

// The life of a rank. The result file gets its bytes, or the error's text when the exit code is not 0.
[[noreturn]] void run_child(const Child& child, const parallel::Environment& environment,
                            const Function& function, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it was killed before
  for (int signal_number : {SIGINT, SIGTERM, SIGSEGV, SIGABRT, SIGFPE}) signal(signal_number, SIG_DFL);
  ignore_closed_pipe();  // as the program does: what the socket of a lost rank answers is an error
  dup2(child.output_fd, STDOUT_FILENO);
  dup2(child.output_fd, STDERR_FILENO);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  export_environment(environment);
  own_rank = environment.rank;
  note_pauses(progress[own_rank]);
  int code = 0;
  try {
    at::set_num_threads(1);
    const std::string result = function(environment);
    write_all(child.result_fd, result.data(), result.size());
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    write_all(child.result_fd, error.what(), std::strlen(error.what()));
  } catch (const c10::Error& error) {
    code = 1;
    const char* text = error.what_without_backtrace();
    write_all(child.result_fd, text, std::strlen(text));
  } catch (const std::exception& error) {
    code = 1;
    write_all(child.result_fd, error.what(), std::strlen(error.what()));
  }
  std::fflush(nullptr);
  _exit(code);  // no destructors: the parent's state (Catch's, libtorch's) is not the child's to tear down
}

std::string last_lines(const std::string& text, size_t limit = 2000) {
  return text.size() <= limit ? text : "..." + text.substr(text.size() - limit);
}

// Waits for all; after the first failure the others get `grace` more.
void wait_for_all(std::vector<Child>& children, Clock::time_point deadline, Clock::duration grace) {
  size_t left = children.size();
  while (left > 0) {
    for (size_t rank = 0; rank < children.size(); ++rank) {
      Child& child = children[rank];
      if (!child.running || waitpid(child.pid, &child.status, WNOHANG) != child.pid) continue;
      child.running = false;
      child.ended = Clock::now();
      progress[rank].see();
      progress[rank].mark = kEnded;
      --left;
      if (child.status != 0) deadline = std::min(deadline, child.ended + grace);
    }
    if (left > 0 && Clock::now() > deadline) {
      for (Child& child : children) {
        if (child.running) kill(child.pid, SIGKILL);
      }
      deadline = Clock::time_point::max();
    }
    if (left > 0) std::this_thread::sleep_for(milliseconds(2));
  }
}

struct Ended {
  std::vector<RankOutcome> outcomes;
  std::vector<std::string> results;  // of the ranks that succeeded
  int first_failure = -1;
};

Ended run(int ranks, const Function& function, std::chrono::seconds timeout, std::chrono::seconds grace) {
  parallel::Environment environment;
  environment.world_size = environment.local_world_size = ranks;
  environment.master_listen_fd = listening_socket(environment.master_port);
  const SharedProgress shared(ranks);
  std::vector<Child> children(ranks);
  const auto deadline = Clock::now() + timeout;
  std::fflush(nullptr);
  const pid_t parent = getpid();
  for (int rank = 0; rank < ranks; ++rank) {
    Child& child = children[rank];
    child.result_fd = memfd_create("result", MFD_CLOEXEC);
    child.output_fd = memfd_create("output", MFD_CLOEXEC);
    environment.rank = environment.local_rank = rank;
    child.pid = fork();
    if (child.pid == 0) {
      parallel::Environment own = environment;
      if (rank != 0) {
        close(own.master_listen_fd);
        own.master_listen_fd = -1;
      }
      run_child(child, own, function, parent);
    }
  }
  close(environment.master_listen_fd);
  wait_for_all(children, deadline, grace);

  Ended ended{std::vector<RankOutcome>(ranks), std::vector<std::string>(ranks)};
  for (int rank = 0; rank < ranks; ++rank) {
    const Child& child = children[rank];
    RankOutcome& outcome = ended.outcomes[rank];
    std::string& result = ended.results[rank] = read_all(child.result_fd);
    outcome.output = last_lines(read_all(child.output_fd));
    outcome.stood_still = std::chrono::duration_cast<milliseconds>(progress[rank].stood_still.load());
    if (WIFSIGNALED(child.status)) {
      outcome.exit_code = 128 + WTERMSIG(child.status);
      outcome.error =
          child.ended >= deadline ? "timed out" : fmt::format("signal {}", WTERMSIG(child.status));
    } else if ((outcome.exit_code = WEXITSTATUS(child.status)) != 0) {
      outcome.error = std::move(result);
    }
    int& first = ended.first_failure;
    if (child.status != 0 && (first < 0 || child.ended < children[first].ended)) first = rank;
  }
  return ended;
}

}  // namespace

bool host_ran(const std::vector<RankOutcome>& outcomes) {
  return std::ranges::all_of(outcomes,
                             [](const RankOutcome& rank) { return rank.stood_still < milliseconds(1000); });
}

void reach(int mark) {
  progress[own_rank].mark = mark;
}

bool has_reached(int rank, int mark) {
  return progress[rank].mark >= mark;
}

void wait_until_reached(int rank, int mark) {
  while (!has_reached(rank, mark)) std::this_thread::sleep_for(milliseconds(5));
}

void wait_for_end_of(int rank) {
  wait_until_reached(rank, kEnded);
}

void wait_for_end_of_others() {
  for (int rank = 0; rank < static_cast<int>(progress.size()); ++rank)
    if (rank != own_rank) wait_for_end_of(rank);
}

std::vector<std::string> run_ranks_bytes(int ranks, const Function& function, std::chrono::seconds timeout) {
  Ended ended = run(ranks, function, timeout, std::chrono::seconds(5));
  if (const int failed = ended.first_failure; failed >= 0) {
    const RankOutcome& outcome = ended.outcomes[failed];
    throw std::runtime_error(fmt::format("rank {} of {} failed first, exit code {}: {}\nits last output:\n{}",
                                         failed, ranks, outcome.exit_code, outcome.error, outcome.output));
  }
  return ended.results;
}

std::vector<RankOutcome> run_ranks_outcome(int ranks,
                                           const std::function<void(const parallel::Environment&)>& function,
                                           std::chrono::seconds timeout) {
  const auto without_result = [&](const parallel::Environment& environment) {
    function(environment);
    return std::string();
  };
  return run(ranks, without_result, timeout, timeout).outcomes;
}

}  // namespace hyperion
