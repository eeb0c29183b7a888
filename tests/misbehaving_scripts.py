"""Scripts that misbehave, by name: each is run by plain Python and under `memprof watch`, which must not differ.

`TRAIN` in a script stands for one jitted call on the CPU. `sys.argv` is `[name, "two words", ""]`, and stdin holds a
line of text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script and how it is run.

    Attributes:
        code: of `script.py`; empty if another file is run.
        files: others in its folder, by name.
        run: the arguments of Python.
        environment: variables that it starts with.
        stdin: its standard input.
    """

    code: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    run: tuple[str, ...] = ("script.py", "two words", "")
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: str = "a line\n"


_TRAIN = """
import jax, jax.numpy as jnp
print("trained", float(jax.jit(lambda x: (x * 2).sum())(jnp.ones(3))), flush=True)
"""

_SCRIPTS = {
    "exit with text": "import sys; sys.exit('no data')",
    "exit with None": "import sys; sys.exit(None)",
    "exit with True": "import sys; sys.exit(True)",
    "exit with 256": "import sys; sys.exit(256)",
    "exit with -1": "import sys; sys.exit(-1)",
    "exit with 2 ** 40": "import sys; sys.exit(2 ** 40)",
    "exit with an object": "import sys; sys.exit({'code': 3})",
    "exit code in an attribute": "raise SystemExit(7, 'more')",
    "exit after training": "import sys; sys.exit(5)",
    "os._exit": "TRAIN\nimport os; os._exit(9)",
    "os.abort": "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
    "killed by SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed by SIGUSR1": "import os, signal; os.kill(os.getpid(), signal.SIGUSR1)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "uncaught error": "def f(): raise ValueError('bad')\nf()",
    "uncaught error after training": "TRAIN\nraise ValueError('bad')",
    "error with a cause and a note": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    e.add_note('a note')\n    raise KeyError('k') from e"
    ),
    "error group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "error whose str raises": (
        "TRAIN\nclass E(Exception):\n    def __str__(self): raise RuntimeError('no text')\nraise E()"
    ),
    "error whose str exits": "class E(Exception):\n    def __str__(self): raise SystemExit(4)\nraise E()",
    "error that is no Exception": "class E(BaseException): pass\nraise E('base')",
    "syntax error": "def f(:\n",
    "null bytes": "x = 1\0",
    "recursion": (
        "import sys\ndef depth(n):\n    try:\n        return depth(n + 1)\n"
        "    except RecursionError:\n        return n\n"
        "print(depth(0))\ndef f(): f()\nf()"
    ),
    "recursion through a jit": (
        "import jax\n@jax.jit\ndef f(x): return f(x)\n"
        "try:\n    f(1.0)\nexcept RecursionError as e:\n    print('caught', type(e))"
    ),
    "error in a jitted function": "import jax\n@jax.jit\ndef f(x):\n    raise ValueError('while tracing')\nf(1.0)",
    "wrong shapes in a jit": "import jax, jax.numpy as jnp\njax.jit(jnp.dot)(jnp.ones(3), jnp.ones(4))",
    "memory error": "raise MemoryError",
    "own excepthook": (
        "TRAIN\nimport sys\nsys.excepthook = lambda kind, error, trace: print('hook', kind.__name__, error)\n1 / 0"
    ),
    "excepthook that fails": "import sys\ndef hook(*a): raise OSError('hook')\nsys.excepthook = hook\n1 / 0",
    "own signal handler": (
        "import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: print('got it'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nprint(signal.getsignal(signal.SIGINT))"
    ),
    "an alarm while compiling": (
        "import jax, jax.numpy as jnp, signal, time\n"
        "class Late(Exception): pass\ndef late(*a): raise Late\n"
        "signal.signal(signal.SIGALRM, late)\nx = jnp.ones(3)\n"
        "def slow(x):\n    signal.raise_signal(signal.SIGALRM)\n    return x\n"
        "try:\n    jax.jit(slow)(x)\nexcept Late:\n    print('late')"
    ),
    "swallows everything": (
        "import jax\nfor n in range(3):\n    try:\n        print(jax.jit(lambda x: x + n)(1))\n"
        "    except BaseException: pass"
    ),
    "atexit": "import atexit\natexit.register(print, 'first')\nTRAIN\natexit.register(print, 'second')\nprint('end')",
    "atexit that fails": "import atexit, os\natexit.register(os._exit, 6)",
    "a thread that outlives main": (
        "TRAIN\nimport threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread', flush=True))).start()\nprint('main')"
    ),
    "waits for all threads": (
        "TRAIN\nimport threading, time\nprint(threading.active_count(), [t.name for t in threading.enumerate()])"
    ),
    "an error in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='worker').start()",
    "closes stdout": "import sys\nsys.stdout.close()",
    "closes stderr": "import sys\nsys.stderr.close()",
    "closes descriptors 1 and 2": "TRAIN\nimport os\nos.close(1); os.close(2)",
    "closes all descriptors": "import jax, os\nos.closerange(3, 4096)\nTRAIN",
    "no descriptors left": (
        "import jax, os\nx = jax.numpy.ones(3)\nheld = []\n"
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n    while True: held.append(os.open('/dev/null', 0))\nexcept OSError: pass\n"
        "print(float(jax.jit(lambda x: (x * 2).sum())(x)))"
    ),
    "no file may grow": (
        "import jax, resource\nx = jax.numpy.ones(3)\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "print(float(jax.jit(lambda x: (x * 2).sum())(x)))"
    ),
    "no new thread": (
        "import jax, resource\nx = jax.numpy.ones(3)\nimport threading\nthreading.Thread.start = None\nTRAIN"
    ),
    "deletes the temporary folder": ("import jax, shutil, os, tempfile\nshutil.rmtree(os.environ['TMPDIR'])\nTRAIN"),
    "deletes its folder": "import os, shutil\nshutil.rmtree(os.getcwd())\nTRAIN",
    "changes its folder": "import os\nos.chdir('/')\nprint(os.getcwd(), __file__.count('/') > 1)",
    "clears the environment": "import os\nos.environ.clear()\nTRAIN",
    "shows its environment": (
        "import os, sys\nprint(sorted(name for name in os.environ if name not in ('_', 'LC_CTYPE')))\n"
        "print(os.environ.get('PYTHONPATH'))"
    ),
    "shows its path": "import sys\nprint(sys.path, sys.flags, sys.orig_argv[1:])",
    "shows its arguments": "import sys\nprint(sys.argv, __name__, __file__, __doc__, __spec__, __package__)",
    "shows its globals": "print(sorted(globals()), type(__loader__), __builtins__)",
    "shows its modules": "import sys\nprint(sorted({'json', 'jax', 'memprof', 're'} & set(sys.modules)))",
    "a module of a library's name": "import json\nprint(json.MINE)",
    "reads stdin": "print(input())\nprint(input())",
    "stack at the top": "import sys\nprint(sys._getframe().f_back, sys._getframe().f_code.co_filename)",
    "pickles of __main__": (
        "import pickle\nclass Mine: pass\nprint(type(pickle.loads(pickle.dumps(Mine()))).__module__)\n"
        "import __main__\nprint(__main__.Mine is Mine)"
    ),
    "spawns a process": (
        "import multiprocessing, os\ndef work(n): print('child', n, 'PYTHONPATH' in os.environ, flush=True)\n"
        "if __name__ == '__main__':\n    p = multiprocessing.get_context('spawn').Process(target=work, args=(3,))\n"
        "    p.start(); p.join(); print(p.exitcode)"
    ),
    "forks": (
        "import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True); os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
    "forks and both exit": (
        "import os, sys\nTRAIN\nimport warnings; warnings.simplefilter('ignore')\npid = os.fork()\n"
        "if pid == 0: sys.exit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
    "forks after JAX is imported": (
        "import os, jax\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)\nprint('parent')"
    ),
    "becomes a daemon": (
        "import os, sys, time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
        "print('daemon', flush=True)"
    ),
    "replaces its process": "import os, sys\nos.execv(sys.executable, ['', '-c', 'import sys; sys.exit(8)'])",
    "trains in a subprocess": (
        "import subprocess, sys\ncode = 'import jax; print(jax.jit(lambda x: x + 1)(1))'\n"
        "print(subprocess.run([sys.executable, '-c', code]).returncode)"
    ),
    "warnings are errors": "import jax, warnings\nwarnings.simplefilter('error')\nTRAIN",
    "a warning once": ("import warnings\ndef f(): warnings.warn('once')\nf()\nf()"),
    "unusable donation": (
        "import jax, jax.numpy as jnp\nf = jax.jit(lambda x: x.sum(), donate_argnums=0)\n"
        "print(f(jnp.ones(3)))\nprint(f(jnp.ones(4)))"
    ),
    "a static argument without a text": (
        "import jax\nclass S:\n    def __repr__(self): raise SystemExit(3)\n    def __hash__(self): return 1\n"
        "    def __eq__(self, other): return True\nprint(jax.jit(lambda s, x: x, static_argnums=0)(S(), 1.0))"
    ),
    "reloads JAX's module": "import importlib, jax\nimport jax.tree\nimportlib.reload(jax)\nTRAIN",
    "traces stay": "import sys\nsys.settrace(lambda *a: None)\nprint(sys.gettrace() is not None)\nTRAIN",
    "garbage is off": "import gc\ngc.disable()\nprint(gc.isenabled())",
    "no modules left": "import jax, sys\nf = jax.jit(lambda x: x + 1)\nsys.modules.clear()\nprint(f(1))",
    "a wrong import": "import nothing_of_this_name",
    "debug prints": "import jax\njax.jit(lambda x: jax.debug.print('x is {}', x))(1.0)\njax.effects_barrier()",
    "checks tracer leaks": "import jax\njax.config.update('jax_check_tracer_leaks', True)\nTRAIN",
    "logs compiles": "import jax\njax.jit(lambda x: x)(1)\nprint(jax.config.jax_log_compiles)",
}
_SHOW = "import os, sys\nprint(__name__, __package__, __file__, sys.argv, sys.path[0], __spec__)"
_IN_PACKAGE = {"pack/__init__.py": "", "pack/other.py": "VALUE = 3"}
_OTHERS = {
    "a module": Script(run=("-m", "pack.train", "a b", "--flag"), files={**_IN_PACKAGE, "pack/train.py": _SHOW}),
    "relative imports": Script(
        run=("-m", "pack.train"), files={**_IN_PACKAGE, "pack/train.py": "from .other import VALUE\nprint(VALUE)"}
    ),
    "a package": Script(run=("-m", "pack"), files={**_IN_PACKAGE, "pack/__main__.py": _SHOW}),
    "a package without a main module": Script(run=("-m", "pack"), files=_IN_PACKAGE),
    "a module that does not exist": Script(run=("-m", "pack.nothing"), files=_IN_PACKAGE),
    "a folder": Script(run=("pack", "x"), files={**_IN_PACKAGE, "pack/__main__.py": _SHOW}),
    "a folder without a main module": Script(run=("pack",), files=_IN_PACKAGE),
    "stdin": Script(run=("-", "x y"), stdin="import sys\nprint(sys.argv, __name__)\nraise KeyError(1)"),
    "a path with spaces": Script(run=("a folder/my script.py",), files={"a folder/my script.py": _SHOW}),
    "a name that is an option": Script(run=("./-x.py", "--target", "-q"), files={"-x.py": _SHOW}),
    "a sitecustomize": Script(
        code="import sitecustomize\nprint(mark, sitecustomize.__file__)",
        environment={"PYTHONPATH": "site"},
        files={"site/sitecustomize.py": "import builtins\nbuiltins.mark = 'mine'"},
    ),
    "no sitecustomize": Script(code="import sys\nprint('sitecustomize' in sys.modules)\nimport sitecustomize"),
    "a usercustomize": Script(
        code="print('usercustomize' in __import__('sys').modules)",
        environment={"PYTHONPATH": "site"},
        files={"site/usercustomize.py": "print('user')"},
    ),
    "a PYTHONSTARTUP": Script(code="print(1)", environment={"PYTHONSTARTUP": "s.py"}, files={"s.py": "print('start')"}),
    "warnings by the environment": Script(
        code="import warnings\nwarnings.warn('bad')", environment={"PYTHONWARNINGS": "error"}
    ),
    "settings by the environment": Script(
        code="import sys\nprint(sys.flags, sys.stdout.encoding, sys.stdout.line_buffering)",
        environment={"PYTHONUNBUFFERED": "1", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1", "PYTHONHASHSEED": "7"},
    ),
    "a safe path": Script(code="import sys\nprint(sys.path, sys.flags)", environment={"PYTHONSAFEPATH": "1"}),
    "a locale": Script(
        code="import locale, os\nprint(locale.getlocale(), os.environ.get('LC_CTYPE'), 'ä')",
        environment={"LC_ALL": "C.UTF-8"},
    ),
    "a JAX that fails": Script(code="import jax", files={"jax.py": "raise ImportError('broken')"}),
    "a JAX of its own": Script(code="import jax\nprint(jax.X)", files={"jax.py": "X = 3"}),
    "inspects itself": Script(
        code="import inspect, sys\ndef f(): return 1\nprint(inspect.getsource(f), inspect.getmodule(f))\n"
        "print(inspect.stack()[0].filename, len(inspect.stack()))"
    ),
    "replaces its streams": Script(
        code="import io, sys\nkept, sys.stdout = sys.stdout, io.StringIO()\nprint('hidden')\nsys.stderr = kept\n1 / 0"
    ),
    "a segmentation fault": Script(
        code="import ctypes, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nctypes.string_at(0)"
    ),
    "ignores SIGTERM": Script(
        code="import os, signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill(os.getpid(), 15)\nprint('on')"
    ),
    "signal dispositions": Script(
        code="import signal\nprint({n: signal.getsignal(n) for n in signal.valid_signals()})\n"
        "print(signal.pthread_sigmask(0, []))"
    ),
    "is stopped and goes on": Script(
        code="import os, signal, subprocess, sys\n"
        "go = f'import os, time; time.sleep(0.3); os.kill({os.getpid()}, 18)'\n"
        "helper = subprocess.Popen([sys.executable, '-c', go])\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\nprint('on', helper.wait())"
    ),
    "open descriptors": Script(code="import os\nprint(sorted(os.listdir('/proc/self/fd')))"),
    "limits and groups": Script(
        code="import os, resource\nprint(os.getpgid(0) == os.getpgrp(), os.nice(0), os.umask(0))\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE))"
    ),
    "pools of processes": Script(
        code="import multiprocessing as m\ndef square(x): return x * x\nif __name__ == '__main__':\n"
        "    with m.get_context('forkserver').Pool(2) as pool: print(pool.map(square, range(4)))"
    ),
    "leaves a process behind": Script(
        code="import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(0.5)'],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\nprint('gone')"
    ),
}
_ALL = {**{name: Script(code=code) for name, code in _SCRIPTS.items()}, **_OTHERS}
SCRIPTS = {name: replace(script, code=script.code.replace("TRAIN", _TRAIN.strip())) for name, script in _ALL.items()}
