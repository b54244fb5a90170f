// SkippedDocuments counts the documents of a stream that give no tokens, and ends a job that skips too many
// bad ones.
#pragma once

#include <cstdint>
#include <string>

namespace hyperion::data {

class SkippedDocuments {
 public:
  // More bad documents than this share end the job, once that many documents have been read.
  static constexpr double kMaxShare = 0.01;
  static constexpr uint64_t kMinDocuments = 100;

  // Counts a document of `tokens` tokens. `bad` is the message about a bad one that is skipped, else "". Logs
  // the first few bad ones. Throws Error(kBadData) if too many are bad.
  void count(uint64_t tokens, const std::string& bad);
  // Logs the numbers of `what`, the data's name, if any document was skipped.
  void log_summary(const std::string& what) const;

 private:
  uint64_t documents_ = 0;
  uint64_t empty_ = 0;  // null, or without text
  uint64_t bad_ = 0;
};

}  // namespace hyperion::data
