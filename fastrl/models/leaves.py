"""One module per leaf of a space, whatever the leaf is called."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Generic, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


class LeafModules(nn.Module, Generic[M]):
    """A mapping from leaf keys to modules, which are parts of this one.

    Keys come from the environment ("robot/arm", "a.b", "keys", ""), and the names of a torch module
    may have no dot and may not be one of its attributes. So the part of leaf "obs" is called
    "leaf_obs" in a state_dict, with dots written %2E; two keys never share a name. Everything here
    takes and gives the leaf's own key.
    """

    def __init__(self, modules: Mapping[str, M]) -> None:
        """Hold `modules`, in their order."""
        super().__init__()
        # Beside torch's own dictionary, by name, so that a forward pass need not translate.
        self._by_key = dict(modules)
        for key, module in modules.items():
            self.add_module(_name(key), module)

    def __getitem__(self, key: str) -> M:
        return self._by_key[key]

    def get(self, key: str) -> M | None:
        """The module of a leaf; None where it has none."""
        return self._by_key.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def keys(self) -> KeysView[str]:
        """The leaves that have a module."""
        return self._by_key.keys()

    def values(self) -> ValuesView[M]:
        """The modules."""
        return self._by_key.values()

    def items(self) -> ItemsView[str, M]:
        """Pairs of a leaf and its module."""
        return self._by_key.items()


def _name(key: str) -> str:
    return "leaf_" + key.replace("%", "%25").replace(".", "%2E")
