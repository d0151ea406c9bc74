"""From observations to features: one encoder per leaf of the observation space.

Each is a module with `size_out`, the width F of its features, and `forward(obs, normalizer=None)`
from the leaf [N, *shape] as stored to features [N, F], which take the dtype that the encoder
computes in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fastrl.models.config import DEFAULT_ACTIVATION, DEFAULT_HIDDEN
from fastrl.models.encoders import impala, nature
from fastrl.models.encoders.impala import ImpalaEncoder
from fastrl.models.encoders.layers import OneHot, one_hot_of, orthogonal, pixel_scale
from fastrl.models.encoders.mlp import MLPEncoder
from fastrl.models.encoders.nature import NatureEncoder, SmallImageEncoder
from fastrl.models.encoders.user import UserEncoder
from fastrl.models.registry import model_builder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastrl.envs.spec import ObservationSpec
    from fastrl.models.config import ModelConfig

__all__ = [
    "ImpalaEncoder",
    "LeafEncoder",
    "MLPEncoder",
    "NatureEncoder",
    "OneHot",
    "SmallImageEncoder",
    "UserEncoder",
    "encoder_for",
    "encoders_for",
    "orthogonal",
]

ImageEncoder = NatureEncoder | SmallImageEncoder | ImpalaEncoder
LeafEncoder = ImageEncoder | MLPEncoder | UserEncoder


def encoders_for(
    observation: Mapping[str, ObservationSpec], config: ModelConfig
) -> dict[str, LeafEncoder]:
    """The encoders of all leaves of an observation space.

    Raises:
        ValueError: the model is for images and no leaf is one; else as `encoder_for`.
    """
    kinds = {leaf.kind for leaf in observation.values()}
    if config.model in ("nature", "impala") and "image" not in kinds:
        raise ValueError(
            f"--model {config.model} is for images, but the observation has none (it is "
            f"{', '.join(sorted(kinds))}); take --model mlp or leave it out"
        )
    return {key: encoder_for(leaf, config) for key, leaf in observation.items()}


def encoder_for(spec: ObservationSpec, config: ModelConfig) -> LeafEncoder:
    """The encoder of one leaf of the observation space.

    Raises:
        ValueError: for a kind of observation that has none, an image that the model does not take,
            a `config.model` that is not known, or one that cannot be used.
    """
    build = model_builder(config.model)
    if build is not None:
        return UserEncoder(config.model, build, spec)
    if spec.kind == "image" and config.model != "mlp":
        return _image_encoder(spec, config)
    hidden = config.hidden or DEFAULT_HIDDEN
    activation = config.activation or DEFAULT_ACTIVATION
    one_hot = one_hot_of(spec)
    if one_hot is not None:
        return MLPEncoder(one_hot.size, hidden, activation, one_hot)
    size = math.prod(spec.shape)
    if spec.kind == "vector":
        return MLPEncoder(size, hidden, activation)
    if spec.kind == "image":
        return MLPEncoder(size, hidden, activation, scale=pixel_scale(spec))
    raise ValueError(
        f"observation kind is {spec.kind!r}, expected 'image', 'vector', 'discrete' or "
        "'multi_discrete'"
    )


def _image_encoder(spec: ObservationSpec, config: ModelConfig) -> ImageEncoder:
    scale, features = pixel_scale(spec), config.image_features
    activation = config.cnn_activation or "relu"
    if config.model == "impala":
        channels = config.channels or impala.CHANNELS
        return ImpalaEncoder(spec.shape, scale, channels, features or impala.FEATURES)
    channels = config.channels or nature.CHANNELS
    if config.model == "auto" and min(spec.shape[1:]) < nature.MIN_SIZE:
        return SmallImageEncoder(
            spec.shape, scale, channels, features or nature.SMALL_FEATURES, activation
        )
    return NatureEncoder(spec.shape, scale, channels, features or nature.FEATURES, activation)
