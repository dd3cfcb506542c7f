"""The wheels these tests compare with, by the names they are known under here; the sentinel fetches them."""

from trimtab.sentinel.examination.wheels import Wheel, WheelError, cache, locked, unpack

__all__ = ["SKYRL", "VERL", "Wheel", "WheelError", "cache", "unpack"]

SKYRL = locked()["skyrl"]
VERL = locked()["verl"]
