"""Output to a terminal that may be slow: a screen waits for it, and quitting does not."""

import os
import signal
import termios
import time
from contextlib import suppress
from queue import Empty

from textual.drivers import linux_driver
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver

from minichat.shell.again import modes_before
from minichat.shell.streams import let_flow

_SLOW = 0.1  # seconds of one write; a terminal that keeps up takes it at once
_RECENTLY = 10.0  # seconds in which the output of a slow write may still be in the system's buffer
_PATIENCE = 0.3  # seconds for what is queued before it is dropped
_AT_MOST = 2.0  # seconds until what is being written counts as stuck
_ABORT = "\x18\x1b\\"  # ends any sequence of which the terminal has only the beginning

_CLEAR = "\x1b[0m\x1b[2J"  # tmux 3.3a leaves text of a window that was larger on the shell's screen


class Output(WriterThread):
    """Textual's thread that writes, which also knows whether the terminal keeps up."""

    _waited_at = -_RECENTLY

    @property
    def behind(self) -> bool:
        """Whether a write has not finished."""
        return self._queue.unfinished_tasks > 0

    def run(self) -> None:
        while (text := self._queue.get()) is not None:
            began = time.monotonic()
            self._file.write(text)
            if self._queue.empty():
                self._file.flush()
            if (now := time.monotonic()) - began > _SLOW:
                self._waited_at = now
            self._queue.task_done()
        self._file.flush()

    def drop(self) -> None:
        """Drop what a slow terminal has not taken, also from the system's buffer."""
        end = time.monotonic() + _PATIENCE
        while self.behind and time.monotonic() < end:
            time.sleep(0.005)
        if not self.behind and time.monotonic() - self._waited_at > _RECENTLY:
            return
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
                self._queue.task_done()
        end = time.monotonic() + _AT_MOST
        while self.behind and time.monotonic() < end:  # a frame can be larger than the buffer
            self._discard()
            time.sleep(0.005)
        self._discard()
        self.write(_ABORT)

    def _discard(self) -> None:
        with suppress(OSError, termios.error):
            if os.isatty(self.fileno()):
                termios.tcflush(self.fileno(), termios.TCOFLUSH)
                let_flow(self._file)


class TerminalDriver(LinuxDriver):
    """Leaves the screen at once."""

    _continued = _starting = False  # whether a signal to go on is to be handled, and whether one is

    @property
    def behind(self) -> bool:
        """Whether the terminal has not taken the last frame."""
        return isinstance(self._writer_thread, Output) and self._writer_thread.behind

    def start_application_mode(self) -> None:
        setattr(linux_driver, "WriterThread", Output)  # noqa: B010 (it does not allow to configure it)
        super().start_application_mode()
        self.attrs_before = modes_before() or self.attrs_before

    def _sigcont_application(self, *_: object) -> None:
        """Start again. A signal that comes meanwhile must not start a second thread that reads keys."""
        self._continued = True
        if self._starting:
            return
        self._starting = True
        try:
            while self._continued:
                self._continued = False
                self._start_again()
        finally:
            self._starting = False

    def _start_again(self) -> None:
        """SIGSTOP cannot be caught, so what SIGTSTP ends before the stop is ended now."""
        if self._auto_restart and not self._must_signal_resume and self._writer_thread is not None:
            if self._in_background:  # setting the terminal's modes would stop the program half way
                os.kill(os.getpid(), signal.SIGSTOP)
                return
            self.suspend_application_mode()
            self._must_signal_resume = True
        super()._sigcont_application()

    @property
    def _in_background(self) -> bool:
        try:
            return os.tcgetpgrp(self.fileno) != os.getpgrp()
        except OSError:  # not the terminal of its session
            return False

    def stop_application_mode(self) -> None:
        if isinstance(self._writer_thread, Output):
            self._writer_thread.drop()
            self.write(_CLEAR)
        super().stop_application_mode()
