#include "parallel/health/failure_reports.h"

#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/rank_list.h"
#include "parallel/job/rendezvous.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// Keys of the store.
constexpr const char* kReports = "failure/reports";      // "RANK\tGROUP\tREPORT\n" of each rank that failed
constexpr const char* kCollector = "failure/collector";  // the rank that names the others
constexpr const char* kSummary = "failure/summary";  // lost ranks, failed ranks, some reports; a line each

constexpr int kQuoted = 3;  // number of reports quoted in a message

constexpr milliseconds kTick{100};

// Polls until done(), for `timeout` at most. Time is counted in ticks, so that a suspended process does not
// find it over when it resumes.
bool wait_until(milliseconds timeout, const auto& done) {
  for (; !done(); timeout -= kTick) {
    if (timeout <= milliseconds(0)) return false;
    std::this_thread::sleep_for(kTick);
  }
  return true;
}

// "0:1:1024,2000:8:4": first rank, distance and number of ranks of each run. A group of a mesh is one run.
std::string pack_ranks(std::span<const int> ranks) {
  std::string text;
  for (size_t at = 0; at < ranks.size();) {
    const int step = at + 1 < ranks.size() ? ranks[at + 1] - ranks[at] : 1;
    size_t count = 1;
    while (at + count < ranks.size() && ranks[at + count] - ranks[at + count - 1] == step) ++count;
    text += fmt::format("{}{}:{}:{}", text.empty() ? "" : ",", ranks[at], step, count);
    at += count;
  }
  return text;
}

std::vector<int> unpack_ranks(const std::string& text) {
  std::vector<int> ranks;
  std::istringstream in(text);
  int first = 0, step = 0, count = 0;
  for (char mark = 0; in >> first >> mark >> step >> mark >> count; in >> mark)
    for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return ranks;
}

struct Reports {
  std::map<int, std::string> of_rank;
  std::set<int> missing;  // ranks of their groups without a report
};

Reports read_reports(c10d::Store& store) {
  Reports reports;
  std::set<std::string> groups;
  std::istringstream lines(store.get_to_str(kReports));
  for (std::string line; std::getline(lines, line);) {
    const size_t group = line.find('\t') + 1, report = line.find('\t', group) + 1;
    reports.of_rank[std::stoi(line)] = line.substr(report);
    groups.insert(line.substr(group, report - 1 - group));
  }
  for (const std::string& group : groups)
    for (const int rank : unpack_ranks(group))
      if (!reports.of_rank.contains(rank)) reports.missing.insert(rank);
  return reports;
}

}  // namespace

int leave_failure_report(c10d::Store& store, int own_rank, const std::vector<int>& group,
                         const std::string& report) {
  std::string line = fmt::format("{}\t{}\t{}", own_rank, pack_ranks(group), report);
  std::ranges::replace(line, '\n', ' ');
  line += '\n';
  store.append(kReports, {line.begin(), line.end()});
  return std::stoi(store.compareSet(kCollector, "", std::to_string(own_rank)));
}

void collect_failure_reports(c10d::Store& store, milliseconds timeout, const std::vector<int>& ended) {
  Reports reports;
  wait_until(timeout, [&] {
    reports = read_reports(store);
    return std::ranges::includes(ended, reports.missing);
  });
  std::vector<int> failed;
  std::string quoted;
  for (const auto& [rank, report] : reports.of_rank) {
    // One more report is published, because one may be the reader's own.
    if (failed.size() <= kQuoted) quoted += fmt::format("{}\t{}\n", rank, report);
    failed.push_back(rank);
  }
  const std::vector<int> lost(reports.missing.begin(), reports.missing.end());
  store.set(kSummary, fmt::format("{}\n{}\n{}", pack_ranks(lost), pack_ranks(failed), quoted));
}

namespace {

PostMortem read_summary(c10d::Store& store, int own_rank) {
  std::istringstream lines(store.get_to_str(kSummary));
  std::string line;
  const auto other_ranks = [&] {  // this one may have failed later than the others
    std::getline(lines, line);
    std::vector<int> ranks = unpack_ranks(line);
    std::erase(ranks, own_rank);
    return ranks;
  };
  const std::vector<int> lost = other_ranks(), failed = other_ranks();
  std::string text;
  if (!lost.empty()) text = fmt::format("; no word from rank {}: see its log first", rank_list(lost));
  int quoted = 0;
  while (quoted < kQuoted && std::getline(lines, line)) {
    const int rank = std::stoi(line);
    if (rank == own_rank) continue;
    text += fmt::format("; rank {} failed too: {}", rank, line.substr(line.find('\t') + 1));
    ++quoted;
  }
  const int more = static_cast<int>(failed.size()) - quoted;
  if (more > 0) text += fmt::format("; and {} more ranks", more);
  return {text, lost};
}

}  // namespace

PostMortem read_failure_reports(c10d::Store& store, int own_rank, int collector, milliseconds timeout) {
  const bool answered = wait_for_keys(store, {kSummary}, timeout);
  if (!answered) {
    // The collector is lost or its host is busy: the first rank that has waited this long replaces it.
    const std::string now = store.compareSet(kCollector, std::to_string(collector), std::to_string(own_rank));
    if (std::stoi(now) == own_rank) collect_failure_reports(store, milliseconds(0));
  }
  const PostMortem result =
      answered || wait_for_keys(store, {kSummary}, seconds(1)) ? read_summary(store, own_rank) : PostMortem();
  if (!answered && result.lost.empty())
    return {fmt::format("; rank {}, which asks the others, does not answer: see its log first", collector),
            {collector}};
  return result;
}

// If the network to the store's host is down, its calls do not return. So they run on a thread of their
// own, which is leaked when it takes too long.
PostMortem exchange_failure_reports(const c10::intrusive_ptr<c10d::Store>& store, int own_rank,
                                    const std::vector<int>& group, const std::string& operation,
                                    const std::string& phase, milliseconds response_timeout,
                                    const std::vector<int>& ended) {
  std::packaged_task<PostMortem()> exchange([store, own_rank, group,
                                             report = fmt::format("{} in phase '{}'", operation, phase),
                                             response_timeout, ended] {
    const int collector = leave_failure_report(*store, own_rank, group, report);
    if (collector == own_rank) collect_failure_reports(*store, response_timeout, ended);
    if (!ended.empty()) return PostMortem();
    return read_failure_reports(*store, own_rank, collector, response_timeout + seconds(1));
  });
  std::future<PostMortem> answer = exchange.get_future();
  const auto begin = Clock::now();
  try {
    std::thread(std::move(exchange)).detach();
    if (wait_until(response_timeout + seconds(3),
                   [&] { return answer.wait_for(seconds(0)) == std::future_status::ready; })) {
      if (own_rank == 0) {
        // The store ends with rank 0: ranks whose operation fails a little later must still be able to read
        // it.
        std::this_thread::sleep_until(begin + response_timeout);
        wait_until(response_timeout / 2, [] { return false; });
      }
      return answer.get();
    }
  } catch (const std::exception&) {
  }
  return {"; rank 0, which holds the rendezvous, does not answer: see its log first", {0}};
}

}  // namespace hyperion::parallel
