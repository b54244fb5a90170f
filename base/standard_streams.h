// stdin, stdout and stderr of a program that must not depend on who reads them.
#pragma once

#include <string>
#include <string_view>

namespace hyperion {

// Opens /dev/null on those of descriptors 0 to 2 that are closed (else the next files opened would get their
// numbers, and lines would be printed into them). Call it before any other file is opened.
void keep_standard_streams();

// Ignores SIGPIPE: writes to a closed pipe fail instead of ending the process.
void ignore_closed_pipe();

// Prints `text` on stdout, with flush_stdout().
void print_text(std::string_view text);

// The same for text that a user or a model made, which must not steer a terminal: there, control bytes but
// line feed and tab are written out ("\\x1b"). A file or a pipe gets the bytes as they are.
void print_outside_text(std::string_view text);

// Passes on what stdio has buffered for stdout. Throws Error(kSaveFailed) when that fails, or an earlier
// write did, with `earlier_error` as its errno where that is known.
void flush_stdout(int earlier_error = 0);

// Without the lines of C++ stack frames that libtorch puts into its messages ("Exception raised from ...",
// "frame #0: ...").
std::string without_stack_frames(std::string_view text);

// libtorch logs through std::cerr, from threads of its own too: removes stack frames from what is written
// there, unless TORCH_SHOW_CPP_STACKTRACES=1.
void drop_stack_frames_from_cerr();

}  // namespace hyperion
