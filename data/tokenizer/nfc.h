// Unicode normalization form C, which Qwen's tokenizer applies to text. Like Hugging Face `tokenizers`, it
// uses an older Unicode version, in which later combining marks are ordinary characters.
#pragma once

#include <string>
#include <string_view>

namespace hyperion::data {

// Returns whether valid UTF-8 may change under NFC. False for ASCII, Latin-1, Cyrillic, Chinese, Japanese,
// composed Korean; other scripts may answer true for text that is in NFC already.
bool may_change_under_nfc(std::string_view text);

// Converts valid UTF-8 to NFC, in time linear in its length (times log of its longest run of combining
// marks).
std::string to_nfc(std::string_view text);

}  // namespace hyperion::data
