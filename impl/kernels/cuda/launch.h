// Runs a row kernel over many rows on the current CUDA device, a block of threads for each row. Plain C++: callers
// need no CUDA compiler.
#pragma once

#include <cstdint>

namespace lamina::kernels {

struct CudaLaunch {
  int threads = 256;       // of a block; a multiple of 32, at most 1024
  bool packed = false;     // 16-byte accesses: every array begins at, and every row is, a multiple of 16 bytes
  void* stream = nullptr;  // a cudaStream_t
};

// Returns once the work is queued. The kernel's pointers are the device's. Throws std::runtime_error with CUDA's
// reason when it cannot be queued. Exists for every kernel of this folder, in float and double.
template <class Kernel>
void launch_rows_on_cuda(const Kernel& kernel, std::int64_t rows, const CudaLaunch& launch);

}  // namespace lamina::kernels
