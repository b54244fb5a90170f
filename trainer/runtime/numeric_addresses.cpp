// libtorch's store looks up the host name of every connection, one after the other, which takes five seconds
// each if no DNS server answers. It uses the names in messages only, so addresses suffice.
#include <dlfcn.h>
#include <netdb.h>

// The program's definition replaces the C library's in every library that it loads.
extern "C" __attribute__((visibility("default"))) int getnameinfo(const sockaddr* address, socklen_t length,
                                                                  char* host, socklen_t host_length,
                                                                  char* service, socklen_t service_length,
                                                                  int flags) {
  static const auto next = reinterpret_cast<decltype(&getnameinfo)>(::dlsym(RTLD_NEXT, "getnameinfo"));
  if (next == nullptr) return EAI_SYSTEM;
  if ((flags & NI_NAMEREQD) == 0) flags |= NI_NUMERICHOST;
  return next(address, length, host, host_length, service, service_length, flags);
}
