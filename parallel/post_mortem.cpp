#include "parallel/post_mortem.h"

#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/rank_list.h"

namespace hyperion::parallel {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// Keys of the store.
constexpr const char* kNotes = "post_mortem/notes";          // "RANK\tGROUP\tNOTE\n" of each rank that failed
constexpr const char* kCollector = "post_mortem/collector";  // the rank that names the others
constexpr const char* kFound = "post_mortem/found";  // its words: silent ranks, failed ranks, some notes

constexpr int kReported = 3;  // notes in a message

// Waiting is counted in these, so that a process which stands still, as all do on a host that does, does not
// find its time over when it goes on.
constexpr milliseconds kTick{100};

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

struct Notes {
  std::map<int, std::string> of_rank;
  std::set<int> silent;  // of the groups of those ranks
};

Notes parse_notes(const std::string& text) {
  Notes notes;
  std::set<std::string> groups;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t group = line.find('\t') + 1, note = line.find('\t', group) + 1;
    notes.of_rank[std::stoi(line)] = line.substr(note);
    groups.insert(line.substr(group, note - 1 - group));
  }
  for (const std::string& group : groups)
    for (const int rank : unpack_ranks(group))
      if (!notes.of_rank.contains(rank)) notes.silent.insert(rank);
  return notes;
}

}  // namespace

int leave_failure_note(c10d::Store& store, int own_rank, const std::vector<int>& group,
                       const std::string& note) {
  std::string line = fmt::format("{}\t{}\t{}", own_rank, pack_ranks(group), note);
  std::ranges::replace(line, '\n', ' ');
  line += '\n';
  store.append(kNotes, {line.begin(), line.end()});
  return std::stoi(store.compareSet(kCollector, "", std::to_string(own_rank)));
}

void collect_failure_notes(c10d::Store& store, milliseconds patience, const std::vector<int>& lost) {
  Notes notes = parse_notes(store.get_to_str(kNotes));
  for (milliseconds left = patience; !std::ranges::includes(lost, notes.silent) && left > milliseconds(0);
       left -= kTick) {
    std::this_thread::sleep_for(kTick);
    notes = parse_notes(store.get_to_str(kNotes));
  }
  std::vector<int> failed;
  std::string some;
  for (const auto& [rank, note] : notes.of_rank) {
    if (failed.size() <= kReported) some += fmt::format("{}\t{}\n", rank, note);  // one may be the reader's
    failed.push_back(rank);
  }
  const std::vector<int> silent(notes.silent.begin(), notes.silent.end());
  store.set(kFound, fmt::format("{}\n{}\n{}", pack_ranks(silent), pack_ranks(failed), some));
}

namespace {

bool is_published(c10d::Store& store, milliseconds patience) {
  try {
    store.wait({kFound}, patience);
    return true;
  } catch (const c10::DistStoreError&) {
    return false;
  }
}

Communicator::PostMortem published_notes(c10d::Store& store, int own_rank) {
  std::istringstream lines(store.get_to_str(kFound));
  std::string line;
  std::getline(lines, line);
  std::vector<int> silent = unpack_ranks(line);
  std::erase(silent, own_rank);  // it has failed later than the others
  std::getline(lines, line);
  std::vector<int> failed = unpack_ranks(line);
  std::erase(failed, own_rank);
  std::string text;
  if (!silent.empty()) text = fmt::format("; no word from rank {}: see its log first", rank_list(silent));
  int reported = 0;
  while (reported < kReported && std::getline(lines, line)) {
    const int rank = std::stoi(line);
    if (rank == own_rank) continue;
    text += fmt::format("; rank {} failed too: {}", rank, line.substr(line.find('\t') + 1));
    ++reported;
  }
  const int more = static_cast<int>(failed.size()) - reported;
  if (more > 0) text += fmt::format("; and {} more ranks", more);
  return {text, silent};
}

}  // namespace

Communicator::PostMortem read_failure_notes(c10d::Store& store, int own_rank, int collector,
                                            milliseconds patience) {
  const bool answered = is_published(store, patience);
  if (!answered) {
    // It is lost or its host is busy: the first rank that has waited so long takes its place.
    const std::string now = store.compareSet(kCollector, std::to_string(collector), std::to_string(own_rank));
    if (std::stoi(now) == own_rank) collect_failure_notes(store, milliseconds(0));
  }
  const Communicator::PostMortem found = answered || is_published(store, seconds(1))
                                             ? published_notes(store, own_rank)
                                             : Communicator::PostMortem();
  if (!answered && found.silent.empty())
    return {fmt::format("; rank {}, which asks the others, does not answer: see its log first", collector),
            {collector}};
  return found;
}

namespace {

// The store ends with rank 0: let those read it whose operation failed a little later.
void keep_store_open(Clock::time_point since, milliseconds response_timeout) {
  std::this_thread::sleep_until(since + response_timeout);
  for (milliseconds left = response_timeout / 2; left > milliseconds(0); left -= kTick)
    std::this_thread::sleep_for(kTick);
}

}  // namespace

// Where the way to the store's host is cut its calls do not return. So a thread of its own asks, which is
// left behind when it takes too long.
Communicator::PostMortem ask_others(const c10::intrusive_ptr<c10d::Store>& store, int own_rank,
                                    const std::vector<int>& group, const std::string& operation,
                                    const std::string& phase, milliseconds response_timeout,
                                    const std::vector<int>& lost) {
  auto ask = std::packaged_task<Communicator::PostMortem()>(
      [store, own_rank, group, note = fmt::format("{} in phase '{}'", operation, phase), response_timeout,
       lost] {
        const int collector = leave_failure_note(*store, own_rank, group, note);
        if (collector == own_rank) collect_failure_notes(*store, response_timeout, lost);
        if (!lost.empty()) return Communicator::PostMortem();
        return read_failure_notes(*store, own_rank, collector, response_timeout + seconds(1));
      });
  std::future<Communicator::PostMortem> answer = ask.get_future();
  const auto begin = Clock::now();
  try {
    std::thread(std::move(ask)).detach();
    for (milliseconds left = response_timeout + seconds(3); left > milliseconds(0); left -= kTick) {
      if (answer.wait_for(kTick) != std::future_status::ready) continue;
      if (own_rank == 0) keep_store_open(begin, response_timeout);
      return answer.get();
    }
  } catch (const std::exception&) {
  }
  return {"; rank 0, which holds the rendezvous, does not answer: see its log first", {0}};
}

}  // namespace hyperion::parallel
