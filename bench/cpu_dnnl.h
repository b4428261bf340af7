#pragma once

#include <dnnl.hpp>

/// oneDNN's bf16 matmul as a baseline: one primitive per row count, weights in the layout of its choice, one thread.
namespace millrace::bench {

class DnnlProduct {
 public:
  DnnlProduct(int64_t rows, int64_t in, int64_t out) {
    using dnnl::memory;
    const auto any = memory::format_tag::any;
    const memory::desc left({rows, in}, memory::data_type::bf16, memory::format_tag::ab);
    const memory::desc right({in, out}, memory::data_type::bf16, any);
    const memory::desc result({rows, out}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(left, right, result), engine_);
    primitive_ = dnnl::matmul(description);
    arguments_ = {{DNNL_ARG_SRC, memory(left, engine_)},
                  {DNNL_ARG_WEIGHTS, memory(description.weights_desc(), engine_)},
                  {DNNL_ARG_DST, memory(result, engine_)}};
  }
  void run() {
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace millrace::bench
