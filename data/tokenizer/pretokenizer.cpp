#include "data/tokenizer/pretokenizer.h"

namespace hyperion::data {

void Pretokenizer::add_split(std::string_view pattern, const SplitPieces& kept, const std::string& where) {
  const std::optional<WordScanner> scanner = WordScanner::for_pattern(pattern);
  if (scanner && kept.matches)  // a known pattern leaves no gaps
    steps_.emplace_back(*scanner);
  else
    steps_.emplace_back(RegexSplit{RegexSplitter(pattern, where), kept});
}

void Pretokenizer::add_prefix_space() {
  steps_.emplace_back(PrefixSpace{});
}

void Pretokenizer::run(size_t step, std::string_view text,
                       const std::function<void(std::string_view)>& word) const {
  if (text.empty()) return;
  if (step == steps_.size()) return word(text);
  const bool last = step + 1 == steps_.size();
  const auto pass_on = [&](size_t begin, size_t end) {
    const std::string_view piece = text.substr(begin, end - begin);
    last ? word(piece) : run(step + 1, piece, word);
  };
  if (const auto* scanner = std::get_if<WordScanner>(&steps_[step])) {
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      end = scanner->word_end(text, begin);
      pass_on(begin, end);
    }
  } else if (const auto* split = std::get_if<RegexSplit>(&steps_[step])) {
    size_t done = 0;
    while (const auto match = split->splitter.next(text, done)) {
      if (split->kept.gaps && match->first > done) pass_on(done, match->first);
      if (split->kept.matches) pass_on(match->first, match->second);
      done = match->second;
    }
    if (split->kept.gaps && done < text.size()) pass_on(done, text.size());
  } else if (text.front() == ' ') {
    run(step + 1, text, word);
  } else {
    run(step + 1, " " + std::string(text), word);
  }
}

}  // namespace hyperion::data
