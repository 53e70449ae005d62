#include "impl/kernels/cuda/launch.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "impl/kernels/cross_entropy.h"
#include "impl/kernels/gelu.h"
#include "impl/kernels/layer_norm.h"
#include "impl/kernels/rows.h"
#include "impl/kernels/softmax.h"
#include "impl/kernels/update.h"

namespace lamina::kernels {
namespace {

// One thread's view of its block (team.h).
class CudaBlock {
 public:
  static constexpr int warp_threads = 32;
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ void barrier() { __syncthreads(); }
  template <class A>
  __device__ A* shared() {
    __shared__ double memory[32];  // a block has at most 32 warps
    return reinterpret_cast<A*>(memory);
  }
  template <class A>
  __device__ A warp_sum(A value) const {
    for (int distance = warp_threads / 2; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
    }
    return value;
  }
  template <class A>
  __device__ A warp_maximum(A value) const {
    for (int distance = warp_threads / 2; distance > 0; distance /= 2) {
      const A other = __shfl_xor_sync(0xFFFFFFFFU, value, distance);
      value = value < other ? other : value;
    }
    return value;
  }
};

template <int V, class Kernel>
__global__ void run_rows(const Kernel kernel, std::int64_t rows) {
  CudaBlock block;
  BlockTeam<CudaBlock> team(block);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    kernel.template run<V>(team, row);
  }
}

}  // namespace

template <class Kernel>
void launch_rows_on_cuda(const Kernel& kernel, std::int64_t rows, const CudaLaunch& launch) {
  if (launch.threads < 32 || launch.threads > 1024 || launch.threads % 32 != 0) {
    throw std::runtime_error("a CUDA block of " + std::to_string(launch.threads) +
                             " threads; it must be a multiple of 32, at most 1024");
  }
  if (rows == 0) {
    return;
  }
  constexpr int kPack = 16 / sizeof(typename Kernel::Arithmetic);
  constexpr std::int64_t kMostBlocks = 65536;
  const auto blocks = static_cast<unsigned>(std::min(rows, kMostBlocks));
  const auto threads = static_cast<unsigned>(launch.threads);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (launch.packed) {
    run_rows<kPack><<<blocks, threads, 0, stream>>>(kernel, rows);
  } else {
    run_rows<1><<<blocks, threads, 0, stream>>>(kernel, rows);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA kernel launch: ") + cudaGetErrorString(error));
  }
}

#define LAMINA_INSTANTIATE(Kernel)                                                          \
  template void launch_rows_on_cuda(const Kernel<float>&, std::int64_t, const CudaLaunch&); \
  template void launch_rows_on_cuda(const Kernel<double>&, std::int64_t, const CudaLaunch&);
LAMINA_INSTANTIATE(LayerNormForward)
LAMINA_INSTANTIATE(LayerNormBackward)
LAMINA_INSTANTIATE(LayerNormParameterGradient)
LAMINA_INSTANTIATE(BiasGeluForward)
LAMINA_INSTANTIATE(BiasGeluBackward)
LAMINA_INSTANTIATE(CausalSoftmaxForward)
LAMINA_INSTANTIATE(SoftmaxBackward)
LAMINA_INSTANTIATE(CrossEntropy)
LAMINA_INSTANTIATE(ResidualBias)
LAMINA_INSTANTIATE(ColumnSums)
LAMINA_INSTANTIATE(EmbeddingForward)
LAMINA_INSTANTIATE(EmbeddingBackward)
LAMINA_INSTANTIATE(Scale)
LAMINA_INSTANTIATE(SumOfSquares)
LAMINA_INSTANTIATE(Sgd)
LAMINA_INSTANTIATE(AdamW)
#undef LAMINA_INSTANTIATE

}  // namespace lamina::kernels
