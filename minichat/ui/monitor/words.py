"""Events as lines of the log."""

from engine.api.events import (
    AdapterChanged,
    Admitted,
    Copied,
    Died,
    Event,
    Evicted,
    Finished,
    FirstToken,
    Forked,
    Preempted,
    PromptRouted,
    PromptSent,
    Quantized,
    Queued,
    Recached,
    ReplicaChanged,
    Restarted,
    Restarting,
    Resumed,
    StepBroke,
    Switched,
    TierProblem,
    Transferred,
    Updated,
)
from engine.api.snapshot import GPU, HOST
from minichat.clients.protocol import LinkBack, LinkLost
from minichat.plural import plural
from minichat.ui.monitor.figures import duration, request_name
from minichat.ui.switches import named

_LOOKS = {
    "finished": "good",
    "preempted": "warn",
    "switched": "warn",
    "swapped": "warn",
    "failed": "fault",
    "tier off": "fault",
    "tier back": "good",
    "died": "fault",
    "cut": "fault",
    "back": "good",
}

_WAYS = {GPU: " from GPU to GPU", HOST: " through host memory"}


def look(kind: str) -> str:
    return _LOOKS.get(kind, "value")


def described(event: Event) -> tuple[str, str]:
    """Return the kind in one word and the details, which may include any error text."""
    match event:
        case Queued(prompt=prompt, generated=generated) if generated:
            return "queued", f"prompt of {prompt:,} + {generated:,} tokens"
        case Queued(prompt=prompt):
            return "queued", f"prompt of {plural(prompt, 'token')}"
        case Admitted(cached=cached, tier=tier) if tier:
            return "admitted", f"{plural(cached, 'token')} from the cache, {_choice(event)}"
        case Admitted(cached=cached):
            return "admitted", f"{plural(cached, 'token')} from the cache" if cached else "nothing cached"
        case Preempted(swapped=True, blocks=blocks, tier=tier):
            return "swapped", f"{plural(blocks, 'block')} to {tier or 'a lower tier'}"
        case Preempted(blocks=blocks):
            return "preempted", f"gave up {plural(blocks, 'block')}"
        case Resumed(swapped=True):
            return "resumed", "with its stored blocks"
        case Resumed(cached=cached):
            return "resumed", f"{plural(cached, 'token')} from the cache"
        case Transferred(tier=tier, blocks=blocks, error=error) if error:
            return "failed", f"{plural(blocks, 'block')}, tier {tier}: {error}"
        case Transferred(tier=tier, load=load, blocks=blocks, seconds=seconds):
            kind, way = ("loaded", "from") if load else ("stored", "to")
            return kind, f"{plural(blocks, 'block')} {way} {tier}, {duration(seconds)}"
        case TierProblem(tier=tier, problem=problem) if problem:
            return "tier off", f"{tier}: {problem}"
        case TierProblem(tier=tier):
            return "tier back", f"{tier} stores blocks again"
        case Evicted(blocks=blocks):
            return "evicted", f"{plural(blocks, 'cached block')}"
        case Copied(block=block, to=to):
            return "copied", f"shared block {block} to {to}"
        case Forked(parent=parent, blocks=blocks):
            return "forked", f"from {request_name(parent)}, shares {plural(blocks, 'block')}"
        case FirstToken(seconds=seconds):
            return "first", f"token after {duration(seconds)}"
        case Updated(changes=changes):
            return "changed", ", ".join(changes)
        case Switched(name=name, on=on):
            return "switched", named(name, on)
        case Quantized(scheme=scheme, before=before, error=error) if error:
            return "failed", f"weights to {scheme}: {error}; still {before}"
        case Quantized(scheme=scheme, before=before, blocks=blocks, seconds=seconds):
            room = plural(blocks, "block")
            return "switched", f"weights {before} to {scheme} in {duration(seconds)}, {room}"
        case Recached(scheme=scheme, blocks=blocks):
            return "switched", f"cache to {scheme}, {plural(blocks, 'block')}"
        case AdapterChanged(name=name, loaded=loaded):
            return "adapter", f"{name} {'loaded' if loaded else 'dropped'}"
        case Finished(finish="failed", tokens=tokens, error=error):
            return "failed", f"after {plural(tokens, 'token')}: {error}"
        case Finished(finish=finish, tokens=tokens):
            return "finished", f"{finish}, {plural(tokens, 'token')}"
        case StepBroke(error=error, requests=requests):
            return "failed", f"a step with {plural(len(requests), 'request')}: {error}"
        case Died(error=error):
            return "died", error
        case Restarting(error=error, seconds=seconds):
            return "restarting", f"in {duration(seconds)}: {error}"
        case Restarted(seconds=seconds):
            return "restarted", f"after {duration(seconds)}"
        case PromptRouted(replica=replica, cached=cached, blocks=blocks):
            found = f"{cached:,} of {plural(blocks, 'block')} {'is' if cached == 1 else 'are'} there"
            return "routed", f"to replica {replica}: {found if blocks else 'less than a block'}"
        case PromptSent(source=source, error=error) if error:
            return "failed", f"prompt on engine {source}, now on its own: {error}"
        case PromptSent(source=source, blocks=blocks, sent=sent, seconds=seconds, way=way):
            there = f"{sent:,} of {plural(blocks, 'block')} sent{_WAYS.get(way, '') if sent else ''}"
            return "prompt", f"on engine {source}: {there} in {duration(seconds)}"
        case ReplicaChanged(replica=replica, state=state, error=error):
            return "replica", f"{replica} is {state}" + (f": {error}" if error else "")
        case LinkLost(why=why):
            return "cut", why
        case LinkBack(restarted=restarted, seconds=seconds):
            return "back", f"{'another engine' if restarted else 'connected'} after {duration(seconds)}"
    return event.kind, ", ".join(f"{k} {v}" for k, v in event.record().items() if k not in _PLAIN)


def _choice(event: Admitted) -> str:
    """What was done with the tokens that a tier had, and the measurements so far that decided it."""
    measured = [("loading about", event.loading), ("computing", event.computing)]
    costs = ", ".join(f"{what} {duration(seconds)}" for what, seconds in measured if seconds)
    done = "loaded" if event.loaded else "computed, not loaded"
    return f"{event.held:,} {done} from {event.tier}" + (f" ({costs})" if costs else "")


_PLAIN = ("kind", "step", "at", "request")
