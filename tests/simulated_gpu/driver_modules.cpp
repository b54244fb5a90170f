// The functions of the CUDA driver with which a compiler at run time (Triton) asks what the GPU is, loads
// what it has made, and launches it: into nothing, traced by name.
#include <mutex>
#include <set>
#include <string>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tests/simulated_gpu/context.h"
#include "tests/simulated_gpu/cost.h"
#include "tests/simulated_gpu/stream.h"
#include "tests/simulated_gpu/trace.h"

using namespace simulated_gpu;

namespace {

// A function is its name, kept for good; all modules are one.
CUfunction function_of(const char* name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return reinterpret_cast<CUfunction>(const_cast<std::string*>(&*names->insert(name).first));
}

CUresult launch(CUfunction function, unsigned blocks) {
  if (function == nullptr || blocks == 0) return CUDA_ERROR_INVALID_VALUE;
  ++launches().kernels;
  trace("kernel", reinterpret_cast<const std::string*>(function)->c_str());
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return cuCtxGetCurrent(context);
}
CUresult cuCtxSynchronize() {
  wait_for_all_streams();
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  cudaGetDevice(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  *value = 1 << 20;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit, size_t) {
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr memory) {
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
  *static_cast<CUdeviceptr*>(data) = memory;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule* module, const char*) {
  return cuModuleLoadData(module, nullptr);
}
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  static int one;
  *module = reinterpret_cast<CUmodule>(&one);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) {
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = function_of(name);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                : 0;
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) {
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void**, void**) {
  return launch(function, x * y * z);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* shape, CUfunction function, void**, void**) {
  return launch(function, shape->gridDimX * shape->gridDimY * shape->gridDimZ);
}

}  // extern "C"
