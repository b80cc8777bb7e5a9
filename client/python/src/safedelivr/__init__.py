"""Client of the API of Safedelivr."""

from .client import Safedelivr
from .requests import SafedelivrError
from .updates import Updates
from .webhook import Event, verify

__all__ = ["Event", "Safedelivr", "SafedelivrError", "Updates", "verify"]
