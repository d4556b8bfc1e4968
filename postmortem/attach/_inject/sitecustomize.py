"""Imported by every Python process of a command that postmortem started: attaches when torch is imported.

This folder stands first on PYTHONPATH and holds this file only, so that it hides no module of the user's but their own
`sitecustomize`, which is loaded from here. Nothing but `sys` and `posix` is needed until torch is imported. The file
must be readable for every Python 3, as it runs in the interpreter of the user's program.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))
_NAME = os.path.basename(_PACKAGE)
_SESSION = os.environ.get("POSTMORTEM_SESSION", "")


def _note(text):
    """Leaves a line for the launcher; what is wrong with us must not end the user's program."""
    folder = os.path.join(_SESSION, "notes")
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, str(os.getpid())), "a") as file:
            file.write(" ".join(text.split()) + "\n")
    except OSError as error:
        sys.stderr.write(f"{_NAME}: {text}: {error}\n")


def _found(finder, name, path, target):
    """The spec of a module by the finders after this one."""
    for other in sys.meta_path:
        find = getattr(other, "find_spec", None)
        spec = find(name, path, target) if find is not None and other is not finder else None
        if spec is not None:
            return spec
    return None


class _Postmortem:
    """Finds the package `postmortem` where the launcher has it, unless the program has another one of this name."""

    def find_spec(self, name, path=None, target=None):
        if name != _NAME:
            return None
        theirs = _found(self, name, path, target)
        if theirs is not None and not os.path.isfile(os.path.join(os.path.dirname(theirs.origin or ""), "_lazy.py")):
            return theirs
        from importlib.util import spec_from_file_location

        start = os.path.join(_PACKAGE, "__init__.py")
        return spec_from_file_location(name, start, submodule_search_locations=[_PACKAGE])


class _Loader:
    """The loader of torch, which attaches when torch has been executed."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if _AFTER_TORCH in sys.meta_path:
            sys.meta_path.remove(_AFTER_TORCH)
            _attach()


class _AfterTorch:
    """Finds `torch` as the other finders do, with a loader that calls `_attach` at its end."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = _found(self, name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec


_AFTER_TORCH = _AfterTorch()


def _attach():
    try:
        sys.meta_path.insert(0, _Postmortem())
        from postmortem.attach import start

        start.attach(_SESSION)
    except Exception as error:  # noqa: BLE001 - a fault of ours must not end the program
        _note(f"could not attach to a process: {type(error).__name__}: {error}")


def _load_hidden():
    """Runs the `sitecustomize` that this one hides, in its own name, and takes this folder off the path."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != _HERE]
    del sys.modules[__name__]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        sys.modules[__name__] = _THIS


_THIS = sys.modules[__name__]
if _SESSION:
    if os.path.exists(os.path.join(_SESSION, "done")):
        os._exit(0)  # the question is answered: what would start the program anew (torchrun --max-restarts) ends here
    if os.path.exists(os.path.join(_SESSION, "stopped")) and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        os._exit(1)  # `--on-fault stop` has ended the training: torchrun must not begin it again
    sys.meta_path.insert(0, _AFTER_TORCH)
if __name__ == "sitecustomize":
    _load_hidden()
