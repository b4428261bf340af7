// A device that this process has lost, and what the fake runtime forbids as the real one does.

#include <catch2/catch.hpp>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/emulator/emulator.h"
#include "cuda/emulator/fake_runtime.h"

using namespace millrace;

TEST_CASE("a device that only fails is lost but one failure is none") {
  emulator::reset();
  std::mutex mutex;
  std::vector<std::string> told;
  const auto note = [&](std::string what) {
    const std::lock_guard lock(mutex);
    told.push_back(std::move(what));
  };
  {
    const auto backend = cuda::make_backend({.lost = note});
    const auto run = [&] {
      backend->submit([] {}, [&](std::exception_ptr failure) { note(failure ? "failed" : "done"); });
    };
    const auto settle = [&](size_t count) {
      for (;; std::this_thread::yield()) {
        const std::lock_guard lock(mutex);
        if (told.size() >= count) return;
      }
    };
    run();
    settle(1);
    emulator::fail_event(1, false);
    run();
    run();
    settle(3);
    emulator::fail_event(1, true);
    run();
    settle(5);
    run();
  }
  emulator::reset();
  const std::string reason =
      "device 0 is lost to this process: an illegal memory access was encountered "
      "(cudaErrorIllegalAddress)";
  REQUIRE(told == std::vector<std::string>{"done", "failed", "done", "failed", reason, "failed"});
}

TEST_CASE("a lost device is noticed by any call that fails") {
  emulator::reset();
  std::promise<std::string> told;
  {
    const auto backend = cuda::make_backend({.lost = [&](const std::string& reason) { told.set_value(reason); }});
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    emulator::fail_event(1, true);
    REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
    REQUIRE(cudaEventSynchronize(event) !=
            cudaSuccess);  // as a transfer of a channel finds it, which no backend watches
    REQUIRE_THROWS_WITH(backend->allocate(64), Catch::Contains("an illegal memory access was encountered"));
    REQUIRE_THAT(told.get_future().get(), Catch::StartsWith("device 0 is lost to this process"));
  }
  emulator::reset();
}

TEST_CASE("the fake refuses a stream on the device of another thread") {
  emulator::reset();
  emulator::set_device_count(2);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  REQUIRE(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
  REQUIRE_THROWS_WITH(emulator::emulated_enqueue(stream, [] {}), "a launch: invalid resource handle");
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  cudaGraph_t graph = nullptr;
  void* memory = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudaMalloc(&memory, 64) == cudaErrorStreamCaptureUnsupported);
  REQUIRE_THROWS_WITH(emulator::emulated_enqueue(stream, [] {}), Catch::Contains("a previous error during capture"));
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  REQUIRE(graph == nullptr);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(stream, event, 0) == cudaErrorStreamCaptureIsolation);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  emulator::set_device_count(1);
}
