// cuBLAS as far as libtorch calls it: handles, and products that operators.cpp computes. Its headers declare
// these functions with many arguments, of which only shapes matter here; a C function may leave them unread.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/simulated_gpu/trace.h"
#include "tests/simulated_gpu/cost.h"

namespace {

constexpr int kSuccess = 0;
int g_handle;

int make(void** handle) {
  *handle = &g_handle;
  return kSuccess;
}

int product(const char* name) {
  simulated_gpu::trace("kernel", name);
  ++simulated_gpu::launches().kernels;
  return kSuccess;
}

// Of cublasLt, which libraries call that are no operators of libtorch.
struct Matrix {
  int type;
  uint64_t rows, columns;
  uint64_t batch = 1;

  uint64_t numel() const { return rows * columns * batch; }
  bool fp8() const { return type == 28 || type == 29; }
  uint64_t bytes() const { return numel() * (fp8() ? 1 : type == 0 ? 4 : 2); }
  std::string dtype() const { return fp8() ? "fp8" : type == 0 ? "fp32" : type == 2 ? "fp16" : "bf16"; }
};

int product(const Matrix& a, const Matrix& b, const Matrix& d) {
  const uint64_t m = d.columns, n = d.rows, k = a.numel() / a.batch / n;  // columns first, so rows are n
  simulated_gpu::Launches& made = simulated_gpu::launches();
  const simulated_gpu::Cost cost = {
      .read = a.bytes() + b.bytes(),
      .written = d.bytes(),
      .flops = 2 * d.numel() * k,
      .of = a.dtype() + " " + std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n)};
  product("cublasLtMatmul");
  made.flops += cost.flops;
  made.product = cost.of;
  if (!made.in_operator) simulated_gpu::trace_cost("cublasLtMatmul", cost, {.kernels = 1});
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
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns) {
  *made = new Matrix{type, rows, columns};
  return kSuccess;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Matrix*>(layout);
  return kSuccess;
}
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value) {
  constexpr int kBatchCount = 5;
  if (attribute == kBatchCount)
    static_cast<Matrix*>(layout)->batch = static_cast<uint64_t>(*static_cast<const int32_t*>(value));
  return kSuccess;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* found) {
  *found = 1;
  return kSuccess;
}
int cublasLtMatmul(void*, void*, const void*, const void*, const void* a, const void*, const void* b,
                   const void*, const void*, const void*, void*, const void* d) {
  return product(*static_cast<const Matrix*>(a), *static_cast<const Matrix*>(b),
                 *static_cast<const Matrix*>(d));
}

}  // extern "C"
