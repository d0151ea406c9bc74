"""One flat float32 buffer that a writer publishes in versions 1, 2, ... to any number of readers.

Readers copy a whole version, never a mixture of two, and hold nobody up; nobody holds them up. A
writer killed anywhere harms nobody: its replacement goes on from `version`. The proof is in
`native/weights.h`.
"""

from fastrl.shm._native import Weights, weights_bytes

__all__ = ["Weights", "weights_bytes"]
