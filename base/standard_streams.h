// stdin, stdout and stderr of a program that must not depend on who reads them.
#pragma once

namespace hyperion {

// Descriptors 0 to 2 that are closed lead to /dev/null from now on (else the next files that are opened would
// get their numbers, and log lines would be written into them), and a reader of stdout that goes away makes
// writes fail instead of ending the process. Call it before any other file is opened.
void keep_standard_streams();

}  // namespace hyperion
