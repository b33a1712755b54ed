"""Lazy modules run once, at their first use; each test has its own process, because imports cannot be undone."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.paths import ROOT


def run(program: str, *arguments: str) -> str:
    """What a program printed that has late modules."""
    begun = "import sys, threading, types\nfrom watchkeeper.kit import lazy_imports\nlazy_imports.enable()\n"
    command = [sys.executable, "-c", begun + textwrap.dedent(program), *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def module(folder: Path, text: str) -> str:
    """The folder of a module `watchkeeper.late_one`."""
    (folder / "late_one.py").write_text(textwrap.dedent(text))
    return str(folder)


def test_a_module_runs_when_something_of_it_is_used(tmp_path: Path) -> None:
    folder = module(tmp_path, "print('runs', end=' ')\nanswer = 42")
    program = """
        import watchkeeper
        watchkeeper.__path__.append(sys.argv[1])
        from watchkeeper import late_one
        import watchkeeper.late_one
        print('named', end=' ')
        print(late_one.answer, late_one.answer, type(late_one) is types.ModuleType)
    """
    assert run(program, folder) == "named runs 42 42 True"


def test_a_second_thread_waits_until_the_module_is_whole(tmp_path: Path) -> None:
    folder = module(
        tmp_path,
        """
        import builtins
        first = 1
        builtins.is_running.set()
        builtins.may_go_on.wait()
        last = 2
        """,
    )
    program = """
        import builtins, watchkeeper
        watchkeeper.__path__.append(sys.argv[1])
        builtins.is_running, builtins.may_go_on = threading.Event(), threading.Event()
        from watchkeeper import late_one
        found = []
        ask = lambda: found.append((late_one.first, late_one.last))
        askers = [threading.Thread(target=ask), threading.Thread(target=ask)]
        askers[0].start()
        builtins.is_running.wait()
        askers[1].start()
        askers[1].join(0.05)
        print(found, askers[1].is_alive(), end=' ')
        builtins.may_go_on.set()
        for asker in askers:
            asker.join()
        print(found)
    """
    assert run(program, folder) == "[] True [(1, 2), (1, 2)]"


def test_a_package_and_a_late_module_do_not_wait_for_each_other(tmp_path: Path) -> None:
    folder = module(tmp_path, "import builtins\nbuiltins.is_running.set()\nimport watchkeeper.late_box\nanswer = 1")
    (tmp_path / "late_two.py").write_text("answer = 2")
    (tmp_path / "late_box").mkdir()
    (tmp_path / "late_box" / "__init__.py").write_text(
        "import builtins\nbuiltins.is_in_package.set()\nbuiltins.is_running.wait()\n"
        "from watchkeeper import late_two\nanswer = late_two.answer\n"
    )
    program = """
        import builtins, watchkeeper
        watchkeeper.__path__.append(sys.argv[1])
        builtins.is_running, builtins.is_in_package = threading.Event(), threading.Event()
        from watchkeeper import late_one
        def use_package():
            import watchkeeper.late_box
        user = threading.Thread(target=use_package)
        user.start()
        builtins.is_in_package.wait()
        print(late_one.answer, watchkeeper.late_box.answer)
        user.join()
    """
    assert run(program, folder) == "1 2"


def test_a_module_that_fails_raises_at_every_use(tmp_path: Path) -> None:
    folder = module(tmp_path, "raise LookupError('no such table')")
    program = """
        import watchkeeper
        watchkeeper.__path__.append(sys.argv[1])
        from watchkeeper import late_one
        for _ in range(2):
            try:
                late_one.answer
            except LookupError as error:
                print(error, end=', ')
    """
    assert run(program, folder) == "no such table, no such table,"


def test_pending_modules_run_in_steps(tmp_path: Path) -> None:
    folder = module(tmp_path, "print('one', end=' ')")
    (tmp_path / "late_two.py").write_text("print('two', end=' ')")
    program = """
        import watchkeeper
        watchkeeper.__path__.append(sys.argv[1])
        from watchkeeper import late_one, late_two
        for _ in lazy_imports.run_pending('watchkeeper.late_'):
            print('between', end=' ')
    """
    assert run(program, folder) == "one between two between"


def test_every_module_of_a_hub_can_run_lazily() -> None:
    program = """
        import watchkeeper.cli.hub.serving
        watchkeeper.cli.hub.serving.serve
        left = lambda: sum(type(module) is lazy_imports._LazyModule for module in list(sys.modules.values()))
        before = left()
        lazy_imports.finish()
        ours = [name for name in sys.modules if name.startswith('watchkeeper.')]
        print(before > 0, left(), len(ours) > 350)
    """
    assert run(program) == "True 0 True"
