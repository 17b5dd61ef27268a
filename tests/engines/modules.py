"""Import some modules of an unpacked wheel as they are, with empty stand-ins for everything else.

A stand-in lets import statements, annotations, base classes and decorators work. `touched` collects every use of one
after loading, so that a test can show that what it tried ran on real code only.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

touched: set[str] = set()
_loading = True


def _note(what: str) -> None:
    if not _loading:
        touched.add(what)


class _StandInType(type):
    path: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _note(f"{cls.path}.{name}")
        return _stand_in(f"{cls.path}.{name}")

    def __call__(cls, *args: Any, **named: Any) -> Any:
        if "path" not in cls.__dict__:  # a real class that derives from a stand-in
            return super().__call__(*args, **named)
        _note(f"{cls.path}()")
        decorated = len(args) == 1 and not named and callable(args[0])
        return args[0] if decorated else super().__call__()

    def __instancecheck__(cls, instance: object) -> bool:
        if "path" in cls.__dict__:
            _note(f"isinstance of {cls.path}")
        return super().__instancecheck__(instance)

    def __getitem__(cls, _key: object) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class _StandIn(metaclass=_StandInType):
    path = "stand-in"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{type(self).path}.{name}")

    def __call__(self, *args: Any, **named: Any) -> Any:
        return type(self)(*args, **named)


_made: dict[str, Any] = {}


def _stand_in(path: str) -> Any:
    if path not in _made:
        _made[path] = _StandInType(path.rpartition(".")[2], (_StandIn,), {"path": path})
    return _made[path]


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if path in _finder.real or path in _finder.ours:
            return importlib.import_module(path)
        _note(path)
        return _stand_in(path)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.root = Path()
        self.package = ""
        self.real: frozenset[str] = frozenset()
        self.ours: Mapping[str, Mapping[str, Any]] = {}
        self.absent: frozenset[str] = frozenset()

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top == self.package:
            if name in self.real and (spec := self._real_spec(name)):
                return spec
        elif top not in self.absent or importlib.machinery.PathFinder.find_spec(top) is not None:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _real_spec(self, name: str) -> importlib.machinery.ModuleSpec | None:
        base = self.root.joinpath(*name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.exists():
                inside: list[str] | None = [] if base.is_dir() else None
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(self.ours.get(module.__name__, {}))


_finder = _Finder()


def load(
    root: Path,
    package: str,
    *,
    real: frozenset[str],
    ours: Mapping[str, Mapping[str, Any]],
    absent: frozenset[str],
    wanted: Mapping[str, str],
) -> types.SimpleNamespace:
    """The modules `wanted` (short name to full name) of the wheel under `root`; once for each process.

    `real`: modules that run unmodified. `ours`: what stand-ins must have. `absent`: third-party packages that get
    stand-ins when they are not installed.
    """
    global _loading  # noqa: PLW0603 - import hooks are global in any case
    _finder.root, _finder.package, _finder.real, _finder.ours, _finder.absent = root, package, real, ours, absent
    sys.meta_path.insert(0, _finder)
    modules = types.SimpleNamespace(**{short: importlib.import_module(full) for short, full in wanted.items()})
    _loading = False
    return modules
