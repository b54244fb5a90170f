#!/usr/bin/env python3
"""The GPUs of this host through the driver alone, which takes a second or two where libtorch takes many: for scripts/gpu_check.py.

usage: gpu_card.py hold|probe
  hold   keeps a context on each GPU until it is ended, so that no other process has to initialise it; prints "held" when it has them. A
         GPU in a compute mode that allows one process a context is kept open without one.
  probe  runs a kernel on each GPU; exit code 1, and what the driver said, where one does not run
"""
import ctypes
import signal
import sys
import time

KERNEL = b".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n"
COMPUTE_MODE = 20  # CUdevice_attribute; 0: any number of processes
NO_COMPILER = 221  # CUresult: the driver's compiler of PTX is not installed


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)

    def __call__(self, function, *arguments, allowed=()):
        result = getattr(self.library, function)(*arguments)
        if result and result not in allowed:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(result, ctypes.byref(text))
            raise OSError(f"{function}: CUresult {result}, {(text.value or b'unknown').decode(errors='replace')}")
        return result

    def out(self, kind, function, *arguments, **options):
        """(the value that a function writes through its first argument, its result)"""
        value = kind()
        return value, self(function, ctypes.byref(value), *arguments, **options)

    def devices(self):
        return range(self.out(ctypes.c_int, "cuDeviceGetCount")[0].value)

    def is_shared(self, device):
        return self.out(ctypes.c_int, "cuDeviceGetAttribute", COMPUTE_MODE, device)[0].value == 0

    def enter(self, device):
        context, _ = self.out(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device)
        self("cuCtxSetCurrent", context)

    def run_kernel(self):
        module, result = self.out(ctypes.c_void_p, "cuModuleLoadData", KERNEL, allowed=(NO_COMPILER,))
        if result == NO_COMPILER:  # filling memory is a kernel of the driver's
            memory, _ = self.out(ctypes.c_uint64, "cuMemAlloc_v2", ctypes.c_size_t(4096))
            self("cuMemsetD32_v2", memory, 1, ctypes.c_size_t(1024))
        else:
            function, _ = self.out(ctypes.c_void_p, "cuModuleGetFunction", module, b"nothing")
            self("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        self("cuCtxSynchronize")


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__.strip()))
    if sys.argv[1:] not in (["hold"], ["probe"]):
        sys.exit(__doc__)
    try:
        driver = Driver()
        for device in driver.devices():
            if sys.argv[1] == "probe":
                driver.enter(device)
                driver.run_kernel()
            elif driver.is_shared(device):
                driver.enter(device)
    except OSError as error:
        print(error)
        return 1
    if sys.argv[1] == "hold":
        print("held", flush=True)
        while True:
            time.sleep(3600)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves (`| head`) ends it without a traceback
    sys.exit(main())
