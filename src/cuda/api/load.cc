// Loads librootdk_cuda from where librootdk lies; it may have come from elsewhere, or be missing.
#include <dlfcn.h>

#include "cuda/api/backend.h"

namespace rootdk::cuda {

namespace {

Loaded load() {
  void* library = dlopen("librootdk_cuda.so", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return {nullptr,
            std::string("the CUDA kernels could not be loaded; they are built where nvcc is, and pip has them as "
                        "rootdk-cuda (") +
                dlerror() + ")"};
  const auto table = reinterpret_cast<const Backend* (*)()>(dlsym(library, kBackendSymbol));
  if (!table || table()->size != sizeof(Backend)) return {nullptr, "librootdk_cuda.so is of another version of rootdk"};
  return {table(), {}};
}

}  // namespace

const Loaded& load_backend() {
  static const Loaded loaded = load();
  return loaded;
}

}  // namespace rootdk::cuda
