#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <dnnl.hpp>
#include <span>
#include <unordered_map>
#include <vector>

#include "tensor/dtype.h"

/// oneDNN's matmul as a baseline, in bf16, or in f32 on processors without bf16 support. One primitive per row count,
/// weights in oneDNN's layout, one thread.
namespace millrace::bench {

class DnnlProduct {
 public:
  /// Returns bf16 or f32.
  static tensor::DType dtype() {
    static const bool bf16 = [] {
      try {
        static_cast<void>(describe(dnnl::engine(dnnl::engine::kind::cpu, 0), memory::data_type::bf16, 64, 64, 64));
        return true;
      } catch (const dnnl::error&) {
        return false;
      }
    }();
    return bf16 ? tensor::DType::kBF16 : tensor::DType::kF32;
  }

  /// Prepares x [rows, in] · weightᵀ with weight [out, in], both of dtype(). It keeps `copies` of the weight, which
  /// alternate.
  DnnlProduct(int64_t rows, int64_t in, int64_t out, std::span<std::byte> x, std::span<std::byte> weight,
              size_t copies) {
    const auto type = dtype() == tensor::DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
    const dnnl::matmul::primitive_desc description = describe(engine_, type, rows, in, out);
    primitive_ = dnnl::matmul(description);
    memory given({{in, out}, type, memory::format_tag::ba}, engine_, weight.data());
    while (weights_.size() < copies) {
      memory& packed = weights_.emplace_back(description.weights_desc(), engine_);
      dnnl::reorder(given, packed).execute(stream_, given, packed);
    }
    stream_.wait();
    arguments_ = {{DNNL_ARG_SRC, memory(description.src_desc(), engine_, x.data())},
                  {DNNL_ARG_DST, memory(description.dst_desc(), engine_)}};
  }
  void run() {
    use_one_thread();
    arguments_[DNNL_ARG_WEIGHTS] = weights_[next_++ % weights_.size()];
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  using memory = dnnl::memory;

  static dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, memory::data_type type, int64_t rows,
                                               int64_t in, int64_t out) {
    const memory::desc left({rows, in}, type, memory::format_tag::ab);
    const memory::desc right({in, out}, type, memory::format_tag::any);
    const memory::desc result({rows, out}, memory::data_type::f32, memory::format_tag::ab);
    return {dnnl::matmul::desc(left, right, result), engine};
  }

  /// Restricts OpenMP, which the library may use, to one thread. OpenMP counts per calling thread.
  static void use_one_thread() {
    thread_local bool done = false;
    if (done) return;
    done = true;
    if (void* const set = dlsym(RTLD_DEFAULT, "omp_set_num_threads")) reinterpret_cast<void (*)(int)>(set)(1);
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul primitive_;
  std::vector<dnnl::memory> weights_;
  size_t next_ = 0;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace millrace::bench
