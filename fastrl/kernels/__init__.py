"""Native loops over arrays: one pass where numpy or torch would need several.

    images_to_bf16, images_to_f32   rows of uint8 images, picked, normalised, channels last
    elu_bf16                        the activation ELU, of bf16 numbers as words
    choose                          log-probabilities and uniform numbers to actions
    uniform                         the hash that noise is made of
    RowFinisher                     what follows a step: stored rewards, reset rows, episodes

Arrays are numpy's or torch's, on the CPU, and are written in place: one of another type or order is
refused (TypeError), not converted. Functions let go of the GIL; each has a counterpart of several
passes in torch or numpy that tests hold it to, and that other devices use.
"""

from fastrl.kernels._kernels import (
    MOST_CHANNELS,
    MOST_CHOICES,
    RowFinisher,
    choose,
    elu_bf16,
    images_to_bf16,
    images_to_f32,
    uniform,
)

__all__ = [
    "MOST_CHANNELS",
    "MOST_CHOICES",
    "RowFinisher",
    "choose",
    "elu_bf16",
    "images_to_bf16",
    "images_to_f32",
    "uniform",
]
