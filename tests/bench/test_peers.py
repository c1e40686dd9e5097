"""Other engines in processes of their own: what is computed from their answers, and how they fail."""

from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.api.config import EngineConfig
from engine.serving.engine import Engine
from engine.start import start
from minichat.bench.cases import CaseFailed, Measurement
from minichat.bench.peers import batching_runner, llama_cpp_runner, minichat_runner
from minichat.bench.peers.process import PeerProcess
from minichat.bench.questions import peers
from minichat.bench.questions.peers import Peer
from minichat.bench.setup import Setup
from tests.bench.test_killed import gone
from tests.bench.test_questions import ask, printed, values
from tests.waiting import becomes

FAKE = str(Path(__file__).parent / "fake_engine")


@pytest.mark.parametrize(
    ("fails", "problem"),
    [
        ("open", "RuntimeError: no such device$"),
        ("die", "its process ended with exit code 3"),
        ("lengths", r"its replies have \[1, 1\] tokens instead of \[2, 3\]"),
    ],
)
def test_a_failing_engine_is_reported(fails: str, problem: str, tmp_path: Path) -> None:
    job = {"folder": "here", "device": "cpu", "threads": 1, "fails": fails}
    with (tmp_path / "log").open("w") as log, PeerProcess(FAKE, job, log) as engine:

        def answer() -> None:
            assert engine.ready() == "Fake 1.2"
            engine.generate([[1], [2]], [2, 3])

        with pytest.raises(CaseFailed, match=problem):
            answer()
    assert "loading here" in (tmp_path / "log").read_text()


def test_an_engine_that_hangs_is_reported_and_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job = {"folder": "here", "device": "cpu", "threads": 1, "fails": "hang", "pids": str(pids)}
    with (tmp_path / "log").open("w") as log, PeerProcess(FAKE, job, log) as engine:
        engine.ready()
        engine.limit = 0.2
        with pytest.raises(CaseFailed, match=r"^no answer within 0.2 s$"):
            engine.generate([[1]], [2])
        assert becomes(lambda: pids.exists() and pids.read_text().endswith("\n"))
    assert all(becomes(lambda each=each: gone(int(each))) for each in pids.read_text().split())
    assert "loading here" in (tmp_path / "log").read_text()


def test_what_a_failed_engine_printed_is_kept(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = Peer("fake", "Fake", "json", str(Path(FAKE).with_name("no_such_runner")))
    monkeypatch.setattr(peers, "OURS", Peer("ours", "minichat", "json", FAKE))
    monkeypatch.setattr(peers, "PEERS", (fails,))
    [found] = Measurement("peers", {}, 0, 1).results(peers.cases(setup))
    log = Path(found.why_not.rpartition("; the engines' output is in ")[2])
    assert "loading" in log.read_text() and "FileNotFoundError" in log.read_text()
    log.unlink()


def test_steps_and_speeds_are_computed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines of equal speed: 5 ms a step, and 200 tokens per second of each row."""
    monkeypatch.setattr(peers, "OURS", Peer("ours", "minichat", "json", FAKE))
    monkeypatch.setattr(
        peers, "PEERS", (Peer("fake", "Fake", "json", FAKE), Peer("no", "None", "no_such", ""))
    )
    found = ask("peers", setup)
    assert found["None"].why_not.startswith("no_such is not installed here; --peer no=PYTHON")
    figures = values(found["Fake"])
    assert figures["D, 2 at once, minichat"] == pytest.approx(0.005, rel=0.3)
    assert figures["D, 2 at once, Fake 1.2"] == pytest.approx(0.005, rel=0.3)
    lengths = [reply for _, _, reply in setup.mixed()]
    assert figures["N, Fake 1.2"] == pytest.approx(sum(lengths) / (0.005 * max(lengths)), rel=0.3)
    assert figures["N, speed of minichat"] == pytest.approx(1, rel=0.5)
    assert "Fake (1.2)" in printed("peers", list(found.values()))


@pytest.mark.parametrize("runner", ["minichat_runner", "generate_runner", "batching_runner"])
def test_a_runner_generates_replies_of_the_given_lengths(runner: str, tiny: Path) -> None:
    version, generate = import_module(f"minichat.bench.peers.{runner}").opened(job(tiny))
    assert version
    assert generate([[5, 6, 7], [8, 9], [10]], [4, 2, 3]) == [4, 2, 3]


def test_continuous_batching_gets_only_options_that_all_releases_have(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of a block is `block_size` in transformers 5.17, and `page_size` later."""
    transformers = import_module("transformers")
    made, given = transformers.ContinuousBatchingConfig, dict[str, Any]()

    def recorded(**options: Any) -> Any:
        given.update(options)
        return made(**options)

    monkeypatch.setattr(transformers, "ContinuousBatchingConfig", recorded)
    _, generate = batching_runner.opened(job(tiny))
    assert generate([[5, 6]], [2]) == [2]
    assert given.keys() == {"num_blocks", "max_batch_tokens"}


def job(folder: Path, **changes: Any) -> dict[str, Any]:
    usual = {"device": "cpu", "threads": 1, "context": 64, "rows": 2, "quantization": "none", "tp": 1}
    return {"folder": str(folder), **usual, **changes}


def test_each_engine_gets_its_own_form_of_a_quantization(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: dict[str, Any] = {}

    class Recorded(PeerProcess):
        def __init__(self, runner: str, job: dict[str, Any], *rest: Any) -> None:
            jobs[Path(runner).name] = job["quantization"]
            super().__init__(FAKE, job, *rest)

    fakes = Peer("fake", "Fake", "json", "theirs", {"int4": "Q4_0"}), Peer("no", "Without", "json", FAKE)
    monkeypatch.setattr(peers, "PeerProcess", Recorded)
    monkeypatch.setattr(peers, "PEERS", fakes)
    found = ask("peers", replace(setup, config=replace(setup.config, quantization="int4")))
    assert jobs == {"minichat_runner": "int4", "theirs": "Q4_0"}
    assert found["Fake"].about.endswith("; int4 beside Q4_0")
    assert found["Without"].why_not == "this question has no form of its weights that is like int4"
    ask("peers", setup)
    assert jobs == {"minichat_runner": "none", "theirs": "none", "fake_engine": "none"}


def test_two_ranks_are_compared_with_engines_that_can_be_two(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[int] = []

    class Recorded(PeerProcess):
        def __init__(self, runner: str, job: dict[str, Any], *rest: Any) -> None:
            jobs.append(job["tp"])
            super().__init__(FAKE, job, *rest)

    fakes = Peer("fake", "Fake", "json", "theirs", parallel=True), Peer("one", "One", "json", FAKE)
    monkeypatch.setattr(peers, "PeerProcess", Recorded)
    monkeypatch.setattr(peers, "PEERS", fakes)
    found = ask("peers", replace(setup, config=replace(setup.config, tp=2)))
    assert (jobs, found["Fake"].why_not) == ([2, 2], "")
    assert found["One"].why_not == "this question runs it in one process, without ranks"
    found = ask("peers", replace(setup, config=replace(setup.config, pp=2)))
    assert found["Fake"].why_not == "this question runs it in one process, without stages"


@pytest.mark.soak  # tests/distributed starts ranks, and the test before passes their number on
def test_this_engine_runs_as_two_ranks(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as ends:

        def recorded(config: EngineConfig) -> Engine:
            engine = start(config)
            ends.callback(engine.close)
            assert len(engine.snapshot().ranks) == 2
            return engine

        monkeypatch.setattr(minichat_runner, "start", recorded)
        _, generate = minichat_runner.opened(job(tiny, tp=2))
        assert generate([[5, 6, 7], [8]], [4, 2]) == [4, 2]


def test_this_engine_runs_the_quantization_it_is_given(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[EngineConfig] = []

    def recorded(config: EngineConfig) -> Engine:
        started.append(config)
        return start(config)

    monkeypatch.setattr(minichat_runner, "start", recorded)
    _, generate = minichat_runner.opened(job(tiny, quantization="int8"))
    assert generate([[5, 6, 7]], [4]) == [4]
    assert [each.quantization for each in started] == ["int8"]


def test_llama_cpp_quantizes_its_file(tmp_path: Path) -> None:
    """With a library that takes the calls of llama-cpp-python."""
    calls = []

    def quantize(source: bytes, made: bytes, how: Any) -> int:
        calls.append((Path(source.decode()).name, how.ftype))
        Path(made.decode()).write_text("made")
        return 0 if how.ftype == 2 else 1

    library = SimpleNamespace(
        llama_model_quantize=quantize, llama_model_quantize_default_params=SimpleNamespace,
        LLAMA_FTYPE_MOSTLY_Q4_0=2, LLAMA_FTYPE_MOSTLY_Q8_0=7,
    )  # fmt: skip
    plain = tmp_path / "model.gguf"
    plain.write_text("plain")
    made = llama_cpp_runner.quantized(library, plain, "Q4_0")
    assert (made.read_text(), plain.exists()) == ("made", False)
    with pytest.raises(RuntimeError, match="llama_model_quantize returned 1"):
        llama_cpp_runner.quantized(library, plain, "Q8_0")
    assert calls == [("model.gguf", 2), ("model.gguf", 7)]


class StandIn:
    """A library with the calls of vLLM, SGLang and nano-vllm that the runners make."""

    __version__ = "1.0"

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.SamplingParams = lambda **given: given
        self.LLM = self.Engine = self.opened

    def opened(self, *folder: str, **options: Any) -> "StandIn":
        self.options = {"model": "".join(folder)} | options
        return self

    def generate(self, asked: Any = None, params: Any = None, *, use_tqdm: bool = False, **given: Any) -> Any:
        replies = []
        for each in given.get("sampling_params") or params:
            assert each.get("ignore_eos") is True and each["temperature"] == 0.6
            ids = [7] * (each.get("max_tokens") or each["max_new_tokens"])
            replies.append(Reply(token_ids=ids, meta_info={"completion_tokens": len(ids)}))
        assert len(replies) == len(given.get("input_ids") or asked)
        return replies


class Reply(dict[str, Any]):
    """vLLM's replies have attributes, those of the others keys."""

    @property
    def outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(token_ids=self["token_ids"])]


@pytest.mark.parametrize("name", ["vllm", "sglang", "nano_vllm"])
def test_a_runner_calls_its_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the library has these calls is for a machine that has it."""
    library, runner = StandIn(), import_module(f"minichat.bench.peers.{name}_runner")
    monkeypatch.setattr(runner, "import_module", lambda name: library)
    monkeypatch.setattr(runner, "version", lambda name: "1.0", raising=False)
    called, generate = runner.opened(job(Path("here"), tp=3))
    assert called.endswith(" 1.0")
    assert "here" in (library.options["model"], library.options.get("model_path"))
    assert {64, 2, 3} <= set(library.options.values())  # the context, the rows, the GPUs
    assert generate([[5, 6, 7], [8, 9]], [4, 2]) == [4, 2]


@pytest.mark.soak
def test_transformers_beside_this_engine(setup: Setup) -> None:
    found = ask("peers", setup)
    for name in ("transformers generate", "transformers continuous batching"):
        assert all(value > 0 for key, value in values(found[name]).items() if key.startswith("N, "))


def test_runners_of_other_engines_need_only_them() -> None:
    """They run in another Python, which has neither minichat nor its packages."""
    folder = Path(peers.__file__).parents[1] / "peers"
    for file in [folder / "child.py", *folder.glob("*_runner.py")]:
        text = file.read_text()
        if file.stem != "minichat_runner":
            assert "import minichat" not in text and "from minichat" not in text and "from engine" not in text
    runners = {each.runner for each in (peers.OURS, *peers.PEERS)}
    assert runners == {each.stem for each in folder.glob("*_runner.py")}
