"""`minichat attach`: open the screen on a running engine."""

import argparse
import asyncio
import sys
from collections.abc import Callable

from engine.api.errors import BadInput, EngineError
from engine.api.places import expanded
from minichat.clients.address import Address, find_key, server_url
from minichat.commands.options import failed
from minichat.commands.screen import show
from minichat.models.present import present_options
from minichat.models.residents import Resident, Waiting, home_of, residents
from minichat.settings import Loaded, load
from minichat.shell.again import words_of
from minichat.shell.paths import Paths, locate
from minichat.start import Blame

_PATIENCE = 2.0  # seconds before printing that it is waiting


def run(options: argparse.Namespace) -> int:
    paths = locate()
    try:
        check_terminal("attach")
        if options.url is None and options.uds is None:
            if options.api_key_file is not None:
                raise BadInput("--api-key-file has no effect without an address: up's engines need no key")
            return attach_to(options, paths, Waiting(Resident(home_of(paths), options.name or "main"), None))
        if options.name is not None:
            raise BadInput("--name is of an engine of this machine, and cannot be combined with an address")
        _no_name(options.url, paths)
        address = address_of(options, paths)
        asyncio.run(_check_server(address))
    except EngineError as error:
        return failed(error, options)
    from minichat.clients.remote import RemoteBackend

    return show(
        options,
        paths,
        load(paths.settings),
        lambda: RemoteBackend(address),
        lambda model: words_of(options),
    )


def attach_to(
    options: argparse.Namespace,
    paths: Paths,
    waiting: Waiting,
    model: str = "",
    blame: Callable[[EngineError], Blame] | None = None,
    loaded: Loaded | None = None,
) -> int:
    """Open the screen on one of this user's engines. `blame`: of Start. `loaded`: read anew if None."""
    from minichat.clients.remote import RemoteBackend

    resident = waiting.resident
    if waiting.words is None and not resident.running():
        raise BadInput(resident.absent())
    resident.check_record()
    if waiting.words is None and (died := resident.died()):
        raise EngineError(f"{died}; replace it with: {resident.up}")
    address = Address("http://localhost", uds=str(resident.socket), name=f"engine {resident.name}")

    def again(model: str) -> list[str]:
        """The engine may have been converted since: typed options become those that it has now."""
        if (present := present_options(resident, lambda trouble: None)) is None:
            return words_of(options)
        return words_of(options, **{name: present.of(name, value) for name, value in vars(options).items()})

    code = show(
        options,
        paths,
        loaded or load(paths.settings),
        lambda: RemoteBackend(address, waiting),
        again,
        model=model,
        blame=blame,
    )
    if resident.running() and not resident.died():
        print(f"minichat: {resident.goes_on}", file=sys.stderr)
    return code


def _no_name(url: str | None, paths: Paths) -> None:
    """Refuse the name of a running engine as an address."""
    names = [each.name for each in residents(home_of(paths)) if each.running()]
    if url in names:
        raise BadInput(f"{url} is an engine of this machine; open it with: minichat attach --name {url}")


def check_terminal(command: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput(f"{command} needs a terminal")


def address_of(options: argparse.Namespace, paths: Paths) -> Address:
    """The address from the command line, with its API key."""
    if options.url is not None and options.uds is not None:
        raise BadInput("an address and --uds cannot be combined")
    if options.uds is not None:
        place = Address("http://localhost", uds=str(expanded(options.uds).absolute()))
    else:
        place = Address(server_url(options.url))
    own = paths.server_key if place.near else None  # the user's own key is never sent to another machine
    return Address(place.url, place.uds, find_key(options.api_key_file, own))


async def _check_server(address: Address) -> None:
    """Check that the server answers and accepts the key before the screen opens."""
    from minichat.clients.link import Link

    link = Link(address)
    try:
        opening = asyncio.ensure_future(link.open())
        if not (await asyncio.wait({opening}, timeout=_PATIENCE))[0]:  # it may still load a large model
            line = f"minichat: waiting for an answer from {address.words}; press Ctrl+C to give up"
            print(line, file=sys.stderr)
        await opening
    finally:
        await link.close()
