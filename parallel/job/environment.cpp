#include "parallel/job/environment.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include <arpa/inet.h>

#include "base/error.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/text.h"

namespace hyperion::parallel {
namespace {

constexpr int kMaxRanks = 1 << 20;
constexpr size_t kMaxHosts = 100000;
constexpr std::string_view kBatchStep = "4294967291", kInteractiveStep = "4294967290";  // of slurm.h

// Reads integers and text from the environment, with errors that name the variable.
class Reader {
 public:
  explicit Reader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  // An empty variable counts as absent: launchers often export variables for which they have no value.
  std::optional<std::string> text(const std::string& name) const {
    auto value = lookup_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  template <typename Number>
  std::optional<Number> number(const std::string& name, Number low, Number high) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const auto result = parse_number<Number>(*value);
    if (!result || *result < low || *result > high)
      throw_config("environment variable {} is '{}', expected a whole number from {} to {}", name, *value,
                   low, high);
    return result;
  }
  int required(const std::string& name, int low, int high, const std::string& because) const {
    const auto value = number(name, low, high);
    if (!value)
      throw_config("environment variable {} is not set, but {} is: start all ranks with one launcher", name,
                   because);
    return *value;
  }

 private:
  const EnvironmentLookup& lookup_;
};

void read_master(const Reader& reader, Environment& environment) {
  if (const auto address = reader.text("MASTER_ADDR")) environment.master_addr = *address;
  if (const auto port = reader.number("MASTER_PORT", 1, 65535)) environment.master_port = *port;
  const std::string problem = address_problem(environment.master_addr);
  if (environment.world_size > 1 && !problem.empty())
    throw_config(
        "environment variable MASTER_ADDR is '{}', expected the name or address of rank 0's host: {}",
        printable(environment.master_addr), problem);
}

Environment read_torchrun(const Reader& reader) {
  Environment environment;
  const int world = reader.required("WORLD_SIZE", 1, kMaxRanks, "RANK");
  environment.world_size = world;
  environment.rank = reader.required("RANK", 0, world - 1, "WORLD_SIZE");
  const int local_world = reader.number("LOCAL_WORLD_SIZE", 1, world).value_or(world);
  environment.local_world_size = local_world;
  environment.local_rank =
      reader.number("LOCAL_RANK", 0, local_world - 1).value_or(environment.rank % local_world);
  environment.node = reader.number("GROUP_RANK", 0, world - 1).value_or(environment.rank / local_world);
  if (world > 1) {
    reader.required("MASTER_PORT", 1, 65535, "RANK");
    if (!reader.text("MASTER_ADDR"))
      throw_config("environment variable MASTER_ADDR is not set, but RANK is: set it to the host of rank 0");
  }
  read_master(reader, environment);
  environment.agent_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  environment.restart_count = reader.number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 20).value_or(0);
  return environment;
}

// This host's entry of "4(x2),3": 4 tasks on the first two hosts, 3 on the third.
int slurm_tasks_on_node(const Reader& reader, const Environment& environment) {
  const char* name =
      reader.text("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  const auto list = reader.text(name);
  if (!list)
    throw_config(
        "environment variable SLURM_TASKS_PER_NODE is not set, but SLURM_PROCID is: start the ranks with "
        "srun");
  int64_t nodes = 0;
  for (const std::string_view entry : split(*list, ',')) {
    const size_t open = entry.find("(x");
    const auto tasks = parse_number<int>(entry.substr(0, open));
    std::optional<int> repeat = 1;
    if (open != entry.npos)
      repeat = entry.ends_with(')') ? parse_number<int>(entry.substr(open + 2, entry.size() - open - 3))
                                    : std::nullopt;
    if (!tasks || *tasks < 1 || *tasks > environment.world_size || !repeat || *repeat < 1) break;
    nodes += *repeat;
    if (environment.node < nodes) return *tasks;
  }
  throw_config("environment variable {} is '{}', expected a list like 4(x2),3 with an entry for host {}",
               name, *list, environment.node);
}

Environment read_slurm(const Reader& reader) {
  Environment environment;
  const int world = reader.required("SLURM_NTASKS", 1, kMaxRanks, "SLURM_PROCID");
  environment.world_size = world;
  environment.rank = reader.required("SLURM_PROCID", 0, world - 1, "SLURM_NTASKS");
  environment.local_rank = reader.required("SLURM_LOCALID", 0, world - 1, "SLURM_PROCID");
  environment.node = reader.number("SLURM_NODEID", 0, world - 1).value_or(0);
  const auto list = reader.text("SLURM_STEP_NODELIST") ? reader.text("SLURM_STEP_NODELIST")
                                                       : reader.text("SLURM_JOB_NODELIST");
  if (world > 1 && !list)
    throw_config(
        "environment variable SLURM_JOB_NODELIST is not set, but SLURM_PROCID is: start the ranks with srun");
  const auto hosts = list ? expand_node_list(*list) : std::vector<std::string>{"127.0.0.1"};
  environment.local_world_size =
      static_cast<int>(hosts.size() == 1 ? world : slurm_tasks_on_node(reader, environment));
  environment.master_addr = hosts.size() == 1 ? "127.0.0.1" : hosts.front();
  // Jobs on one host must not meet: 10,000 ports above the well-known ones and below Linux's ephemeral range
  // (32768).
  environment.master_port =
      static_cast<int>(20000 + reader.number<int64_t>("SLURM_JOB_ID", 0, INT64_MAX).value_or(0) % 10000);
  read_master(reader, environment);
  const auto step = reader.text("SLURM_STEP_ID");
  environment.batch_shell = world > 1 && environment.rank == 0 && reader.text("SLURM_JOB_ID") &&
                            (!step || step == kBatchStep || step == kInteractiveStep);
  return environment;
}

// Appends the hosts of one element, "prefix[0-3,7]suffix" with any number of bracketed parts.
void expand_element(std::string_view prefix, std::string_view rest, std::string_view list, int depth,
                    std::vector<std::string>& hosts) {
  const auto malformed = [&](const char* why) {
    throw_config("SLURM node list '{}' is malformed: {}; set MASTER_ADDR to the host of rank 0", list, why);
  };
  const size_t open = rest.find('[');
  if (open == std::string_view::npos) {
    if (rest.find(']') != std::string_view::npos) malformed("']' without '['");
    if (prefix.empty() && rest.empty()) malformed("an empty host name");
    if (hosts.size() >= kMaxHosts) malformed("more than 100,000 hosts");
    hosts.emplace_back(std::string(prefix).append(rest));
    return;
  }
  const size_t close = rest.find(']', open);
  if (close == std::string_view::npos) malformed("'[' without ']'");
  if (depth > 8) malformed("more than eight bracketed parts in one name");
  const std::string stem = std::string(prefix).append(rest.substr(0, open));
  const auto parse = [&](std::string_view text) {
    const auto value = parse_number<int>(text);
    if (!value || *value < 0 || text.size() > 9 || text[0] == '-')
      malformed("a range is not of the form 3 or 3-7");
    return *value;
  };
  for (const std::string_view range : split(rest.substr(open + 1, close - open - 1), ',')) {
    const size_t dash = range.find('-');
    const std::string_view low_text = range.substr(0, dash);
    const int low = parse(low_text), high = dash == range.npos ? low : parse(range.substr(dash + 1));
    if (high < low) malformed("a range runs backwards");
    for (int i = low; i <= high; ++i)
      expand_element(stem + fmt::format("{:0{}}", i, low_text.size()), rest.substr(close + 1), list,
                     depth + 1, hosts);
  }
}

}  // namespace

Environment read_environment(const EnvironmentLookup& lookup) {
  const Reader reader(lookup);
  if (reader.text("RANK") || reader.text("WORLD_SIZE")) return read_torchrun(reader);
  // Inside an interactive allocation SLURM_NTASKS is set without a rank: that is one process.
  if (reader.text("SLURM_PROCID")) return read_slurm(reader);
  return {};
}

void require_started_ranks(const Environment& environment) {
  if (environment.batch_shell)
    throw_config(
        "this is the batch shell of SLURM job {} (SLURM_NTASKS is {}), outside of a step that srun starts, "
        "and no other rank was started: start the program with srun, as scripts/train.slurm does, or with "
        "scripts/train.sh",
        environment_variable("SLURM_JOB_ID").value_or(""), environment.world_size);
}

std::string address_problem(const std::string& address) {
  in_addr four{};
  in6_addr six{};
  const std::string unscoped = address.substr(0, address.find('%'));  // "fe80::1%eth0"
  if (::inet_aton(address.c_str(), &four) != 0 && address.find_first_of(" \t\r\n") == address.npos) return "";
  if (::inet_pton(AF_INET6, unscoped.c_str(), &six) == 1) return "";
  if (std::ranges::any_of(address, [](unsigned char c) { return c <= ' ' || c == 0x7f; }))
    return "remove the blanks";
  if (address.find("://") != address.npos) return "it is a URL: leave out what is not the host's name";
  if (address.starts_with('[')) return "write an IPv6 address without brackets, and a port into MASTER_PORT";
  if (std::ranges::count(address, ':') == 1) return "write the port into MASTER_PORT";
  if (address.find(':') != address.npos) return "it has colons and is no IPv6 address";
  const std::string_view name = std::string_view(address).substr(0, address.size() - address.ends_with('.'));
  const std::vector<std::string_view> labels = split(name, '.');
  const auto is_label = [](std::string_view label) {
    return !label.empty() && label.size() <= 63 && label.front() != '-' &&
           std::ranges::all_of(label,
                               [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; });
  };
  if (name.size() > 253 || !std::ranges::all_of(labels, is_label))
    return "a name has letters, digits, hyphens and dots alone";
  if (std::ranges::all_of(labels.back(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    return "it ends like an IPv4 address and is none";
  return "";
}

Environment read_environment() {
  return read_environment(environment_variable);
}

std::vector<std::string> expand_node_list(std::string_view list) {
  std::vector<std::string> hosts;
  size_t start = 0;
  int depth = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') ++depth;
    if (i < list.size() && list[i] == ']') --depth;
    if (depth < 0 || depth > 1)
      throw_config(
          "SLURM node list '{}' is malformed: brackets do not match; set MASTER_ADDR to the host of rank 0",
          list);
    if (i == list.size() || (list[i] == ',' && depth == 0)) {
      expand_element("", list.substr(start, i - start), list, 0, hosts);
      start = i + 1;
    }
  }
  return hosts;
}

}  // namespace hyperion::parallel
