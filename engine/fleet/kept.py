"""Settings that have changed since the start, for replicas that start again."""

from collections.abc import Callable, Mapping
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
from engine.api.events import log
from engine.fleet.futures import log_difference

_KEPT = (SetSwitch, SetLatencyTarget, SetMaxSlowdown, SetQuantization, SetKvScheme, LoadAdapter, DropAdapter)


@dataclass(slots=True, eq=False)
class _Sent:
    command: Command[Any]
    answers: list[tuple[int, Future[Any]]]  # by replica
    logged: bool = False

    @property
    def setting(self) -> tuple[str, str]:
        kind = "adapter" if isinstance(self.command, LoadAdapter | DropAdapter) else self.command.verb
        return kind, getattr(self.command, "name", "")

    @property
    def ended(self) -> bool:
        return all(each.done() for _, each in self.answers)

    @property
    def valid(self) -> bool:
        """Whether an engine has carried it out and none refused it. Those that died may get it later."""
        if not self.ended:
            return False
        return bool(self.taken) and not self.refused

    @property
    def taken(self) -> list[int]:
        """The replicas that have carried it out."""
        return [replica for replica, each in self.answers if each.exception() is None]

    @property
    def refused(self) -> dict[int, BaseException]:
        """The replicas that refused it, and why."""
        errors = {replica: each.exception() for replica, each in self.answers}
        return {
            replica: error for replica, error in errors.items() if error and not isinstance(error, EngineDead)
        }

    def log_difference(self, _: Future[Any]) -> None:
        """Log that only some replicas have it, once all have answered. Its sender has only the refusal."""
        if not self.logged and self.ended and self.taken and (refused := self.refused):
            self.logged = True
            those, why = ", ".join(map(str, refused)), next(iter(refused.values()))
            others = ", ".join(map(str, self.taken))
            log.warning(
                "%s was refused by replica %s (%s), and stays set in replica %s",
                self.command,
                those,
                why,
                others,
            )


class KeptSettings:
    """The newest command for each setting. The caller has a lock, which it also holds while it sends one, so
    that all engines get them in the same order.
    """

    def __init__(self) -> None:
        self._sent: list[_Sent] = []  # in their order, also those that not all engines have answered

    def sent(self, command: Command[Any], answers: Mapping[int, Future[Any]]) -> None:
        """Keep a command that was sent, if it changes a setting."""
        if isinstance(command, _KEPT):
            self._forget_old()
            self._sent.append(sent := _Sent(command, [*answers.items()]))
            for answer in answers.values():
                answer.add_done_callback(sent.log_difference)

    def restore(self, replica: int, send: Callable[[Command[Any]], Future[Any]]) -> None:
        """Send the settings to an engine that has started again."""
        self._forget_old()
        for each in self._sent:
            answer = send(each.command)
            if each.valid:
                answer.add_done_callback(log_difference)
            else:  # the others may die before they answer
                each.answers.append((replica, answer))
                answer.add_done_callback(each.log_difference)

    def _forget_old(self) -> None:
        ended = [each for each in self._sent if each.ended]
        newest = {each.setting: each for each in ended if each.valid}
        self._sent = [each for each in self._sent if each not in ended or each in newest.values()]
