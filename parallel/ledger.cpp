#include "parallel/ledger.h"

namespace hyperion::parallel {

void CommLedger::add(const std::string& group, const std::string& operation, int64_t bytes) {
  std::lock_guard lock(mutex_);
  Entry& entry = entries_[{group, operation}];
  ++entry.calls;
  entry.bytes += bytes;
}

CommLedger::Entry CommLedger::entry(const std::string& group, const std::string& operation) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find({group, operation});
  return found == entries_.end() ? Entry{} : found->second;
}

std::map<CommLedger::Key, CommLedger::Entry> CommLedger::entries() const {
  std::lock_guard lock(mutex_);
  return entries_;
}

int64_t CommLedger::total_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const auto& [key, entry] : entries_) total += entry.bytes;
  return total;
}

void CommLedger::reset() {
  std::lock_guard lock(mutex_);
  entries_.clear();
}

}  // namespace hyperion::parallel
