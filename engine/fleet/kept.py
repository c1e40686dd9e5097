"""Settings that have changed since the start, for replicas that start again."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from engine.api.commands import (
    Command,
    DropAdapter,
    LoadAdapter,
    SetKvScheme,
    SetLatencyTarget,
    SetMaxSlowdown,
    SetQuantization,
    SetSwitch,
)
from engine.api.errors import EngineDead
from engine.fleet.futures import log_difference

_KEPT = (SetSwitch, SetLatencyTarget, SetMaxSlowdown, SetQuantization, SetKvScheme, LoadAdapter, DropAdapter)


@dataclass(slots=True, eq=False)
class _Sent:
    command: Command[Any]
    answers: list[Future[Any]]

    @property
    def setting(self) -> tuple[str, str]:
        kind = "adapter" if isinstance(self.command, LoadAdapter | DropAdapter) else self.command.verb
        return kind, getattr(self.command, "name", "")

    @property
    def ended(self) -> bool:
        return all(each.done() for each in self.answers)

    @property
    def valid(self) -> bool:
        """Whether an engine has carried it out and none refused it. Those that died may get it later."""
        if not self.ended:
            return False
        errors = [each.exception() for each in self.answers]
        return None in errors and all(error is None or isinstance(error, EngineDead) for error in errors)


class KeptSettings:
    """The newest command for each setting. The caller has a lock, which it also holds while it sends one, so
    that all engines get them in the same order.
    """

    def __init__(self) -> None:
        self._sent: list[_Sent] = []  # in their order, also those that not all engines have answered

    def sent(self, command: Command[Any], answers: Iterable[Future[Any]]) -> None:
        """Keep a command that was sent, if it changes a setting."""
        if isinstance(command, _KEPT):
            self._forget_old()
            self._sent.append(_Sent(command, [*answers]))

    def restore(self, send: Callable[[Command[Any]], Future[Any]]) -> None:
        """Send the settings to an engine that has started again."""
        self._forget_old()
        for each in self._sent:
            answer = send(each.command)
            answer.add_done_callback(log_difference)
            if not each.valid:  # the others may die before they answer
                each.answers.append(answer)

    def _forget_old(self) -> None:
        ended = [each for each in self._sent if each.ended]
        newest = {each.setting: each for each in ended if each.valid}
        self._sent = [each for each in self._sent if each not in ended or each in newest.values()]
