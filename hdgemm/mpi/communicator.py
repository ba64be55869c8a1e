"""Messages between processes: MPI's, through mpi4py, or none where there is one process."""

from __future__ import annotations

import os
import platform
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError, installation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: Variables in which launchers tell each process how many they started: MPICH's and Intel's mpiexec
#: and srun with PMI, Open MPI's, MVAPICH's.
_LAUNCHED: Final = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
#: The same of srun without PMI. SLURM_NTASKS is set in a batch script, too, which is one process.
_SLURM_STEP: Final = "SLURM_STEP_NUM_TASKS"
#: Characters of the longest value that a message repeats.
_SHOWN: Final = 60


class Request:
    """A message of mpi4py on its way, which keeps its buffer alive."""

    def __init__(self, request: Any, array: NDArray[Any]) -> None:
        self._request, self._array = request, array

    def wait(self) -> None:
        """Block until the buffer may be used again."""
        self._request.Wait()


class Communicator:
    """A group of processes, here of one; `Mpi` is a group of several.

    Every collective method is called by all processes in the same order.
    """

    rank = 0
    size = 1

    @property
    def threaded(self) -> bool:
        """Whether several threads of a process may exchange messages at once."""
        return True

    def split(self, color: int, key: int) -> Communicator:  # noqa: ARG002
        """Return the group of the processes that give the same color, ranked by key."""
        return self

    def free(self) -> None:
        """Free a group that `split` returned, and the groups that were split from it.

        All of its processes call this. MPI libraries have some thousand groups at a time.
        """

    def broadcast(self, array: NDArray[Any], root: int) -> None:
        """Copy the root's array into everyone's."""

    def gather(
        self,
        row: NDArray[Any],
        out: NDArray[Any] | None = None,  # noqa: ARG002
    ) -> NDArray[Any]:
        """Return the rows of all processes, as a matrix; in `out`, where it is given."""
        return row[np.newaxis]

    def total(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the element-wise sum over all processes."""
        return array

    def join(self, array: NDArray[Any]) -> None:
        """Fill in an array of which each process has some elements, and zeros for the others'."""

    def largest(self, value: float) -> float:
        """Return the largest value of all processes; NaN where one of them is NaN."""
        return value

    def collect(self, value: object) -> Sequence[Any]:
        """Return everyone's Python object, by rank."""
        return [value]

    def send(self, array: NDArray[Any], to: int, tag: int = 0) -> Request:  # noqa: ARG002
        """Begin to send a contiguous array, which must stay unchanged until it was waited for."""
        raise AssertionError(f"a message of {array.size} elements to process {to} of 1")

    def receive(self, array: NDArray[Any], source: int, tag: int = 0) -> None:  # noqa: ARG002
        """Block until a contiguous array has been received."""
        raise AssertionError(f"a message of {array.size} elements from process {source} of 1")

    def arrived(self, source: int) -> bool:  # noqa: ARG002
        """Return whether a message from a process can be received without blocking."""
        return False

    def gather_parts(
        self,
        array: NDArray[Any],
        sizes: Sequence[int],  # noqa: ARG002
    ) -> list[NDArray[Any]]:
        """Return the one-dimensional arrays of all processes, of the given numbers of elements."""
        return [array]

    def exchange(
        self,
        sent: NDArray[Any],
        counts: Sequence[int],  # noqa: ARG002
        arriving: Sequence[int],  # noqa: ARG002
        out: NDArray[Any] | None = None,  # noqa: ARG002
    ) -> NDArray[Any]:
        """Send to each process so many elements of an array; return those that all send here.

        Both are one after the other, by rank; the latter in `out`, where it is given.
        """
        return sent

    def abort(self, exit_code: int) -> None:
        """End all processes of the job; one alone ends by itself."""

    def compare(self, parameters: Mapping[str, object]) -> None:
        """Raise `InputError` on every process where the parameters of two of them differ.

        Called once before other messages: processes with different parameters exchange messages of
        different sizes, or wait for messages that none sends. hdgemm's version is compared, too.
        """
        own = {"hdgemm's version": import_module("hdgemm").__version__, **parameters}
        everyone: Sequence[tuple[str, Any]] = self.collect((platform.node(), own))
        first = everyone[0][1]
        for rank, (host, other) in enumerate(everyone):
            if other == first:
                continue
            if not (isinstance(first, dict) and isinstance(other, dict)):  # of another version
                raise InputError(
                    f"rank {rank} on {host} runs another version of hdgemm than rank 0"
                )
            name = next(
                name
                for name in (*first, *other)
                if name not in first or name not in other or first[name] != other[name]
            )
            values = [repr(each.get(name)) for each in (first, other)]
            if max(map(len, values)) > _SHOWN:
                found = f"{name} on rank {rank} on {host} differs from rank 0's"
            else:
                found = f"{name} is {values[0]} on rank 0 and {values[1]} on rank {rank} on {host}"
            raise InputError(f"{found}: start all with the same ones")


class Mpi(Communicator):
    """A communicator of mpi4py."""

    def __init__(self, comm: Any, siblings: list[Mpi] | None = None) -> None:
        self._comm = comm
        self._siblings = siblings  # the groups of the communicator that this one was split from
        self._groups: list[Mpi] = []
        self.rank: int = comm.rank
        self.size: int = comm.size

    @property
    def threaded(self) -> bool:
        """Whether MPI was initialised with MPI_THREAD_MULTIPLE."""
        from mpi4py import MPI

        return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)

    def split(self, color: int, key: int) -> Mpi:
        """Split the communicator (MPI_Comm_split)."""
        group = Mpi(self._comm.Split(color, key), self._groups)
        self._groups.append(group)
        return group

    def free(self) -> None:
        """Free the communicator and all that were split from it (MPI_Comm_free)."""
        while self._groups:
            self._groups[-1].free()
        self._comm.Free()
        if self._siblings is not None:
            self._siblings.remove(self)

    def broadcast(self, array: NDArray[Any], root: int) -> None:
        """Broadcast in place (MPI_Bcast)."""
        self._comm.Bcast(array, root)

    def gather(self, row: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Gather rows (MPI_Allgather)."""
        rows = np.empty((self.size, row.size), row.dtype) if out is None else out
        self._comm.Allgather(row, rows)
        return rows

    def total(self, array: NDArray[Any]) -> NDArray[Any]:
        """Add arrays up in the order of ranks, so that the same run gives the same bits."""
        found: NDArray[Any] = self.gather(array.ravel()).sum(axis=0)
        return found.reshape(array.shape)

    def join(self, array: NDArray[Any]) -> None:
        """Add in place (MPI_Allreduce): in any order, since one term is not zero."""
        from mpi4py import MPI

        self._comm.Allreduce(MPI.IN_PLACE, array)

    def largest(self, value: float) -> float:
        """Gather the values, since MPI_MAX may lose a NaN."""
        return float(np.max(self.gather(np.array([value], np.float64))))

    def collect(self, value: object) -> Sequence[Any]:
        """Gather Python objects (allgather)."""
        found: Sequence[Any] = self._comm.allgather(value)
        return found

    def send(self, array: NDArray[Any], to: int, tag: int = 0) -> Request:
        """Send without blocking (MPI_Isend)."""
        return Request(self._comm.Isend(array, to, tag), array)

    def receive(self, array: NDArray[Any], source: int, tag: int = 0) -> None:
        """Receive (MPI_Recv)."""
        self._comm.Recv(array, source, tag)

    def arrived(self, source: int) -> bool:
        """Probe for a message (MPI_Iprobe)."""
        return bool(self._comm.Iprobe(source))

    def gather_parts(self, array: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
        """Gather arrays of several sizes (MPI_Allgatherv)."""
        found = np.empty(sum(sizes), array.dtype)
        counts = [size * array.itemsize for size in sizes]
        self._comm.Allgatherv(array.view(np.uint8), [found.view(np.uint8), counts])
        return np.split(found, np.cumsum(sizes)[:-1])

    def exchange(
        self,
        sent: NDArray[Any],
        counts: Sequence[int],
        arriving: Sequence[int],
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Exchange parts of arrays (MPI_Alltoallv)."""
        found = np.empty(sum(arriving), sent.dtype) if out is None else out
        buffers = [
            [array.view(np.uint8), [size * sent.itemsize for size in sizes]]
            for array, sizes in ((sent, counts), (found, arriving))
        ]
        self._comm.Alltoallv(*buffers)
        return found

    def abort(self, exit_code: int) -> None:
        """End all processes of the job (MPI_Abort)."""
        self._comm.Abort(exit_code)


def world() -> Communicator:
    """Return the processes that mpiexec started; this one alone without mpi4py or an MPI library.

    Raises
    ------
    InputError
        When mpiexec or srun started several, which do not see each other.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # the latter where it finds no MPI library
        size = 1
    else:
        size = MPI.COMM_WORLD.size
    started, launcher = _started()
    if size == 1 < started:
        raise InputError(
            f"{launcher} started {started} processes, which do not see each other: "
            f"{installation('mpi')}, with an mpi4py for the same MPI as {launcher}"
        )
    return Mpi(MPI.COMM_WORLD) if size > 1 else Communicator()


def _started() -> tuple[int, str]:
    """Return how many processes the launcher started, by its variables, and its name."""
    told = [int(os.environ[name]) for name in _LAUNCHED if name in os.environ]
    if told:  # Slurm starts one process a machine for MPICH's mpiexec, which starts the ranks
        return max(told), "mpiexec"
    return int(os.environ.get(_SLURM_STEP, "1")), "srun"
