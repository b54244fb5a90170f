// Makes stdin, stdout and stderr independent of who reads them.
#pragma once

#include <string>
#include <string_view>

namespace hyperion {

// Opens /dev/null on closed descriptors among 0 to 2 (else the next opened files would get their numbers,
// and lines would be printed into them). Call it before any other file is opened.
void keep_standard_streams();

// Ignores SIGPIPE: writes to a closed pipe fail instead of ending the process.
void ignore_closed_pipe();

// Prints `text` on stdout, with flush_stdout().
void print_text(std::string_view text);

// Prints text of a user or a model, which must not steer a terminal: on one, control bytes except line feed
// and tab are escaped ("\\x1b"). A file or a pipe gets the bytes unchanged.
void print_outside_text(std::string_view text);

// Flushes stdio's buffer of stdout. Throws Error(kSaveFailed) if that or an earlier write failed, with
// `earlier_error` as its errno if that is known.
void flush_stdout(int earlier_error = 0);

// Removes the C++ stack frames that libtorch puts into its messages ("Exception raised from ...", "frame
// #0: ...").
std::string without_stack_frames(std::string_view text);

// Removes stack frames from text written to std::cerr, where libtorch logs from its own threads too, unless
// TORCH_SHOW_CPP_STACKTRACES=1.
void drop_stack_frames_from_cerr();

}  // namespace hyperion
