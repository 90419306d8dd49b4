// One attention over many ranks: who holds what, how it travels, what it costs, forward and backward.
//
// Each rank holds some pieces of one sequence (Layout) and the messages between ranks go through a Transport: threads
// of this process (in_process_transports), or MPI (rootdk/mpi.h). forward and backward are rootdk's own, with these
// two.
#pragma once

#include "rootdk/distributed/attention.h"
#include "rootdk/distributed/cost.h"
#include "rootdk/distributed/layout.h"
#include "rootdk/distributed/transport.h"
