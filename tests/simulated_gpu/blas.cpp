// cuBLAS as far as libtorch calls it: handles, and products that operators.cpp computes. Its headers declare
// these functions with many arguments, none of which matters here; a C function may leave them unread.
#include <cstddef>

#include "tests/simulated_gpu/trace.h"

namespace {

constexpr int kSuccess = 0;
int g_handle;

int make(void** handle) {
  *handle = &g_handle;
  return kSuccess;
}

int product(const char* name) {
  simulated_gpu::trace("kernel", name);
  return kSuccess;
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  return make(handle);
}
int cublasDestroy_v2() {
  return kSuccess;
}
int cublasSetStream_v2() {
  return kSuccess;
}
int cublasSetWorkspace_v2() {
  return kSuccess;
}
int cublasSetMathMode() {
  return kSuccess;
}
int cublasGetMathMode(void*, int* mode) {
  return *mode = 0;
}
int cublasSetPointerMode_v2() {
  return kSuccess;
}
int cublasGetPointerMode_v2(void*, int* mode) {
  return *mode = 0;
}
int cublasSgemm_v2() {
  return product("cublasSgemm");
}
int cublasDgemm_v2() {
  return product("cublasDgemm");
}
int cublasSgemmEx() {
  return product("cublasSgemmEx");
}
int cublasGemmEx() {
  return product("cublasGemmEx");
}
int cublasSgemmStridedBatched() {
  return product("cublasSgemmStridedBatched");
}
int cublasDgemmStridedBatched() {
  return product("cublasDgemmStridedBatched");
}
int cublasGemmStridedBatchedEx() {
  return product("cublasGemmStridedBatchedEx");
}
int cublasSgemv_v2() {
  return product("cublasSgemv");
}
int cublasSdot_v2() {
  return product("cublasSdot");
}
int cublasDotEx() {
  return product("cublasDotEx");
}

size_t cublasLtGetVersion() {
  return 130100;
}
int cublasLtMatmulDescCreate(void** made) {
  return make(made);
}
int cublasLtMatmulDescDestroy() {
  return kSuccess;
}
int cublasLtMatmulDescSetAttribute() {
  return kSuccess;
}
int cublasLtMatmulPreferenceCreate(void** made) {
  return make(made);
}
int cublasLtMatmulPreferenceDestroy() {
  return kSuccess;
}
int cublasLtMatmulPreferenceSetAttribute() {
  return kSuccess;
}
int cublasLtMatrixLayoutCreate(void** made) {
  return make(made);
}
int cublasLtMatrixLayoutDestroy() {
  return kSuccess;
}
int cublasLtMatrixLayoutSetAttribute() {
  return kSuccess;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* found) {
  *found = 1;
  return kSuccess;
}
int cublasLtMatmul() {
  return product("cublasLtMatmul");
}

}  // extern "C"
