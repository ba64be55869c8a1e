"""One product on several devices: one pipeline each, one pool of cells, a split that balances."""

from hdgemm.hybrid.run import run_on_devices

__all__ = ["run_on_devices"]
