"""Client of the job service over HTTP; needs httpx, which the `server` extra installs."""

from hdgemm.client.connection import RemoteError
from hdgemm.client.jobs import RemoteJob
from hdgemm.client.remote import Client
from hdgemm.client.transfer import RemoteMatrix

__all__ = ["Client", "RemoteError", "RemoteJob", "RemoteMatrix"]
