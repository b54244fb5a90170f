#include "data/line_file.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/error.h"
#include "base/progress.h"

namespace hyperion::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kReadBlock = size_t{1} << 20;
constexpr size_t kFirstPiece = size_t{64} << 10;  // longer than nearly every line
constexpr size_t kKeptText = size_t{4} << 20;     // capacity

bool is_blank_text(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

std::string describe_location(const std::filesystem::path& path, uint64_t location) {
  if ((location & kByteLocation) == 0) return fmt::format("{}:{}", path.string(), location);
  const uint64_t place = location & ~kByteLocation;
  try {
    const InputFile file(path);
    std::string piece;
    int64_t lines = 1;
    for (uint64_t at = 0; at < place; at += piece.size()) {
      piece.resize(std::min<uint64_t>(kReadBlock, place - at));
      file.read(at, piece.data(), piece.size());
      lines += std::ranges::count(piece, '\n');
    }
    return fmt::format("{}:{}", path.string(), lines);
  } catch (const Error&) {  // the file became shorter, for example
    return fmt::format("{}: the line at byte {}", path.string(), place);
  }
}

void LineIndex::start(uint64_t begin, uint64_t end) {
  end_ = end;
  next_line_ = at_ = begin;
  lines_ = blank_lines_ = 0;
  open_ = false;
  blank_ = true;
  begins_.clear();
  blanks_.clear();
}

void LineIndex::end_line(uint64_t next) {
  if (!blank_) {
    begins_.push_back(next_line_);
  } else if (++blank_lines_; !blanks_.empty() && blanks_.back().document == begins_.size()) {
    blanks_.back().lines = blank_lines_;
  } else {
    blanks_.push_back({begins_.size(), blank_lines_});
  }
  ++lines_;
  next_line_ = next;
  open_ = false;
  blank_ = true;
}

void LineIndex::add(std::string_view piece) {
  const uint64_t begin = at_;
  size_t at = 0;
  while (at < piece.size() && next_line_ < end_) {
    const size_t end = std::min(piece.find('\n', at), piece.size());
    blank_ = blank_ && is_blank_text(piece.substr(at, end - at));
    open_ = true;
    at = std::min(end + 1, piece.size());
    if (end < piece.size()) end_line(begin + at);
  }
  at_ = begin + piece.size();
}

void LineIndex::finish() {
  if (open_) end_line(at_);
}

void LineIndex::cut_off(uint64_t text_end) {
  blank_ = false;
  end_line(text_end);
}

uint64_t LineIndex::line(uint64_t document) const {
  const auto after =
      std::upper_bound(blanks_.begin(), blanks_.end(), document,
                       [](uint64_t value, const Blank& blank) { return value < blank.document; });
  return document + 1 + (after == blanks_.begin() ? 0 : std::prev(after)->lines);
}

LineFile::LineFile(InputFile file, TextBlocks blocks, size_t line_limit)
    : file_(std::move(file)),
      whole_(blocks == TextBlocks::kWhole),
      line_limit_(line_limit),
      stretch_(blocks == TextBlocks::kSample ? kFirstPiece : kStretch),
      compressed_(is_compressed(file_)) {
  if (!compressed_) stretch_ = equal_part(file_.size(), stretch_);
}

std::optional<uint64_t> LineFile::blocks() const {
  if (whole_) return 1;
  if (compressed_) return std::nullopt;
  return (file_.size() + stretch_ - 1) / stretch_;
}

std::optional<uint64_t> LineFile::open_block(uint64_t block) {
  if (block_ == block) return index_.documents();
  if (whole_ && block > 0) return std::nullopt;
  if (compressed_) {
    if (!block_ || block < *block_) rewind();
    while (!block_ || *block_ < block)
      if (!inflate_next_stretch()) return std::nullopt;
    return index_.documents();
  }
  if (!whole_ && block >= blocks()) return std::nullopt;
  const bool next = block_ && *block_ + 1 == block;
  lines_before_ = block == 0              ? std::optional<uint64_t>(0)
                  : next && lines_before_ ? std::optional(*lines_before_ + index_.lines())
                                          : std::nullopt;
  block_.reset();
  whole_ ? index_whole_file() : read_stretch(block);
  block_ = block;
  return index_.documents();
}

uint64_t LineFile::location(uint64_t document) const {
  return lines_before_ ? *lines_before_ + index_.line(document) : kByteLocation | index_.begin(document);
}

uint64_t LineFile::bytes_after_block() const {
  return stream_ ? file_.size() - stream_->consumed() : 0;
}

void LineFile::index_whole_file() {
  const uint64_t size = file_.size();
  Progress progress("indexing data", size, "B");
  std::string piece;
  for (uint64_t begin = 0; begin < size; progress.update(begin += piece.size())) {
    piece.resize(std::min<uint64_t>(kReadBlock, size - begin));
    file_.read(begin, piece.data(), piece.size());
    const size_t mark = begin == 0 && piece.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
    if (begin == 0) index_.start(mark, UINT64_MAX);
    index_.add(std::string_view(piece).substr(mark));
  }
  index_.finish();
}

void LineFile::read_stretch(uint64_t block) {
  const uint64_t begin = block * stretch_, end = std::min(begin + stretch_, file_.size());
  base_ = begin - (block > 0 ? 1 : 0);  // the byte in front of the stretch may end a line
  text_.clear();
  text_.resize(end - base_);
  file_.read(base_, text_.data(), text_.size());
  if (block == 0) return index_stretch(0, end);
  const size_t newline = text_.find('\n');
  if (newline != text_.npos && base_ + newline + 1 < end) return index_stretch(base_ + newline + 1, end);
  index_.start(end, end);
}

void LineFile::rewind() {
  stream_ = std::make_unique<InflatedStream>(file_, inflation_limit(file_.size()));
  text_.clear();
  block_.reset();
  base_ = 0;
  lines_before_ = 0;
  in_long_line_ = false;
  index_.start(0, 0);
}

bool LineFile::inflate_next_stretch() {
  const uint64_t block = block_ ? *block_ + 1 : 0, begin = block * stretch_;
  const uint64_t end = whole_ ? UINT64_MAX : begin + stretch_;
  lines_before_ = *lines_before_ + index_.lines();
  block_.reset();
  const size_t dropped = std::min<uint64_t>(begin - base_, text_.size());
  text_.erase(0, dropped);
  base_ += dropped;
  if (text_.capacity() > kKeptText && text_.size() < kKeptText / 2) text_.shrink_to_fit();
  while (base_ + text_.size() < end && extend_text(std::min(end - base_ - text_.size(), stretch_))) {
  }
  if (base_ + text_.size() <= begin) return false;
  uint64_t line = index_.next_line();
  if (in_long_line_) {
    const size_t newline = text_.find('\n');
    in_long_line_ = newline == text_.npos;
    line = in_long_line_ ? base_ + text_.size() : base_ + newline + 1;
  }
  index_stretch(line, end);
  block_ = block;
  return true;
}

bool LineFile::extend_text(uint64_t bytes) {
  const size_t before = text_.size();
  if (!compressed_) bytes = std::min(bytes, file_.size() - base_ - before);
  text_.resize(before + bytes);
  if (compressed_)
    text_.resize(before + stream_->read(text_.data() + before, bytes));
  else
    file_.read(base_ + before, text_.data() + before, bytes);
  return text_.size() > before;
}

void LineFile::index_stretch(uint64_t first_line, uint64_t end) {
  if (first_line == 0 && text_.starts_with(kByteOrderMark)) first_line = kByteOrderMark.size();
  index_.start(first_line, end);
  if (first_line >= end) return;
  index_.add(std::string_view(text_).substr(first_line - base_));
  // The last line goes on behind the stretch. Of a plain file it is read with its document.
  while (index_.is_open() && (compressed_ || index_.is_blank()) &&
         base_ + text_.size() - index_.next_line() <= line_limit_) {
    const size_t before = text_.size();
    if (!extend_text(kFirstPiece)) return index_.finish();
    index_.add(std::string_view(text_).substr(before));
  }
  if (!index_.is_open()) return;
  in_long_line_ = compressed_;
  index_.cut_off(compressed_ ? base_ + text_.size() : file_.size());
}

void LineFile::read(uint64_t begin, char* out, size_t bytes) const {
  if (begin >= base_ && begin + bytes <= base_ + text_.size())
    std::memcpy(out, text_.data() + (begin - base_), bytes);
  else
    file_.read(begin, out, bytes);
}

size_t LineFile::read_line(uint64_t document, size_t padding, std::vector<char>& out) const {
  const uint64_t begin = index_.begin(document);
  const uint64_t max = index_.end(document) - begin;  // blank lines may follow in it
  size_t size = 0;
  for (uint64_t want = std::min<uint64_t>(max, kFirstPiece);; want = std::min(max, want * 4)) {
    if (out.size() < want + padding) out.resize(want + padding);
    read(begin + size, out.data() + size, want - size);
    const void* newline = std::memchr(out.data() + size, '\n', want - size);
    size = newline != nullptr ? static_cast<size_t>(static_cast<const char*>(newline) - out.data()) : want;
    if (newline != nullptr || want == max || size > line_limit_) return size;
  }
}

std::string LineFile::head(size_t size) const {
  std::string text(std::min<uint64_t>(size, compressed_ ? size : file_.size()), '\0');
  if (compressed_)
    text.resize(InflatedStream(file_, UINT64_MAX).read(text.data(), text.size()));
  else
    file_.read(0, text.data(), text.size());
  return text;
}

}  // namespace hyperion::data
