"""The disk that forgets, under the name by which tests know it."""

from statecore.simulate.crash_disk import Crash, CrashDisk, Fault, Survives

__all__ = ["Crash", "CrashDisk", "Fault", "Survives"]
