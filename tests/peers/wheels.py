"""The wheels these tests compare with, by the names they are known under here; the sentinel fetches them."""

from trimtab.sentinel.wheels import Wheel, WheelError, cache, locked, unpacked

__all__ = ["SKYRL", "VERL", "Wheel", "WheelError", "cache", "unpacked"]

SKYRL = locked()["skyrl"]
VERL = locked()["verl"]
