// libtorch's store asks for the host name of every connection that it makes or accepts, one after the other:
// five seconds each where no DNS server answers. It uses the names in messages only, so addresses do.
#include <dlfcn.h>
#include <netdb.h>

// The program's definition comes before the C library's in every library that it loads.
extern "C" __attribute__((visibility("default"))) int getnameinfo(const sockaddr* address, socklen_t length,
                                                                  char* host, socklen_t host_length,
                                                                  char* service, socklen_t service_length,
                                                                  int flags) {
  static const auto next = reinterpret_cast<decltype(&getnameinfo)>(::dlsym(RTLD_NEXT, "getnameinfo"));
  if (next == nullptr) return EAI_SYSTEM;
  if ((flags & NI_NAMEREQD) == 0) flags |= NI_NUMERICHOST;
  return next(address, length, host, host_length, service, service_length, flags);
}
