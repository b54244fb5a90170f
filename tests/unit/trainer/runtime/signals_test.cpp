#include "trainer/runtime/signals.h"

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <signal.h>

#include "base/files.h"
#include "tests/support/in_child.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::trainer {

using Catch::Contains;

namespace {

struct Ended {
  int code;            // -1: by a signal
  std::string output;  // what it wrote to stdout
};

// Runs `action` in a process of its own.
Ended in_process(const std::function<void()>& action) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("stdout", "");
  const int status = in_child([&] {
    ::dup2(::open(file.c_str(), O_WRONLY), STDOUT_FILENO);
    action();
  });
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(file)};
}

[[noreturn]] void wait_for_ever() {
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace

TEST_CASE("a signal while a job starts ends it with the code of its kind") {
  for (const auto& [signal, code, name] :
       {std::tuple(SIGINT, 130, "Ctrl-C"), std::tuple(SIGTERM, 143, "TERM"),
        std::tuple(SIGUSR1, 143, "USR1")}) {
    CAPTURE(name);
    const Ended quiet =
        in_process([signal = signal] { handle_stop_signals(SignalPhase::kStart, false), ::raise(signal); });
    CHECK(quiet.code == code);
    CHECK(quiet.output.empty());
    const Ended said =
        in_process([signal = signal] { handle_stop_signals(SignalPhase::kStart, true), ::raise(signal); });
    CHECK(said.code == code);
    CHECK(said.output == "[hyperion] " + std::string(name) +
                             " received while the job was starting: it ends, and no step was made\n");
  }
}

TEST_CASE(
    "what is to be done before a signal ends a starting job is done, and a second signal does not wait for "
    "it") {
  const Ended acted = in_process([] {
    handle_stop_signals(SignalPhase::kStart, false);
    const BeforeEndBySignal before([](const std::string& signal) {
      const std::string text = "told the others of " + signal;
      [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
    });
    ::raise(SIGTERM);
    wait_for_ever();
  });
  CHECK(acted.code == 143);
  CHECK(acted.output == "told the others of TERM");

  const Ended twice = in_process([] {
    handle_stop_signals(SignalPhase::kStart, false);
    const BeforeEndBySignal before([](const std::string&) { wait_for_ever(); });
    ::raise(SIGTERM);
    ::raise(SIGINT);
  });
  CHECK(twice.code == 130);

  const Ended over = in_process([] {
    handle_stop_signals(SignalPhase::kStart, false);
    {
      const BeforeEndBySignal before([](const std::string&) { wait_for_ever(); });
    }
    ::raise(SIGTERM);
  });
  CHECK(over.code == 143);
}

TEST_CASE("in training the first signal is remembered and the process goes on") {
  for (const auto& [signal, stop] :
       {std::pair(SIGINT, StopSignal::kInterrupt), std::pair(SIGTERM, StopSignal::kTerminate),
        std::pair(SIGUSR1, StopSignal::kTerminate)}) {
    CAPTURE(signal);
    const Ended ended = in_process([signal = signal, stop = stop] {
      handle_stop_signals(SignalPhase::kTraining, false);
      if (stop_signal() != StopSignal::kNone) ::_exit(2);
      ::raise(signal);
      if (stop_signal() != stop) ::_exit(3);
      ::raise(SIGUSR1);  // SLURM may warn again: nothing changes
      if (stop_signal() != stop) ::_exit(4);
    });
    CHECK(ended.code == 0);
    CHECK(ended.output.empty());
  }
}

TEST_CASE("a second Ctrl-C or TERM ends a training at once") {
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    CAPTURE(signal);
    const Ended ended = in_process([signal = signal] {
      handle_stop_signals(SignalPhase::kTraining, false), ::raise(SIGUSR1), ::raise(signal);
    });
    CHECK(ended.code == code);
  }
}

TEST_CASE("a signal ends a dry run at once, in a step too, with a line that names the step") {
  for (const auto& [signal, code, name] :
       {std::tuple(SIGINT, 130, "Ctrl-C"), std::tuple(SIGTERM, 143, "TERM")}) {
    CAPTURE(name);
    const Ended ended = in_process([signal = signal] {
      handle_stop_signals(SignalPhase::kDryRun, true);
      set_running_step(7, 7);
      ::raise(signal);
    });
    CHECK(ended.code == code);
    CHECK(ended.output == "[hyperion] " + std::string(name) +
                              " received in step 7 of a dry run: it ends at once, as it has nothing to "
                              "save\n");
  }
}

TEST_CASE("the first signal of a training is answered with the step that it lets finish") {
  const auto answer = [](int64_t step, int64_t last, int signal) {
    return in_process([=] {
             handle_stop_signals(SignalPhase::kTraining, true);
             if (step > 0) set_running_step(step, last);
             ::raise(signal);
             ::raise(SIGUSR1);
           })
        .output;
  };
  CHECK(answer(12, 12, SIGTERM) ==
        "[hyperion] TERM received in step 12: stopping after it (a second one ends the job at once)\n");
  CHECK(answer(12, 12, SIGUSR1) == "[hyperion] USR1 received in step 12: stopping after it\n");
  CHECK(answer(12, 13, SIGUSR1) ==
        "[hyperion] USR1 received in step 12: stopping after step 13 at the latest\n");
  CHECK(answer(0, 0, SIGINT) ==
        "[hyperion] Ctrl-C received: stopping before the first step (a second one ends the job at once)\n");
}

}  // namespace hyperion::trainer
