// stdin, stdout and stderr of a program that must not depend on who reads them.
#pragma once

#include <string>
#include <string_view>

namespace hyperion {

// Descriptors 0 to 2 that are closed lead to /dev/null from now on (else the next files that are opened would
// get their numbers, and log lines would be written into them), and a reader of stdout that goes away makes
// writes fail instead of ending the process. Call it before any other file is opened.
void keep_standard_streams();

// Without the lines of C++ stack frames that libtorch puts into its messages ("Exception raised from ...",
// "frame #0: ...").
std::string without_stack_frames(std::string_view text);

// libtorch logs through std::cerr, from threads of its own too: from now on what is written there loses its
// stack frames, unless TORCH_SHOW_CPP_STACKTRACES=1 asks for them.
void drop_stack_frames_from_cerr();

}  // namespace hyperion
