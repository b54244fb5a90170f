// Says whether a stream is a terminal that understands colours and cursor movement.
#pragma once

namespace hyperion {

// Returns whether escape sequences may be written to stream `fd`: it is a terminal, TERM is set and not
// "dumb", NO_COLOR is unset or empty (no-color.org), and disable_terminal_escapes() was not called.
bool terminal_escapes(int fd);

// Makes terminal_escapes() false from now on, for every stream (metrics.disable_color_printing).
void disable_terminal_escapes();

}  // namespace hyperion
