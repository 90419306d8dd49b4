// Ranks that are MPI's processes: a transport for rootdk/distributed.h, in a library of its own (rootdk::mpi).
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "rootdk/distributed/transport.h"
#include "rootdk/export.h"

namespace rootdk::distributed {

struct MpiOptions {
  /// A communicator as MPI_Comm_c2f gives it; absent: all processes. The transport works on a duplicate.
  std::optional<int> communicator = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  ///< a wait that takes longer throws
};

/// Initialises MPI if nobody has, and then finalises it when the process ends, so that there may be as many transports
/// as one likes, at once or one after the other. To be called by every process of the communicator. MPI's errors are
/// returned, not fatal; whoever catches an Error ends the job (MPI_Abort), since others may hold messages of this rank
/// that were never received.
ROOTDK_API std::unique_ptr<Transport> mpi_transport(const MpiOptions& options = {});

}  // namespace rootdk::distributed
