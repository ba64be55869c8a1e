"""`Client`: another machine's hdgemm over HTTP; needs the `server` extra's httpx."""

from hdgemm.client.connection import RemoteError
from hdgemm.client.jobs import RemoteJob
from hdgemm.client.remote import Client
from hdgemm.client.transfer import RemoteMatrix

__all__ = ["Client", "RemoteError", "RemoteJob", "RemoteMatrix"]
