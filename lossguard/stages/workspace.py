"""What the stages of one run share: plan, folder, requests, and engines and scorer that start when first needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossguard.config import SCORER_FOLDER, SystemConfig
from lossguard.engines.base import Engine
from lossguard.engines.model_facts import read_model_facts
from lossguard.errors import IntegrityError
from lossguard.listener import Listener
from lossguard.models import resolve_model
from lossguard.plan import Plan
from lossguard.prompts import load_prompt_set
from lossguard.prompts.base import PromptSet, Split
from lossguard.prompts.render import build_requests, load_tokenizer, stop_ids_of
from lossguard.records import Request, SamplingParams
from lossguard.run_folder import RunFolder, reading
from lossguard.scoring.base import PlacedFactory, Scorer, ScorerCapabilities, capabilities_of
from lossguard.scoring.registry import sampled_not_scored, scorer_factory
from lossguard.seals import is_sealed, seal
from lossguard.stages.devices import held_devices, is_running, overlaps, scorer_devices
from lossguard.stages.engine_opening import Surroundings, create_engine, model_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lossguard.stages.ahead import Ahead

REQUEST_FILES = ("calibration-requests.jsonl", "prompts.json", "requests.jsonl")
CONTEXT_TOKENS = 4  # of the prompt, before which a reply is detokenised
CALIBRATION_LOGPROBS = 5  # enough to find the scorer's two best tokens among the reported ones


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequests:
    """The requests of a run: calibration (stock only, greedy) and test."""

    calibration: tuple[Request, ...]
    test: tuple[Request, ...]
    sha256: str
    reasons: tuple[str, ...] = ()


@dataclass
class Workspace:
    """Owns the engines and the scorer of a run; ``close`` gives all of them back."""

    plan: Plan
    folder: RunFolder
    listener: Listener
    is_offline: bool = False  # judge what is on disk: no engine and no scorer may start
    ahead: Ahead | None = None  # who serves test replies in another process
    _engines: dict[str, Engine] = field(default_factory=dict)
    _scorer: Scorer | None = None
    _scorer_facts: Mapping[str, Any] | None = None
    _tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def target_path(self) -> Path:
        """The target's folder: weights for scoring, tokenizer, config."""
        return resolve_model(self.plan.config.model, self.plan.config.folder)

    @property
    def vocab_size(self) -> int:
        """Ids of the target: 0 up to here."""
        return read_model_facts(str(self.target_path)).vocab_size

    def model_path(self, system: SystemConfig) -> Path:
        """The folder that a system serves: its own ``model``, else the target."""
        return model_path(self.plan.config, system)

    def engine(self, system: SystemConfig) -> Engine:
        """The system's engine, created on first use."""
        self.require_online(f"system {system.name!r}")
        if system.name not in self._engines:
            handle = self.plan.handle(system.name)
            around = Surroundings(
                folder=self.folder.path / system.name,
                make_room=lambda devices: self._make_room(system.name, devices),
            )
            self._engines[system.name] = create_engine(self.plan.config, system, handle, around)
        return self._engines[system.name]

    def opened(self, system: SystemConfig) -> Engine | None:
        """The system's engine if it was needed; where it lay on disk already, it was not."""
        return self._engines.get(system.name)

    def release(self, system: SystemConfig) -> None:
        """Close one system's engine."""
        engine = self._engines.pop(system.name, None)
        if engine is not None:
            engine.close()

    def require_scorer(self) -> None:
        """Raise UsageError now, and not after hours of serving, if the scorer is not here or cannot do what is planned.

        LG0609 or LG0610 if there is none, LG0513 for its options, LG0516 for sampled replies that it cannot score.
        """
        config = self.plan.config.scorer
        factory = scorer_factory(config.engine)
        if self.plan.effective_temperature and not capabilities_of(factory).sampled:
            raise sampled_not_scored(config.engine)
        if isinstance(factory, PlacedFactory):
            factory.check(str(self.target_path), config.options)

    def scorer_capabilities(self) -> ScorerCapabilities:
        """What scores of this run's scorer tell, known without starting it."""
        return capabilities_of(scorer_factory(self.plan.config.scorer.engine))

    def scorer(self) -> Scorer:
        """The scorer, created on first use."""
        self.require_online("the scorer")
        if self._scorer is None:
            config = self.plan.config.scorer
            for name, engine in self._engines.items():
                if overlaps(scorer_devices(config), held_devices(engine)):
                    self._close_for_room(name, engine, "the scorer")
            factory = scorer_factory(config.engine)
            if isinstance(factory, PlacedFactory):
                factory = factory.in_folder(self.folder.path / SCORER_FOLDER)
            self._scorer = factory(str(self.target_path), config.options)
            self._scorer_facts = self._scorer.fingerprint()
        return self._scorer

    def scorer_facts(self) -> Mapping[str, Any]:
        """The scorer's fingerprint; it must have been started, and may have been closed since."""
        if self._scorer_facts is None:
            raise AssertionError("the scorer was never started")
        return self._scorer_facts

    def _make_room(self, name: str, devices: frozenset[str]) -> None:
        """Close what else this run holds on those accelerators: serve, stop, score, where one cannot hold all."""
        for other, engine in self._engines.items():
            if other != name and devices & held_devices(engine):
                self._close_for_room(other, engine, name)
        if self._scorer is not None and overlaps(scorer_devices(self.plan.config.scorer), devices):
            self.note(f"the scorer is closed: {name} needs its device")
            self._scorer.close()
            self._scorer = None

    def _close_for_room(self, name: str, engine: Engine, why: str) -> None:
        """Close an engine that starts again by itself when it is next asked."""
        if is_running(engine):
            self.note(f"{name} is stopped where it runs: {why} needs its device")
            engine.close()

    def note(self, text: str) -> None:
        """Tell the listener, and keep it in the run's log."""
        self.listener.message(text)
        self.folder.log(text)

    @property
    def has_scorer(self) -> bool:
        """Whether the scorer has been started, be it closed since."""
        return self._scorer_facts is not None

    def text_of(self, *tokens: int) -> str:
        """Tokens as text, for people; ids that do not exist are written as such."""
        tokenizer = self.tokenizer()
        known = [0 <= token < len(tokenizer) for token in tokens]
        if all(known):
            return str(tokenizer.decode(list(tokens)))
        return "".join(
            str(tokenizer.decode([token])) if is_known else f"<id {token}>"
            for token, is_known in zip(tokens, known, strict=True)
        )

    def reply_text(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        """A reply as text, read after the end of its prompt, so that white space at its beginning is kept."""
        tokenizer = self.tokenizer()
        known = [token for token in ids if 0 <= token < len(tokenizer)]
        before = list(prompt_ids[-CONTEXT_TOKENS:])
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        head, whole = str(tokenizer.decode(before, **options)), str(tokenizer.decode(before + known, **options))
        if not whole.startswith(head):  # the prompt's last token and the reply's first share a character
            return str(tokenizer.decode(known, **options))
        return whole.removeprefix(head)

    def require_online(self, what: str) -> None:
        """Raise IntegrityError LG0613 where a run is judged again without engines."""
        if self.is_offline:
            raise IntegrityError(
                f"{self.folder.path} lacks what {what} would have to make again",
                why="judging again uses saved replies and scores only, so that no number can change under it",
                fix="finish the run first: lossguard check --resume RUN",
                code="LG0613",
            )

    def close(self) -> None:
        """Give back every engine and the scorer."""
        for name in list(self._engines):
            self._engines.pop(name).close()
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's tokenizer, loaded once."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.target_path)
        return self._tokenizer


def prepare_requests(workspace: Workspace) -> RunRequests:
    """Requests of the run: read back if the run folder has them, else built from the prompt sets and written."""
    folder = workspace.folder
    if all([is_sealed(folder.path, folder.path / name) for name in REQUEST_FILES]):
        return _read_requests(folder)
    workspace.require_online("the prompts")
    requests = planned_requests(workspace)
    keep_requests(folder, requests)
    return requests


def keep_requests(folder: RunFolder, requests: RunRequests) -> None:
    """Write the requests of a run, and seal them."""
    folder.write_requests("calibration-requests.jsonl", requests.calibration)
    folder.write_json("prompts.json", {"sha256": requests.sha256, "reasons": list(requests.reasons)})
    folder.write_requests("requests.jsonl", requests.test)
    seal(folder.path, [folder.path / name for name in REQUEST_FILES])


def _read_requests(folder: RunFolder) -> RunRequests:
    facts = folder.read_json("prompts.json")
    with reading(folder.path / "prompts.json"):
        return RunRequests(
            calibration=folder.read_requests("calibration-requests.jsonl"),
            test=folder.read_requests("requests.jsonl"),
            sha256=facts["sha256"],
            reasons=tuple(facts["reasons"]),
        )


def planned_requests(workspace: Workspace) -> RunRequests:
    """The requests that the plan's prompt sets give today; nothing is written."""
    plan, sizes = workspace.plan, workspace.plan.sizes
    tokenizer, stop_ids = workspace.tokenizer(), stop_ids_of(workspace.target_path)
    names = tuple(plan.prompt_sets or plan.config.prompts.sets)
    prompts: PromptSet = load_prompt_set(
        names,
        tokenizer=tokenizer,
        seed=plan.config.prompts.seed,
        num_calibration=sizes.num_calibration,
        num_test=sizes.num_requests,
        folder=plan.config.folder,
    )
    greedy = SamplingParams(max_tokens=sizes.max_tokens)
    asked = greedy
    if plan.effective_temperature:
        asked = replace(greedy, temperature=plan.effective_temperature, seed=plan.effective_seed)
    asked = replace(asked, **plan.config.parameters)
    return RunRequests(
        calibration=build_requests(prompts.split(Split.CALIBRATION), tokenizer, greedy, stop_ids=stop_ids),
        test=build_requests(prompts.split(Split.TEST), tokenizer, asked, stop_ids=stop_ids, repeats=plan.repeats),
        sha256=prompts.sha256,
        reasons=prompts.reasons,
    )


def with_logprobs(requests: Sequence[Request], engine: Engine) -> tuple[Request, ...]:
    """The same requests asking for top log-probabilities, as far as the engine reports them."""
    count = min(CALIBRATION_LOGPROBS, engine.capabilities.max_logprobs)
    return tuple(replace(request, sampling=replace(request.sampling, logprobs=count)) for request in requests)


def with_test_logprobs(requests: Sequence[Request], engine: Engine) -> tuple[Request, ...]:
    """The same requests asking for as many log-probabilities as the engine gives beside its ordinary work."""
    count = engine.capabilities.test_logprobs
    return tuple(replace(request, sampling=replace(request.sampling, logprobs=count)) for request in requests)
