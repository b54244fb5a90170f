#include "trainer/metrics/tracking.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/process.h"

namespace hyperion::metrics {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kCheckLimit{120};  // a Python on a slow file system
constexpr std::chrono::seconds kEndLimit{10};
constexpr std::chrono::seconds kFailedEndLimit{3};  // the launcher ends rank 0 soon after another has failed
constexpr size_t kLongestLine = 4000;
constexpr int kMaxRestarts = 20;
constexpr std::chrono::seconds kLongestPause{600};

std::string python_of(const config::JobConfig::Metrics& options) {
  if (options.tracking_python) return *options.tracking_python;
  const std::string named = environment_variable("HYPERION_PYTHON").value_or("");
  return named.empty() ? "python3" : named;
}

// Both ends are closed where no pipe could be made, which spawn() reports.
struct Pipe {
  Descriptor read_end, write_end;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
  }
};

// Starts a program in a session of its own with stdin, stdout and stderr alone. Signals have their default
// effect. Returns 0 or the errno.
int spawn(const std::vector<std::string>& command, int in, int out, const char* errors, pid_t& pid) {
  if (in < 0 || out < 0) return EMFILE;
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&files, STDERR_FILENO, errors, O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int error = ::posix_spawnp(&pid, arguments[0], &files, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return error;
}

nlohmann::json options_json(const config::JobConfig::Metrics& o) {
  return {{"wandb_project", o.wandb_project},
          {"wandb_entity", o.wandb_entity},
          {"wandb_name", o.wandb_name},
          {"wandb_group", o.wandb_group},
          {"wandb_tags", o.wandb_tags},
          {"wandb_mode", o.wandb_mode.value_or("")},
          {"wandb_run_id", o.wandb_run_id},
          {"wandb_log_report", o.wandb_log_report},
          {"mlflow_tracking_uri", o.mlflow_tracking_uri},
          {"mlflow_experiment", o.mlflow_experiment},
          {"mlflow_log_report", o.mlflow_log_report},
          {"alert_command", o.alert_command},
          {"alert_after_seconds", o.alert_after_seconds}};
}

// Writes a line to a side process; the pipe holds it until it is read.
void send(const Descriptor& pipe, const std::string& line) {
  [[maybe_unused]] const auto written = ::write(pipe.get(), line.data(), line.size());
}
std::string line_of(const nlohmann::json& job) {
  return job.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

fs::path folder_of(const TrackedRun& run) {
  return fs::absolute(run.dump_folder).lexically_normal();
}

fs::path script(const TrackedRun& run) {
  return run.install_root / "scripts/tracking/tracking.py";
}

class SideProcess {
 public:
  SideProcess(std::string name, const config::JobConfig::Metrics& options, const TrackedRun& run)
      : name_(std::move(name)), log_(folder_of(run) / "tracking" / (name_ + ".log")) {
    std::error_code ignored;
    const nlohmann::json job = {{"tracker", name_},
                                {"folder", folder_of(run).string()},
                                {"run", run.run_id},
                                {"program", fs::read_symlink("/proc/self/exe", ignored).string()},
                                {"options", options_json(options)}};
    command_ = {python_of(options), script(run).string()};
    job_ = line_of(job);
    start();
  }

  void watch() {
    log_lines();
    if (pid_ > 0 && has_ended()) {
      log_lines();
      pause_ = std::min<std::chrono::seconds>(kLongestPause, pause_ * 4);
      again_ = steady_clock::now() + pause_;
      const bool gives_up = ++restarts_ > kMaxRestarts;
      log_warning("{}: its process ended ({}): {}; training goes on, see {}", name_, ending_,
                  gives_up ? "it is not started again, the next start of the job sends the rest"
                           : fmt::format("it is started again in {} s", pause_.count()),
                  printable(log_));
      if (gives_up) again_ = steady_clock::time_point::max();
    }
    if (pid_ == 0 && steady_clock::now() >= again_) start();
  }

  void tell_end(int exit_code) {
    if (pid_ == 0 && again_ != steady_clock::time_point::max()) start();  // it sends what is left
    if (pid_ == 0) return;
    send(input_, fmt::format("{}\n", exit_code));
    input_ = Descriptor();
  }
  // Returns whether the process has ended after tell_end(). One that ends by an error is started again once.
  bool finished(int exit_code) {
    log_lines();
    if (pid_ == 0) return true;
    if (!has_ended()) return false;
    log_lines();
    if (ending_ == "code 0") return true;
    log_warning("{}: its process ended ({}): see {}", name_, ending_, printable(log_));
    if (std::exchange(retried_, true)) return true;
    tell_end(exit_code);
    return false;
  }
  void leave() const {
    log_info("{}: is still sending, and goes on without this process: see {}", name_, printable(log_));
  }

 private:
  void start() {
    Pipe input, output;
    const int error = spawn(command_, input.read_end.get(), output.write_end.get(), log_.c_str(), pid_);
    if (error != 0) {
      pid_ = 0;
      again_ = steady_clock::time_point::max();
      return log_warning("{}: {} cannot be started: {}; training goes on without it", name_, command_[0],
                         errno_text(error));
    }
    input_ = std::move(input.write_end);
    send(input_, job_);
    output_ = std::move(output.read_end);
    ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  }

  bool has_ended() {
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == 0 || (ended < 0 && errno == EINTR)) return false;
    ending_ = ended < 0             ? "its code is lost"  // another one has waited for it
              : WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                    : fmt::format("code {}", WEXITSTATUS(status));
    pid_ = 0;
    input_ = Descriptor();
    return true;
  }

  void log_lines() {
    std::array<char, 4096> data{};
    ssize_t n = 0;
    while (output_ && (n = ::read(output_.get(), data.data(), data.size())) > 0)
      said_.append(data.data(), static_cast<size_t>(n));
    for (size_t end = 0; (end = said_.find('\n')) != said_.npos; said_.erase(0, end + 1))
      log_info("{}: {}", name_, printable(said_.substr(0, end), kLongestLine));
  }

  std::string name_;
  fs::path log_;
  std::vector<std::string> command_;
  std::string job_;
  pid_t pid_ = 0;  // 0: it does not run
  Descriptor input_, output_;
  std::string said_;    // the beginning of a line
  std::string ending_;  // how it ended
  int restarts_ = 0;
  bool retried_ = false;  // at the end
  std::chrono::seconds pause_{1};
  steady_clock::time_point again_{};
};

std::mutex mutex;
std::vector<SideProcess> processes;

}  // namespace

std::vector<std::string> trackers(const config::JobConfig::Metrics& options) {
  std::vector<std::string> names;
  if (options.enable_wandb) names.emplace_back("wandb");
  if (options.enable_mlflow) names.emplace_back("mlflow");
  if (!options.alert_command.empty()) names.emplace_back("alert");
  return names;
}

void require_trackers(const config::JobConfig::Metrics& options, const TrackedRun& run) {
  const std::vector<std::string> names = trackers(options);
  if (names.empty()) return;
  const std::string python = python_of(options);
  const nlohmann::json job = {{"trackers", names}, {"options", options_json(options)}};
  Pipe input, output;
  pid_t pid = 0;
  if (const int error = spawn({python, script(run).string(), "--check"}, input.read_end.get(),
                              output.write_end.get(), "/dev/null", pid))
    throw_config(
        "metrics.tracking_python: {} cannot be run: {}; install Python 3.10 or newer, or name one that has "
        "the "
        "packages of the trackers",
        python, errno_text(error));
  send(input.write_end, line_of(job));
  input.write_end = Descriptor();
  output.write_end = Descriptor();
  std::string said;
  const auto deadline = steady_clock::now() + kCheckLimit;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    pollfd waits{.fd = output.read_end.get(), .events = POLLIN, .revents = 0};
    std::array<char, 4096> data{};
    if (left > 0 && ::poll(&waits, 1, static_cast<int>(left)) < 0 && errno == EINTR) continue;
    const ssize_t n = waits.revents != 0 ? ::read(output.read_end.get(), data.data(), data.size()) : -1;
    if (n <= 0) break;
    said.append(data.data(), static_cast<size_t>(n));
  }
  int status = 0;
  pid_t ended = 0;  // a package may hang while the interpreter ends
  while ((ended = ::waitpid(pid, &status, WNOHANG)) == 0 && steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (ended == 0) {
    ::kill(-pid, SIGKILL);  // it leads a session: its children end, too
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  if (!said.empty()) throw_config("{}", printable(said.substr(0, said.find('\n')), kLongestLine));
  throw_config(
      "metrics.tracking_python: {} did not say within {} s whether it has the packages of the trackers ({}): "
      "try {} -c 'import wandb'",
      python, kCheckLimit.count(),
      WIFSIGNALED(status) ? "ended by a signal" : fmt::format("code {}", WEXITSTATUS(status)), python);
}

void start_trackers(const config::JobConfig::Metrics& options, const TrackedRun& run) {
  const std::vector<std::string> names = trackers(options);
  std::error_code ignored;  // without the folder no process can be started, which is a warning
  if (!names.empty()) fs::create_directories(folder_of(run) / "tracking", ignored);
  const std::lock_guard lock(mutex);
  for (const std::string& name : names) processes.emplace_back(name, options, run);
}

void watch_trackers() {
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock) return;
  for (SideProcess& process : processes) process.watch();
}

void finish_trackers(int exit_code) {
  const std::lock_guard lock(mutex);
  for (SideProcess& process : processes) process.tell_end(exit_code);
  const auto deadline = steady_clock::now() + (exit_code == 0 ? kEndLimit : kFailedEndLimit);
  std::erase_if(processes, [&](SideProcess& process) {
    while (!process.finished(exit_code)) {
      if (steady_clock::now() >= deadline) {
        process.leave();
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  });
}

}  // namespace hyperion::metrics
