// A program of somebody else's over rootdk::mpi: one rank is all there is without mpirun.
#include <rootdk/distributed.h>
#include <rootdk/mpi.h>

int main() {
  const auto transport = rootdk::distributed::mpi_transport();
  return transport->rank() == 0 && transport->ranks() == 1 ? 0 : 1;
}
