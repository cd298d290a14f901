"""The process for arithmetic: one that is reused, that dies alone, and that never leaves its parent waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from toolkit.core.errors import Lost, Refused
from toolkit.runtime import process


def own_pid(say):
    return os.getpid()


def variables(names, say):
    return {name: os.environ.get(name) for name in names}


def count_up(say):
    """Say numbers until told to stop."""
    count = 0
    while say(count):
        count += 1
        time.sleep(0.001)
    return count


def fail(error, say):
    raise error


def die(say):
    os._exit(7)


def interrupted(say):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    return "went on"


def speak(say):
    """Print, as a model's code may."""
    print("to whom it may concern")
    return "done"


def leave_all(say):
    sys.exit("enough")


class Awkward(Exception):
    """An error that does not survive pickling."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Unwilling:
    def __reduce__(self):
        raise TypeError("I do not travel")


def unwilling(say):
    return Unwilling()


def test_it_is_reused():
    assert process.call(own_pid) == process.call(own_pid) != os.getpid()


def test_it_has_the_settings_of_a_worker():
    found = process.call(variables, ["NPROC", "OMP_NUM_THREADS", "JAX_PLATFORMS", "XLA_FLAGS"])
    assert found["NPROC"] == found["OMP_NUM_THREADS"] == "1"
    assert found["JAX_PLATFORMS"] == "cpu"
    assert "--xla_cpu_multi_thread_eigen=false" in found["XLA_FLAGS"]


def test_it_says_and_is_told_to_stop():
    heard: list[int] = []

    def listen(said: int) -> bool:
        heard.append(said)
        return said < 5

    assert process.call(count_up, heard=listen) >= 5
    assert heard[:6] == [0, 1, 2, 3, 4, 5]
    assert process.call(own_pid)  # what was said late does not reach the next job


def test_its_errors_are_raised_here_with_their_story():
    with pytest.raises(KeyError, match="missing") as found:
        process.call(fail, KeyError("missing"))
    assert any("in fail" in note for note in found.value.__notes__)
    assert process.call(own_pid)


def test_an_error_that_does_not_travel_is_told():
    with pytest.raises(RuntimeError, match="Awkward: this and that"):
        process.call(raise_awkward)
    assert process.call(own_pid)


def raise_awkward(say):
    raise Awkward("this", "that")


def test_a_result_that_does_not_travel_is_told():
    with pytest.raises(TypeError, match="I do not travel"):
        process.call(unwilling)


def test_its_death_is_an_error_and_the_next_job_has_a_new_one():
    before = process.call(own_pid)
    with pytest.raises(Lost, match="ended with code 7"):
        process.call(die)
    assert process.call(own_pid) != before


def test_a_listener_that_fails_leaves_no_half_done_job_behind():
    def listen(said):
        raise ZeroDivisionError

    before = process.call(own_pid)
    with pytest.raises(ZeroDivisionError):
        process.call(count_up, heard=listen)
    assert process.call(own_pid) != before


def test_an_interrupt_of_the_group_does_not_reach_it():
    assert process.call(interrupted) == "went on"


def test_what_jobs_print_does_not_disturb_the_answers(capfd):
    assert process.call(speak) == "done"
    assert "to whom it may concern" not in capfd.readouterr().out


def test_a_module_beside_the_notebook_is_found(tmp_path, monkeypatch):
    (tmp_path / "beside_the_notebook.py").write_text("def answer(say):\n    return 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import beside_the_notebook

    assert process.call(beside_the_notebook.answer) == 42


@pytest.mark.slow
def test_it_ends_with_its_parent(tmp_path):
    """Also when the parent is killed."""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            from toolkit.runtime import process

            def own_pid(say):
                return os.getpid()

            print(process.call(own_pid), flush=True)
            time.sleep(60)
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(child)


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_stands_still_is_lost(monkeypatch):
    """It gives signs while it works long, and none once it is frozen."""
    monkeypatch.setattr(process, "SILENCE", 3.0)
    assert process.call(slow, 5.0) == "done"
    with pytest.raises(Lost, match="gave no sign for 3 s"):
        process.call(freeze)


def slow(seconds, say):
    time.sleep(seconds)
    return "done"


def freeze(say):
    os.kill(os.getpid(), signal.SIGSTOP)


def test_an_exit_there_is_an_error_here():
    with pytest.raises(RuntimeError, match="SystemExit: enough"):
        process.call(leave_all)


def test_what_cannot_travel_is_refused_before_anything_runs():
    with pytest.raises(Refused, match=r"cannot be sent: TypeError: cannot pickle .*lock"):
        process.call(variables, threading.Lock())
