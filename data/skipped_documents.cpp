#include "data/skipped_documents.h"

#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"

namespace hyperion::data {
namespace {

constexpr uint64_t kNamed = 10;  // bad documents that are logged one by one

}  // namespace

void SkippedDocuments::count(uint64_t tokens, const std::string& bad) {
  ++documents_;
  if (!bad.empty())
    ++bad_;
  else if (tokens == 0)
    ++empty_;
  if (!bad.empty() && bad_ <= kNamed)
    log_warning("skipped a document (training.on_bad_document = \"skip\"): {}{}", bad,
                bad_ == kNamed ? "; more are counted, but not named" : "");
  if (documents_ >= kMinDocuments &&
      static_cast<double>(bad_) > kMaxShare * static_cast<double>(documents_)) {
    throw_data(
        "{} of {} read so far cannot be used{}{}: at most {:.0f} % may be skipped "
        "(training.on_bad_document), so correct the data or name their field in training.text_field",
        counted(bad_, "document"), format_count(documents_), bad.empty() ? "" : ", the last one being ", bad,
        kMaxShare * 100);
  }
}

void SkippedDocuments::log_summary(const std::string& what) const {
  if (bad_ + empty_ > 0)
    log_info("{}: of {} read, {} without text and {} that cannot be used were skipped", what,
             counted(documents_, "document"), format_count(empty_), format_count(bad_));
}

}  // namespace hyperion::data
