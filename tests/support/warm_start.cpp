// libwarm_start.so: a program that has loaded its libraries once and is forked for each job of a test.
// Loading libtorch takes more processor time than a small job's training. Preloaded into the program with
// HYPERION_WARM_START=SOCKET it waits, before main(), for commands on that socket
// (tests/faults/warm_start.py) and lets a child run main() with each one's arguments, environment, folder and
// output. HYPERION_WARM_LIBRARY: loaded before, as the program would.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using Main = int (*)(int, char**, char**);

Main g_main;

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::_Exit(70);
}

// Argument count, then folder, arguments and variables, each ended by a zero.
struct Command {
  std::string text;
  int outputs[2] = {-1, -1};
};

// False at the end of the connection. The message's size comes first, with the descriptors of its outputs.
bool receive(int connection, Command* command) {
  uint32_t size = 0;
  iovec part{&size, sizeof size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Command::outputs))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(connection, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != sizeof size) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_len != CMSG_LEN(sizeof command->outputs))
    give_up("warm start: a command without outputs");
  std::memcpy(command->outputs, CMSG_DATA(header), sizeof command->outputs);
  command->text.resize(size);
  return recv(connection, command->text.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

[[noreturn]] void run(Command command) {
  std::vector<char*> words;  // they stay in place until the process ends
  static std::string text;
  text = std::move(command.text);
  for (char* word = text.data(); word < text.data() + text.size(); word += std::strlen(word) + 1)
    words.push_back(word);
  const int count = std::atoi(words[0]);
  if (chdir(words[1]) != 0) give_up("warm start: the job's folder");
  std::vector<char*> arguments(words.begin() + 2, words.begin() + 2 + count);
  arguments.push_back(nullptr);
  clearenv();
  for (auto word = words.begin() + 2 + count; word != words.end(); ++word) putenv(*word);
  if (dup2(command.outputs[0], STDOUT_FILENO) < 0 || dup2(command.outputs[1], STDERR_FILENO) < 0)
    give_up("warm start: output");
  for (const int output : command.outputs) close(output);
  const int code = g_main(count, arguments.data(), environ);
  std::fflush(nullptr);
  std::_Exit(code);  // libtorch's destructors would copy most of what it shares with the others
}

int serve(int, char**, char**) {
  const int connection = std::atoi(std::getenv("HYPERION_WARM_START"));
  fcntl(connection, F_SETFD, FD_CLOEXEC);
  const char* library = std::getenv("HYPERION_WARM_LIBRARY");
  if (library != nullptr && dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) give_up(dlerror());
  for (Command command; receive(connection, &command);) {
    // A child's child, which the kernel gives to the test: it is to wait for it as for one of its own.
    const pid_t between = fork();
    if (between == 0) {
      const pid_t job = fork();
      if (job == 0) {
        close(connection);
        run(std::move(command));
      }
      const int32_t number = job;
      std::_Exit(write(connection, &number, sizeof number) == sizeof number && job > 0 ? 0 : 70);
    }
    for (const int output : command.outputs) close(output);
    int status = 0;
    if (between < 0 || waitpid(between, &status, 0) != between || status != 0) give_up("warm start: fork");
    const char done = 1;  // the job has its new parent
    if (write(connection, &done, sizeof done) != sizeof done) break;
  }
  std::_Exit(0);
}

}  // namespace

// What the program's first instructions call; this library stands before libc's.
extern "C" int __libc_start_main(Main main, int count, char** arguments, void (*init)(), void (*fini)(),
                                 void (*end)(), void* stack) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  g_main = main;
  return start(std::getenv("HYPERION_WARM_START") == nullptr ? main : serve, count, arguments, init, fini,
               end, stack);
}
