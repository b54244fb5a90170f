#include "base/failpoint.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "tests/support/temporary_folder.h"

namespace hyperion {
namespace {

std::string refusal(const std::string& spec) {
  try {
    arm_faults(spec, 0);
  } catch (const Error& error) {
    return error.code() == ExitCode::kUsage ? error.what() : "another exit code";
  }
  arm_faults("", 0);
  return "accepted";
}

int status_of(const std::string& spec) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // not the test runner's report
    arm_faults(spec, 0);
    failpoint("ckpt.plan");
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    int ignored = 0;
    ::waitpid(child, &ignored, 0);
  }
  return status;
}

}  // namespace

TEST_CASE("A failpoint fires at its nth call on its rank only") {
  arm_faults("rank=1;point=file.write;nth=2;action=errno:ENOSPC", 0);
  CHECK(failpoint("file.write").error_number == 0);
  CHECK(failpoint("file.write").error_number == 0);
  arm_faults("rank=1;point=file.write;nth=2;action=errno:ENOSPC,point=file.write;nth=0;on=meta;action=flip",
             1);
  CHECK(failpoint("file.write").error_number == 0);
  CHECK(failpoint("file.fsync").error_number == 0);
  CHECK(failpoint("file.write").error_number == ENOSPC);
  CHECK(failpoint("file.write").error_number == 0);
  CHECK(failpoint("file.write", "a/.metadata").flip);
  CHECK(failpoint("file.write", "a/.metadata").flip);
  CHECK_FALSE(failpoint("file.write", "a/shard").flip);
  arm_faults("", 1);
  CHECK_FALSE(failpoint("file.write", "a/.metadata").flip);
}

TEST_CASE("Failpoints kill and abort and stop the own process and throw") {
  const int killed = status_of("point=ckpt.plan;action=kill");
  CHECK((WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL));
  const int aborted = status_of("point=ckpt.plan;action=abort");
  CHECK((WIFSIGNALED(aborted) && WTERMSIG(aborted) == SIGABRT));
  const int stopped = status_of("point=ckpt.plan;action=stop");
  CHECK((WIFSTOPPED(stopped) && WSTOPSIG(stopped) == SIGSTOP));
  arm_faults("point=step.fwd;action=throw,point=step.bwd;action=sleep:0.001", 0);
  CHECK_NOTHROW(failpoint("step.bwd"));
  CHECK_THROWS_WITH(failpoint("step.fwd"), Catch::Contains("step.fwd"));
  arm_faults("", 0);
}

TEST_CASE("A failpoint waits until a file exists") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path() / "go";
  arm_faults("point=step.fwd;action=wait:" + path, 0);
  std::atomic<bool> passed = false;
  std::thread waiting([&] {
    failpoint("step.fwd");
    passed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK_FALSE(passed);
  std::ofstream(path).close();
  waiting.join();
  arm_faults("", 0);
}

TEST_CASE("Malformed faults are refused and say what is known") {
  CHECK_THAT(refusal("point=ckpt.nowhere;action=kill"), Catch::Contains("ckpt.before_commit"));
  CHECK_THAT(refusal("point=ckpt.plan;action=explode"), Catch::Contains("errno:NAME"));
  CHECK_THAT(refusal("point=file.write;action=errno:ENOTHING"), Catch::Contains("ENOTHING"));
  CHECK_THAT(refusal("point=ckpt.plan;action=errno:EIO"), Catch::Contains("no system call"));
  CHECK_THAT(refusal("point=ckpt.plan;action=short"), Catch::Contains("no system call"));
  for (const char* spec :
       {"x", ",", ";", "point=ckpt.plan", "action=kill", "point=ckpt.plan;action=kill;rank=-1",
        "point=ckpt.plan;action=kill;nth=two", "point=ckpt.plan;action=sleep",
        "point=ckpt.plan;action=sleep:nan", "point=ckpt.plan;action=kill,", "point=ckpt.plan;action=kill:9",
        "point=ckpt.plan;action=wait",
        "point=ckpt.plan;action=wait:", "point=ckpt.plan;action=kill;colour=red"}) {
    INFO(spec);
    CHECK_THAT(refusal(spec), Catch::StartsWith("FAULT: "));
  }
}

TEST_CASE("The variable FAULT is refused unless faults are allowed") {
  ::setenv("FAULT", "point=step.opt;action=throw", 1);
  CHECK_THROWS_WITH(arm_faults_from_environment(false, 0), Catch::Contains("--allow-faults"));
  CHECK_NOTHROW(failpoint("step.opt"));
  arm_faults_from_environment(true, 0);
  CHECK_THROWS_AS(failpoint("step.opt"), Error);
  arm_faults("", 0);
  ::unsetenv("FAULT");
  CHECK_NOTHROW(arm_faults_from_environment(false, 0));
}

}  // namespace hyperion
