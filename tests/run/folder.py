"""A folder of small matrices, and all that is in it: what a run that failed must not change."""

#: Order of the matrices a.npy, b.npy and c.npy of the fixture `matrices`.
N = 512


def contents(folder):
    """Return the bytes of every file by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
