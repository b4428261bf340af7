#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <dnnl.hpp>
#include <span>
#include <unordered_map>
#include <vector>

/// oneDNN's bf16 matmul as a baseline: one primitive per row count, weights in the layout of its choice, one thread.
namespace millrace::bench {

class DnnlProduct {
 public:
  /// x [rows, in] times the transpose of weight [out, in], of which it keeps `copies` that take turns.
  DnnlProduct(int64_t rows, int64_t in, int64_t out, std::span<std::byte> x, std::span<std::byte> weight,
              size_t copies) {
    using dnnl::memory;
    const auto bf16 = memory::data_type::bf16;
    const memory::desc left({rows, in}, bf16, memory::format_tag::ab);
    const memory::desc right({in, out}, bf16, memory::format_tag::any);
    const memory::desc result({rows, out}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(left, right, result), engine_);
    primitive_ = dnnl::matmul(description);
    memory given({{in, out}, bf16, memory::format_tag::ba}, engine_, weight.data());
    while (weights_.size() < copies) {
      memory& packed = weights_.emplace_back(description.weights_desc(), engine_);
      dnnl::reorder(given, packed).execute(stream_, given, packed);
    }
    stream_.wait();
    arguments_ = {{DNNL_ARG_SRC, memory(left, engine_, x.data())}, {DNNL_ARG_DST, memory(result, engine_)}};
  }
  void run() {
    use_one_thread();
    arguments_[DNNL_ARG_WEIGHTS] = weights_[next_++ % weights_.size()];
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  /// OpenMP, on which the library may run, counts threads for each thread that calls it.
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
