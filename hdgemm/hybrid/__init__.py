"""One product on several devices: one pipeline each, one pool of cells, a split that balances."""

from hdgemm.hybrid.learning import learn_alone
from hdgemm.hybrid.run import run_on_devices

__all__ = ["learn_alone", "run_on_devices"]
