"""What squares of pixels and the native ELU save of Nature's network in bf16, on one thread.

``python benchmarks/nature_in_bf16.py``

Four versions in turn, in one process: microseconds per image of a training and of an acting pass.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from fastrl.models.encoders import layers
from fastrl.models.encoders.nature import NatureEncoder
from fastrl.models.normalizer import ObservationNormalizer
from fastrl.models.pixels import PickedImages

SHAPE = (4, 84, 84)
SQUARE, ELU = layers._square, layers.elu
VERSIONS = {"neither": (False, False), "squares": (True, False), "ELU": (False, True)}
VERSIONS["both"] = (True, True)


def choose(squares: bool, native_elu: bool) -> None:
    """Have the network computed with these."""
    layers._square = SQUARE if squares else lambda conv, dtype, images: 1
    layers.IN_PLACE["elu"] = ELU if native_elu else F.elu_


def seconds_of(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--passes", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (2 * options.images, *SHAPE), dtype=torch.uint8)
    picked = PickedImages(images, torch.randperm(len(images))[: options.images])
    encoder = NatureEncoder(SHAPE, activation="elu")
    normalizer = ObservationNormalizer(SHAPE, 1 / 255, image=True)

    def features() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return encoder(picked, normalizer)

    def train() -> None:
        features().float().square().mean().backward()

    times = {name: ([], []) for name in VERSIONS}
    for turn in range(options.passes + 3):
        for name, version in VERSIONS.items():
            choose(*version)
            training = seconds_of(train)
            with torch.no_grad():
                acting = seconds_of(features)
            if turn >= 3:
                times[name][0].append(training)
                times[name][1].append(acting)
    print(f"us per image, medians of {options.passes} passes over {options.images} images")
    for name, both in times.items():
        training, acting = (1e6 * statistics.median(x) / options.images for x in both)
        print(f"{name:8s} training {training:6.1f}  acting {acting:6.1f}")


if __name__ == "__main__":
    main()
