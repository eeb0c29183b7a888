"""Keeps what JAX's CUDA plugin says where it finds no cuDNN off the screen of programs that do not import memprof.

The extra `deviceless` installs the plugin for its compiler, and JAX starts it in every program of the environment.
`jax-memprof-quiet.pth` imports this module whenever Python starts. So it imports nothing but `sys`, and does nothing
until JAX imports its plugin. docs/configuration.md says why that takes a `.pth` file.

PYTEST_DONT_REWRITE: pytest rewrites the modules of its plugins' distributions, and warns of those already imported.
"""

import sys

_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


class _PluginFinder:
    """Finds no module; it notices that one of the plugins is looked for."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname in _PLUGINS:
            sys.meta_path.remove(self)
            _leave_out_plugin_complaints()


def _leave_out_plugin_complaints() -> None:
    import os
    import runpy

    # By its path: the program may have a module `memprof` of its own.
    file = os.path.join(os.path.dirname(__file__), "memprof", "plugin_complaints.py")
    if os.path.exists(file):
        runpy.run_path(file)["leave_out_plugin_complaints"]()


sys.meta_path.insert(0, _PluginFinder())
