// What is called of the CUDA driver itself: a GPU divided into parts. It takes it ill when parts that are in use
// overlap, and when a part goes before its streams.

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "cuda/emulator/fake_state.h"

using namespace millrace::emulator;

namespace {

/// The identity of a resource, stored where the driver keeps private data. No two divisions make the same parts.
struct PartName {
  int device = 0;
  int division = 0;
  int index = 0;
  friend bool operator==(const PartName&, const PartName&) = default;
};

PartName name_of(const CUdevResource& resource) {
  PartName name;
  std::memcpy(&name, resource._internal_padding, sizeof(name));
  return name;
}

CUdevResource make_resource(unsigned multiprocessors, PartName name) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = multiprocessors;
  std::memcpy(resource._internal_padding, &name, sizeof(name));
  return resource;
}

}  // namespace

struct CUdevResourceDesc_st {
  PartName name;
};

struct CUgreenCtx_st {
  PartName name;
};

namespace {

struct Parts {
  std::mutex mutex;
  int divisions = 0;
  std::vector<CUgreenCtx_st*> in_use;
  std::vector<std::unique_ptr<CUdevResourceDesc_st>> descriptions;  // there is no call that frees one
};

Parts& parts() {
  static auto* const kept = new Parts;
  return *kept;
}

/// Returns the granularity of parts: large GPUs are divided by eights.
unsigned granularity() {
  return state().multiprocessors >= 16 ? 8 : 1;
}

CUresult get_error_string(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "no error" : "invalid resource configuration";
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult device_get_dev_resource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = make_resource(static_cast<unsigned>(state().multiprocessors), {.device = device});
  return CUDA_SUCCESS;
}

CUresult split_by_count(CUdevResource* result, unsigned* groups, const CUdevResource* input, CUdevResource*, unsigned,
                        unsigned least) {
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  if (least > input->sm.smCount) return CUDA_ERROR_INVALID_VALUE;
  const unsigned each = (std::max(least, 1u) + granularity() - 1) / granularity() * granularity();
  const unsigned possible = input->sm.smCount / each;
  if (result == nullptr) {
    *groups = possible;
    return CUDA_SUCCESS;
  }
  *groups = std::min(*groups, possible);
  const std::lock_guard lock(parts().mutex);
  ++parts().divisions;
  for (unsigned i = 0; i < *groups; ++i) {
    result[i] = make_resource(each, {name_of(*input).device, parts().divisions, static_cast<int>(i)});
  }
  return CUDA_SUCCESS;
}

CUresult generate_desc(CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
  if (count != 1) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const std::lock_guard lock(parts().mutex);
  *description = parts().descriptions.emplace_back(std::make_unique<CUdevResourceDesc_st>(name_of(*resources))).get();
  return CUDA_SUCCESS;
}

CUresult green_ctx_create(CUgreenCtx* context, CUdevResourceDesc description, CUdevice device, unsigned flags) {
  const PartName name = description->name;
  if (flags != CU_GREEN_CTX_DEFAULT_STREAM || device != name.device) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(parts().mutex);
  const bool overlaps = std::ranges::any_of(parts().in_use, [name](const CUgreenCtx_st* other) {
    return other->name.device == name.device && (other->name.division != name.division || other->name == name);
  });
  if (overlaps) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  *context = parts().in_use.emplace_back(new CUgreenCtx_st{name});
  return CUDA_SUCCESS;
}

CUresult green_ctx_destroy(CUgreenCtx context) {
  const std::lock_guard lock(parts().mutex);
  const bool has_streams =
      std::ranges::any_of(state().divided, [context](const auto& of) { return of.second == context; });
  CHECK(!has_streams, "a part of a GPU goes before its streams");
  std::erase(parts().in_use, context);
  delete context;
  return CUDA_SUCCESS;
}

CUresult green_ctx_stream_create(CUstream* stream, CUgreenCtx context, unsigned flags, int) {
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = make_stream(context->name.device);
  ++state().divided_streams;
  const std::lock_guard lock(state().streams_mutex);
  state().divided[*stream] = context;
  return CUDA_SUCCESS;
}

struct Entry {
  std::string_view name;
  int since = 0;
  void* function = nullptr;
};

const Entry kEntries[] = {{"cuGetErrorString", 6000, reinterpret_cast<void*>(get_error_string)},
                          {"cuDeviceGet", 2000, reinterpret_cast<void*>(device_get)},
                          {"cuDeviceGetDevResource", 12040, reinterpret_cast<void*>(device_get_dev_resource)},
                          {"cuDevSmResourceSplitByCount", 12040, reinterpret_cast<void*>(split_by_count)},
                          {"cuDevResourceGenerateDesc", 12040, reinterpret_cast<void*>(generate_desc)},
                          {"cuGreenCtxCreate", 12040, reinterpret_cast<void*>(green_ctx_create)},
                          {"cuGreenCtxDestroy", 12040, reinterpret_cast<void*>(green_ctx_destroy)},
                          {"cuGreenCtxStreamCreate", 12050, reinterpret_cast<void*>(green_ctx_stream_create)}};

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                        unsigned long long, cudaDriverEntryPointQueryResult* status) {
  *function = nullptr;
  if (version > static_cast<unsigned>(state().driver_version)) return returned(cudaErrorInvalidValue);
  *status = cudaDriverEntryPointSymbolNotFound;
  const auto found = std::ranges::find(kEntries, std::string_view(symbol), &Entry::name);
  if (found == std::end(kEntries)) return cudaSuccess;
  if (version < static_cast<unsigned>(found->since)) {
    *status = cudaDriverEntryPointVersionNotSufficent;
    return cudaSuccess;
  }
  *function = found->function;
  *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
