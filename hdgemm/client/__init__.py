"""Client of the job service over HTTP; needs httpx, which the `server` extra installs."""

from hdgemm.errors import load_extra

load_extra("httpx", "the client of the service needs httpx", "server")

from hdgemm.client._connection import RemoteError  # noqa: E402 - the others import httpx
from hdgemm.client._jobs import RemoteJob  # noqa: E402
from hdgemm.client._remote import Client  # noqa: E402
from hdgemm.client._transfer import RemoteMatrix  # noqa: E402

__all__ = ["Client", "RemoteError", "RemoteJob", "RemoteMatrix"]
