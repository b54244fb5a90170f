#include "app/program.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/model_source.h"
#include "base/device/error_text.h"
#include "base/durable.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/gpu_fault.h"
#include "base/log.h"
#include "base/process.h"
#include "base/resources.h"
#include "base/standard_streams.h"
#include "base/terminal.h"
#include "parallel/comm/backend_communicator.h"
#include "parallel/comm/communicator.h"
#include "parallel/job/environment.h"
#include "parallel/job/failure_record.h"
#include "parallel/job/phase.h"
#include "parallel/job/rendezvous.h"
#include "trainer/config/input_path.h"
#include "trainer/config/load.h"
#include "trainer/config/memory_advice.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"
#include "trainer/data/job_data.h"
#include "trainer/hugging_face/config.h"
#include "trainer/hugging_face/hf_model.h"
#include "trainer/metrics/gpu_sampler.h"
#include "trainer/metrics/tracking.h"
#include "trainer/runtime/signals.h"
#include "trainer/runtime/version.h"
#include "trainer/trainer.h"

namespace hyperion::app {
namespace {

std::optional<int> rank_of_job;  // set by train()
struct {
  std::string host, gpu;
} advice_on_memory;  // set by train() when the configuration is known: for the memory of either
bool ends_without_destructors = false;  // set by train() when a job on a GPU has failed

ExitCode train(const CommandLine& line, const std::vector<std::string>& command,
               const parallel::Environment& environment) {
  const int rank = environment.rank;
  init_logging(!rank_prints(rank));
  trainer::handle_stop_signals(trainer::SignalPhase::kStart, rank_prints(rank));
  std::optional<trainer::BeforeEndBySignal> before_end;
  if (rank > 0)
    before_end.emplace(
        [environment](const std::string& signal) { parallel::leave_ranks(environment, signal + " came"); });
  trainer::block_warning(false);
  arm_faults_from_environment(line.allow_faults, rank);
  ignore_file_size_signal();
  raise_open_file_limit();
  config::ResolvedConfig resolved =
      config::load_config(line.config_file, line.overrides, environment.world_size);
  config::expand_dump_folder(resolved);
  hugging_face::resolve_hf_model(resolved, config::install_root());
  advice_on_memory = {config::memory_advice(resolved.config, /*of_gpu=*/false),
                      config::memory_advice(resolved.config, /*of_gpu=*/true)};
  if (resolved.config.metrics.disable_color_printing) disable_terminal_escapes();
  log_info("Starting job: {}", resolved.config.job.description);
  for (const std::string& warning : resolved.warnings) log_warning("{}", warning);
  const std::vector<std::string> unused = config::keys_without_effect(resolved);
  if (!unused.empty()) log_info("Keys without effect, as they configure Python: {}", fmt::join(unused, ", "));
  for (const std::string& warning : config::keys_of_parallelism_without_effect(resolved))
    log_warning("{}", warning);
  if (resolved.config.job.print_config)
    log_info("Running with configuration: {}", config::to_json(resolved.config));
  auto trainer = std::make_unique<trainer::Trainer>(resolved, command);
  if (line.dump_state_dict) {
    print_text(trainer::state_table(trainer->components()));
    return ExitCode::kOk;
  }
  try {
    return trainer->run();
  } catch (...) {
    // A destructor that waits for the GPU may wait for a collective that a lost rank never joins.
    if (trainer->on_gpu()) {
      ends_without_destructors = true;
      static_cast<void>(trainer.release());
    }
    throw;
  }
}

ExitCode train(const CommandLine& line, const std::vector<std::string>& command) {
  ignore_closed_pipe();
  drop_stack_frames_from_cerr();
  // A dry run that RANK gives a place among NGPU ranks is one process; trainer::job_environment() reads both.
  const bool plays_a_rank = environment_variable("NGPU") && environment_variable("RANK") &&
                            environment_variable("WORLD_SIZE").value_or("").empty();
  const parallel::Environment environment =
      plays_a_rank ? parallel::Environment() : parallel::read_environment();
  parallel::require_started_ranks(environment);
  parallel::set_own_rank(environment);
  rank_of_job = environment.rank;
  try {
    return train(line, command, environment);
  } catch (const Error& error) {
    const std::string message = error.what();
    parallel::leave_ranks(environment, message.substr(0, message.find('\n')));
    throw;
  }
}

ExitCode show_config(const CommandLine& line) {
  config::ResolvedConfig resolved = config::load_config(line.config_file, line.overrides);
  hugging_face::resolve_hf_model(resolved, config::install_root());
  config::RunContext facts;
  facts.model = config::model_args(resolved.config.model);
  facts.export_problem = hugging_face::export_problem(*facts.model);
  config::require_valid_config(resolved, facts);
  print_text(config::to_toml(resolved, hugging_face::dimensions_of(resolved.config.model)));
  return ExitCode::kOk;
}

ExitCode run(const std::vector<std::string>& command) {
  const CommandLine line = parse_command_line({command.begin() + 1, command.end()}, terminal_width());
  if (line.action != CommandLine::Action::kTrain) {  // train() does both when it knows the rank
    trainer::block_warning(false);
    init_logging(/*quiet=*/false, LogStream::kStderr);
  }
  switch (line.action) {
    case CommandLine::Action::kShow:
      print_text(line.text);
      return ExitCode::kOk;
    case CommandLine::Action::kVersion:
      print_text(trainer::version_text());
      return ExitCode::kOk;
    case CommandLine::Action::kTrain:
      return train(line, command);
    case CommandLine::Action::kCheck:
      return check_command(line);
    case CommandLine::Action::kConfig:
      return show_config(line);
    case CommandLine::Action::kData:
      return data_command(line);
    case CommandLine::Action::kTokenize:
      return tokenize_command(line.tokenize);
    case CommandLine::Action::kGenerate:
      return generate_command(line.generate, model_source(line.generate));
    case CommandLine::Action::kEval:
      return eval_command(line.eval, model_source(line.eval));
    case CommandLine::Action::kCkpt:
      return ckpt_command(line.ckpt);
    case CommandLine::Action::kPlan:
      return plan_command(line);
    case CommandLine::Action::kReport:
      return report_command(line.report);
    case CommandLine::Action::kMonitor:
      return monitor_command(line.monitor);
  }
  throw_bug("unknown action");
}

// Names the exhausted resource, the phase and the remedy.
std::string exhausted_message(const ExhaustedResource& resource) {
  std::string message = rank_of_job ? fmt::format("rank {}: {}", *rank_of_job, resource.what) : resource.what;
  if (const std::string phase = parallel::phase_of_failure(); !phase.empty())
    message += fmt::format(" (phase '{}')", phase);
  if (resource.kind == ExhaustedResource::Kind::kThreads)
    return message +
           "; lower OMP_NUM_THREADS or the number of ranks, or raise the limit (ulimit -u, pids.max of the "
           "cgroup, or ulimit -v, which the threads' stacks count for)";
  if (resource.kind == ExhaustedResource::Kind::kFiles) return message;
  if (!rank_of_job) return message + "; give the command more memory, or pass fewer inputs";
  const std::string& advice = resource.on_gpu ? advice_on_memory.gpu : advice_on_memory.host;
  return message + "; " + (advice.empty() ? "give the job more memory" : advice);
}

int report_unexpected(const std::exception& error) {
  if (const auto resource = exhausted_resource(error))
    return parallel::report_failure(ExitCode::kResources, exhausted_message(*resource));
  if (const auto fault = gpu_fault(error))
    return parallel::report_failure(ExitCode::kHardware, gpu_fault_message(*fault));
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return parallel::report_failure(ExitCode::kBug, torch ? "internal error in libtorch: " + brief(*torch)
                                                        : std::string("internal error: ") + error.what());
}

std::terminate_handler terminate_before_run = nullptr;  // the handler that run_program() replaced

// Reports an exception without a handler, as in a library's thread.
void on_terminate() {
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::exception& error) {
    if (const auto resource = exhausted_resource(error))
      ::_exit(parallel::report_failure(ExitCode::kResources, exhausted_message(*resource)));
  } catch (...) {
  }
  terminate_before_run();
}

// libgomp calls exit(1) when it gets no memory or no thread. Its own message does not name the rank.
bool program_has_ended = false;
void on_exit_by_library() {
  if (program_has_ended) return;
  ::_exit(parallel::report_failure(
      ExitCode::kResources,
      exhausted_message({ExhaustedResource::Kind::kThreads,
                         "a library ended the process for want of memory or threads (its "
                         "message is above)"})));
}

int run_and_report(const std::vector<std::string>& command) {
  try {
    const ExitCode code = run(command);
    if (rank_of_job)
      return static_cast<int>(code);  // a training prints only its log: a closed stdout is no error
    if (code == ExitCode::kOk) flush_stdout();
    return static_cast<int>(code);
  } catch (const Error& error) {
    return parallel::report_failure(error.code(), error.what());
  } catch (const std::exception& error) {
    const auto* system = dynamic_cast<const std::system_error*>(&error);
    if (rank_of_job || system == nullptr || std::ferror(stdout) == 0) return report_unexpected(error);
    try {
      flush_stdout(system->code().value());  // what fmt::print throws when it cannot write
    } catch (const Error& unwritten) {
      return parallel::report_failure(unwritten.code(), unwritten.what());
    }
    return report_unexpected(error);
  }
}

}  // namespace

int run_program(const std::vector<std::string>& command) {
  keep_standard_streams();
  terminate_before_run = std::set_terminate(on_terminate);
  std::atexit(on_exit_by_library);
  const int code = run_and_report(command);
  metrics::finish_trackers(code);
  program_has_ended = true;
  // Destructors are skipped after memory or threads ran out: they may need either.
  const bool exhausted = code == static_cast<int>(ExitCode::kResources);
  if (exhausted || ends_without_destructors || parallel::nccl_communicators_leaked() ||
      metrics::gpu_sampler_left_behind()) {
    spdlog::default_logger()->flush();
    ::_exit(code);
  }
  return code;
}

}  // namespace hyperion::app
