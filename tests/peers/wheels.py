"""The wheels these tests compare with, by the names they are known under here; the sentinel fetches them."""

from trimtab.sentinel.examination.wheels import Wheel, WheelError, cache, locked, unpack

__all__ = ["AREAL", "OPENRLHF", "SKYRL", "TRL", "VERL", "Wheel", "WheelError", "cache", "unpack"]

AREAL = locked()["areal"]
OPENRLHF = locked()["openrlhf"]
SKYRL = locked()["skyrl"]
TRL = locked()["trl"]
VERL = locked()["verl"]
