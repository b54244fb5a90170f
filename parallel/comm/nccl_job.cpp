#include "parallel/comm/nccl_job.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "base/device/error_text.h"
#include "base/gpu_fault.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/resources.h"
#include "base/text.h"
#include "parallel/comm/communicator.h"
#include "parallel/health/failure_detector.h"
#include "parallel/job/failure_record.h"
#include "parallel/job/network.h"
#include "parallel/job/phase.h"

namespace hyperion::parallel {
namespace {

std::terminate_handler terminate_before = nullptr;

[[noreturn]] void end_process(ExitCode code, const std::string& why) {
  std::string message = why;
  if (code == ExitCode::kBug) message = "internal error on the GPU: " + why;
  if (code == ExitCode::kCommunication) {
    const std::string phase = current_phase();
    record_failed_operation({"", 0, "", phase, why});
    const PostMortem post_mortem = FailureDetector::find_lost_ranks_of_process(phase);
    record_lost_ranks(post_mortem.lost);
    message = "communication failed: " + why + (post_mortem.cause.empty() ? "" : "; " + post_mortem.cause) +
              post_mortem.text;
  }
  spdlog::default_logger()->flush();
  ::_exit(report_failure(code, message));
}

[[noreturn]] void on_terminate() {
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::exception& error) {
    const auto fault = gpu_fault(error);
    if (const auto code = code_of_thread_failure(error))
      end_process(*code, fault ? gpu_fault_message(*fault) : brief(error));
  } catch (...) {
  }
  if (terminate_before != nullptr) terminate_before();
  std::abort();
}

// Called in a SIGABRT handler: returns the file name of the library that called abort() itself; empty if
// the C library did, after a corrupt heap or a failed assertion. Allocates nothing.
std::string_view library_that_aborted() {
  void* frames[32];
  bool in_abort = false;
  for (int i = 0, n = ::backtrace(frames, std::size(frames)); i < n; ++i) {
    Dl_info library{};
    const bool known = ::dladdr(frames[i], &library) != 0 && library.dli_fname != nullptr;
    if (in_abort) {
      if (!known) return {};
      const std::string_view path = library.dli_fname;
      return path.substr(path.rfind('/') + 1);
    }
    in_abort = known && library.dli_sname != nullptr && std::string_view(library.dli_sname) == "abort";
  }
  return {};
}

// The driver and NCCL abort over a GPU or link failure they cannot handle. Any other SIGABRT, also one sent
// from outside, ends the process as if this handler did not exist.
void end_on_abort(int, siginfo_t* info, void*) {
  ::signal(SIGABRT, SIG_DFL);
  if (info->si_code == SI_TKILL && info->si_pid == ::getpid()) {
    const std::string_view library = library_that_aborted();
    if (library.starts_with("libcuda.so") || library.starts_with("libnccl.so")) {
      ::alarm(5);  // ends the process if the calls below wait for the aborting thread
      end_process(ExitCode::kHardware, gpu_fault_message({0, fmt::format("{} ended the process", library)}));
    }
  }
  ::raise(SIGABRT);
}

}  // namespace

std::optional<ExitCode> code_of_thread_failure(const std::exception& error) {
  if (exhausted_resource(error)) return std::nullopt;
  if (gpu_fault(error)) return ExitCode::kHardware;
  // The watchdog turns every error into a communication error; only the text says what it was.
  const std::string_view text = error.what();
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr ||
      text.find("CUDA error: ") != std::string_view::npos)
    return ExitCode::kBug;
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return ExitCode::kCommunication;
  return std::nullopt;
}

void report_failures_of_threads() {
  void* frame;
  ::backtrace(&frame, 1);  // loads libgcc now, which a signal handler must not do
  struct sigaction action = {};
  action.sa_sigaction = end_on_abort;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigaction(SIGABRT, &action, nullptr);
  if (std::get_terminate() != on_terminate) terminate_before = std::set_terminate(on_terminate);
}

namespace {

class Variable {
 public:
  Variable(const EnvironmentLookup& lookup, const char* name) : name_(name), value_(lookup(name)) {}
  explicit operator bool() const { return value_.has_value(); }
  const std::string& value() const { return *value_; }
  bool is(std::string_view value) const { return value_ == value; }
  bool is_on() const { return is("1") || is("true") || is("yes") || is("y"); }
  std::string shown() const { return fmt::format("{}={}", name_, printable(*value_)); }

 private:
  const char* name_;
  std::optional<std::string> value_;
};

// libtorch reads the first name and falls back to the second one.
void refuse_two_names_of_one_setting(const EnvironmentLookup& lookup, std::vector<std::string>& refused) {
  for (const auto& [name, older] : kOlderNames) {
    const Variable one(lookup, name), other(lookup, older);
    if (one && other && !other.is(one.value()))
      refused.push_back(fmt::format("{} and {} are two names of one setting: unset one of them", one.shown(),
                                    other.shown()));
  }
}

void refuse_what_hides_failures(const EnvironmentLookup& lookup, std::vector<std::string>& refused) {
  if (Variable(lookup, "TORCH_NCCL_BLOCKING_WAIT").is_on() || Variable(lookup, "NCCL_BLOCKING_WAIT").is_on())
    refused.emplace_back(
        "TORCH_NCCL_BLOCKING_WAIT=1 makes the host wait for each collective and its watchdog end nothing: "
        "unset it; comm.train_timeout_seconds is the limit of a collective");
  if (Variable(lookup, "TORCH_NCCL_USE_COMM_NONBLOCKING").is_on())
    refused.emplace_back(
        "TORCH_NCCL_USE_COMM_NONBLOCKING=1 connects the ranks in the background, but they are connected at "
        "start here, before memory is full: unset it");
  if (!Variable(lookup, "TORCH_NCCL_DUMP_ON_TIMEOUT").is_on()) return;
  if (const Variable mode(lookup, "TORCH_NCCL_ASYNC_ERROR_HANDLING"); mode && !mode.is("3"))
    refused.push_back(fmt::format(
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 asks for a dump of the flight recorder, but with {} a failed "
        "collective ends before it is written: set it to 3, or unset it",
        mode.shown()));
  for (const char* name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"})
    if (Variable(lookup, name).is("0"))
      refused.push_back(
          fmt::format("TORCH_NCCL_DUMP_ON_TIMEOUT=1 asks for a dump of the flight recorder, which {}=0 "
                      "turns off: unset one of them",
                      name));
}

// NCCL's rule: a list of prefixes, "=" before it for exact names, "^" for all but these.
bool names_an_interface(std::string_view list, const std::set<std::string>& interfaces) {
  if (list.empty() || list.front() == '^') return true;
  const bool exact = list.front() == '=';
  for (const std::string_view entry : split(list.substr(exact ? 1 : 0), ',')) {
    const std::string_view name = entry.substr(0, entry.find(':'));  // a port may follow
    const auto is_named = [&](std::string_view interface) {
      return exact ? interface == name : interface.starts_with(name);
    };
    if (!name.empty() && std::ranges::any_of(interfaces, is_named)) return true;
  }
  return false;
}

}  // namespace

VariableProblems contradicting_variables(const EnvironmentLookup& lookup,
                                         const std::set<std::string>& interfaces) {
  VariableProblems problems;
  refuse_two_names_of_one_setting(lookup, problems.refused);
  refuse_what_hides_failures(lookup, problems.refused);
  if (const Variable wanted(lookup, "NCCL_SOCKET_IFNAME");
      wanted && !names_an_interface(wanted.value(), interfaces))
    problems.refused.push_back(fmt::format("{} names no network interface of this host, which has {}",
                                           wanted.shown(), fmt::join(interfaces, ", ")));
  if (Variable(lookup, "CUDA_DEVICE_MAX_CONNECTIONS").is("1"))
    problems.warned.emplace_back(
        "CUDA_DEVICE_MAX_CONNECTIONS=1 makes streams run one after the other: gathers and reductions do not "
        "overlap with computation");
  return problems;
}

void require_consistent_variables() {
  std::set<std::string> interfaces;
  if (struct if_nameindex* const list = ::if_nameindex(); list != nullptr) {
    for (const struct if_nameindex* entry = list; entry->if_index != 0; ++entry)
      interfaces.insert(entry->if_name);
    ::if_freenameindex(list);
  }
  const VariableProblems problems = contradicting_variables(environment_variable, interfaces);
  for (const std::string& warning : problems.warned) log_warning("{}", warning);
  if (!problems.refused.empty()) throw_config("{}", fmt::join(problems.refused, "\n"));
}

}  // namespace hyperion::parallel
