#include "parallel/job/environment.h"

#include <map>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

using Variables = std::map<std::string, std::string>;
using Hosts = std::vector<std::string>;

Environment read(const Variables& variables) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const Variables kTorchrun = {{"RANK", "5"},           {"WORLD_SIZE", "8"},       {"LOCAL_RANK", "1"},
                             {"GROUP_RANK", "1"},     {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "head"},
                             {"MASTER_PORT", "29501"}};

const Variables kSlurm = {{"SLURM_PROCID", "4"},          {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "0"},         {"SLURM_NODEID", "1"},
                          {"SLURM_JOB_ID", "1234567"},    {"SLURM_JOB_NODELIST", "gpu[08-09]"},
                          {"SLURM_TASKS_PER_NODE", "4,3"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

}  // namespace

TEST_CASE("without variables the process is the only rank") {
  const Environment alone = read({});
  CHECK(alone.rank == 0);
  CHECK(alone.world_size == 1);
  CHECK(alone.single_host());
  CHECK(read({{"SLURM_NTASKS", "4"}}).world_size == 1);  // a shell inside an allocation
  CHECK(read({{"RANK", ""}, {"WORLD_SIZE", ""}}).world_size == 1);
}

TEST_CASE("torchrun variables are read") {
  const Environment environment = read(kTorchrun);
  CHECK(environment.rank == 5);
  CHECK(environment.world_size == 8);
  CHECK(environment.local_rank == 1);
  CHECK(environment.local_world_size == 4);
  CHECK(environment.node == 1);
  CHECK(environment.master_addr == "head");
  CHECK(environment.master_port == 29501);
  CHECK_FALSE(environment.single_host());
  CHECK_FALSE(environment.agent_store);
  const Environment agent =
      read(with(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RESTART_COUNT", "2"));
  CHECK(agent.agent_store);
  CHECK(agent.restart_count == 2);
}

TEST_CASE("malformed torchrun variables are named with their value") {
  CHECK(mentions(error_of(with(kTorchrun, "RANK", "8")), "RANK is '8'"));
  CHECK(mentions(error_of(with(kTorchrun, "RANK", "-1")), "RANK is '-1'"));
  CHECK(mentions(error_of(with(kTorchrun, "RANK", "1x")), "RANK is '1x'"));
  CHECK(mentions(error_of(with(kTorchrun, "WORLD_SIZE", "99999999999999999999")), "WORLD_SIZE is"));
  CHECK(mentions(error_of(with(kTorchrun, "WORLD_SIZE", "0")), "WORLD_SIZE is '0'"));
  CHECK(mentions(error_of(with(kTorchrun, "LOCAL_RANK", "4")), "LOCAL_RANK is '4'"));
  CHECK(mentions(error_of(with(kTorchrun, "LOCAL_WORLD_SIZE", "9")), "LOCAL_WORLD_SIZE is '9'"));
  CHECK(mentions(error_of(with(kTorchrun, "MASTER_PORT", "65536")), "MASTER_PORT is '65536'"));
  CHECK(mentions(error_of(with(kTorchrun, "MASTER_ADDR", "")), "MASTER_ADDR is not set"));
  CHECK(mentions(error_of({{"RANK", "0"}}), "WORLD_SIZE is not set"));
  CHECK(mentions(error_of({{"WORLD_SIZE", "2"}}), "RANK is not set"));
}

TEST_CASE("SLURM variables alone are enough") {
  const Environment environment = read(kSlurm);
  CHECK(environment.rank == 4);
  CHECK(environment.world_size == 7);
  CHECK(environment.local_rank == 0);
  CHECK(environment.local_world_size == 3);
  CHECK(environment.node == 1);
  CHECK(environment.master_addr == "gpu08");
  CHECK(environment.master_port == 20000 + 4567);
  CHECK(read(with(kSlurm, "SLURM_NODEID", "0")).local_world_size == 4);
  CHECK(read(with(kSlurm, "SLURM_TASKS_PER_NODE", "4(x2)")).local_world_size == 4);
  CHECK(read(with(kSlurm, "MASTER_ADDR", "10.0.0.7")).master_addr == "10.0.0.7");
  CHECK(read(with(kSlurm, "MASTER_PORT", "1234")).master_port == 1234);
  const Environment one_host = read(with(with(kSlurm, "SLURM_JOB_NODELIST", "gpu08"), "SLURM_LOCALID", "4"));
  CHECK(one_host.single_host());
  CHECK(one_host.master_addr == "127.0.0.1");
}

TEST_CASE("torchrun variables win over those of SLURM") {
  Variables both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  CHECK(read(both).rank == 5);
}

TEST_CASE("malformed SLURM variables are named") {
  CHECK(mentions(error_of(with(kSlurm, "SLURM_PROCID", "7")), "SLURM_PROCID is '7'"));
  CHECK(mentions(error_of(with(kSlurm, "SLURM_JOB_NODELIST", "")), "SLURM_JOB_NODELIST is not set"));
  CHECK(mentions(error_of(with(kSlurm, "SLURM_JOB_NODELIST", "n[1-")), "'n[1-' is malformed"));
  CHECK(mentions(error_of(with(kSlurm, "SLURM_LOCALID", "")), "SLURM_LOCALID is not set"));
  for (const char* tasks : {"4", "4(x", "4(x0)", "x", "4,", "0,3", "4(x-1),3"}) {
    CAPTURE(tasks);
    CHECK(mentions(error_of(with(kSlurm, "SLURM_TASKS_PER_NODE", tasks)), "SLURM_TASKS_PER_NODE"));
  }
}

TEST_CASE("an address that no host can have is refused at once with what to write") {
  const std::pair<const char*, const char*> none[] = {{"[::1]", "without brackets"},
                                                      {"[fe80::1]:29500", "without brackets"},
                                                      {"head:29500", "into MASTER_PORT"},
                                                      {"127.0.0.1:29500", "into MASTER_PORT"},
                                                      {"tcp://head", "is a URL"},
                                                      {"https://head:1/x", "is a URL"},
                                                      {" head", "remove the blanks"},
                                                      {"head ", "remove the blanks"},
                                                      {"127.0.0.1 ", "remove the blanks"},
                                                      {"he ad", "remove the blanks"},
                                                      {" ", "remove the blanks"},
                                                      {"head\n", "remove the blanks"},
                                                      {"1:2:3", "no IPv6 address"},
                                                      {"fe80::g%eth0", "no IPv6 address"},
                                                      {"head,other", "letters, digits"},
                                                      {"head/29500", "letters, digits"},
                                                      {"a..b", "letters, digits"},
                                                      {"-head", "letters, digits"},
                                                      {"<head>", "letters, digits"},
                                                      {"10.0.0.256", "IPv4"},
                                                      {"10.0.0.0.1", "IPv4"}};
  for (const auto& [address, text] : none) {
    CAPTURE(address);
    const std::string error = error_of(with(kTorchrun, "MASTER_ADDR", address));
    CHECK(mentions(error, "MASTER_ADDR is '"));
    CHECK(mentions(error, text));
    CHECK(!error_of(with(kSlurm, "MASTER_ADDR", address)).empty());
  }
  for (const char* address : {"head", "gpu-08.cluster_1.example.", "10.0.0.7", "::1", "fe80::1%eth0",
                              "2001:db8::7", "::ffff:10.0.0.7", "n0", "7up"}) {
    CAPTURE(address);
    CHECK(read(with(kTorchrun, "MASTER_ADDR", address)).master_addr == address);
  }
  // One process waits for nobody.
  CHECK(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "[::1]"}}).world_size == 1);
}

TEST_CASE("a batch shell that srun has not started is told from a rank") {
  Variables batch = with(with(kSlurm, "SLURM_PROCID", "0"), "SLURM_NODEID", "0");
  CHECK(read(batch).batch_shell);
  CHECK_THROWS_WITH(require_started_ranks(read(batch)), Catch::Contains("srun"));
  CHECK(read(with(batch, "SLURM_STEP_ID", "4294967291")).batch_shell);
  CHECK_FALSE(read(with(batch, "SLURM_STEP_ID", "0")).batch_shell);
  CHECK_FALSE(read(with(with(batch, "SLURM_NTASKS", "1"), "SLURM_TASKS_PER_NODE", "1")).batch_shell);
  CHECK_FALSE(read(with(batch, "SLURM_PROCID", "1")).batch_shell);
  CHECK_NOTHROW(require_started_ranks(read(with(batch, "SLURM_STEP_ID", "3"))));
}

TEST_CASE("node lists expand") {
  CHECK(expand_node_list("head") == Hosts{"head"});
  CHECK(expand_node_list("n[0-2,7],gpu1") == Hosts{"n0", "n1", "n2", "n7", "gpu1"});
  CHECK(expand_node_list("n[08-10]") == Hosts{"n08", "n09", "n10"});
  CHECK(expand_node_list("r[1-2]n[3,5]-ib") == Hosts{"r1n3-ib", "r1n5-ib", "r2n3-ib", "r2n5-ib"});
}

TEST_CASE("malformed and hostile node lists are refused") {
  for (const char* list : {"", ",", "a,", "n[", "n]", "n[1", "n[]", "n[1-]", "n[-1]", "n[3-1]", "n[a]",
                           "n[1,]", "n[[1]]", "n[0-999999999]", "n[0-99999][0-99999]", "n[1]]", "n[1-2-3]"}) {
    CAPTURE(list);
    CHECK_THROWS_AS(expand_node_list(list), Error);
  }
  std::string deep = "n";
  for (int i = 0; i < 100000; ++i) deep += "[0]";
  CHECK_THROWS_AS(expand_node_list(deep), Error);
}

}  // namespace hyperion::parallel
