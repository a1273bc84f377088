"""What the plugin can complain about, as errors. Those of exit code 4 stop pytest before anything is served."""

from __future__ import annotations

from collections.abc import Iterable

from lossguard.errors import IntegrityError, UsageError, near_miss


def bad_marker(where: str, found: str) -> UsageError:
    """LG0801: the marker of a test does not fit."""
    return UsageError(
        f"{where}: {found}",
        why="an argument that is quietly ignored would judge another claim than the one written down",
        fix='write @pytest.mark.lossguard(claim="my-change/greedy", candidate="my-system")',
        code="LG0801",
    )


def claim_twice(claim: str, first: str, second: str) -> UsageError:
    """LG0802: two tests make the same claim."""
    return UsageError(
        f"the claim {claim!r} is made by {first} and by {second}",
        why="a claim has one verdict and one record; two tests would overwrite each other's",
        fix="give each its own claim; under parametrize: pytest.param(..., marks=pytest.mark.lossguard(claim=...))",
        code="LG0802",
    )


def unknown_baseline(found: str, known: Iterable[str], name: str) -> UsageError:
    """LG0803: neither a record nor a system goes by the baseline's name."""
    return UsageError(
        f"{found}. {near_miss(name, known)}",
        why="without a baseline there is nothing to compare with, and another one is never taken instead",
        fix=f"add [systems.{name}] to lossguard.toml, record it with --lossguard-update=new, or correct the name",
        code="LG0803",
    )


def no_candidate(who: str) -> UsageError:
    """LG0804: nobody says which system the claim is about."""
    return UsageError(
        f"{who} names no candidate",
        why="a verdict is about one system, and none is ever guessed",
        fix="give candidate= in the marker, --lossguard-candidate=NAME, or override the fixture lossguard_system",
        code="LG0804",
    )


def other_candidate(who: str, name: str, given: str) -> UsageError:
    """LG0815: the fixture would judge another system than the one that is named."""
    return UsageError(
        f"{who} is to judge the system {name!r} of the configuration, and the fixture lossguard_system gives {given}",
        why="the verdict would stand under the name of a system that was not judged",
        fix="name the system in one place: leave candidate= (or --lossguard-candidate) out, or the fixture",
        code="LG0815",
    )


def bad_manifest(path: object, found: str) -> UsageError:
    """LG0805: the list of required claims cannot be used."""
    return UsageError(
        f"{path}: {found}",
        why="claims that are required and not known could be missing without anybody noticing",
        fix="write one claim a line; '#' begins a comment",
        code="LG0805",
    )


def bad_devices(found: str) -> UsageError:
    """LG0807: devices and workers do not fit together."""
    return UsageError(
        found,
        why="two systems on one device disturb each other, and a worker must not take a device it was not given",
        fix="give as many devices as workers (--lossguard-devices=GPU-a,GPU-b -n 2), or fewer workers",
        code="LG0807",
    )


def reruns_refused(claim: str, where: str) -> UsageError:
    """LG0808: pytest-rerunfailures would repeat a claim until it passes."""
    return UsageError(
        f"the claim {claim!r} ({where}) would be run again after a failure (pytest-rerunfailures)",
        why="retrying until PASS multiplies the chance that a lossy system gets one",
        fix="leave --reruns out, or mark the test @pytest.mark.flaky(reruns=0)",
        code="LG0808",
    )


def not_plain(found: str) -> IntegrityError:
    """LG0809: a message between processes holds something that is no JSON."""
    return IntegrityError(
        f"a verdict cannot be sent: {found}",
        why="a value that does not survive the way from worker to controller takes the whole report with it",
        fix="report this, with the traceback; what was measured is in the run folder",
        code="LG0809",
    )


def bad_setting(name: str, found: str) -> UsageError:
    """LG0810: an ini setting does not fit."""
    return UsageError(
        f"{name} in the pytest configuration: {found}",
        why="a setting that is quietly ignored would judge something else than what was asked",
        fix="correct the setting; docs/pytest.md lists them",
        code="LG0810",
    )


def no_marker(where: str) -> UsageError:
    """LG0811: the fixture is used without a claim."""
    return UsageError(
        f"{where} uses the fixture 'lossguard' and has no marker",
        why="a verdict belongs to a claim with a name of its own; a test's node id changes with every renaming",
        fix='mark it: @pytest.mark.lossguard(claim="my-change/greedy")',
        code="LG0811",
    )


def forked_with_cuda() -> UsageError:
    """LG0814: pytest-forked after CUDA was initialised."""
    return UsageError(
        "--forked is given, and CUDA is in use before any test runs",
        why="a forked process cannot use its parent's CUDA, so every claim would end in an error or hang",
        fix="leave --forked out, or find the conftest or plugin that initialises CUDA while tests are collected",
        code="LG0814",
    )


def second_writer(found: str) -> UsageError:
    """LG0813: somebody else writes baselines at the same time."""
    return UsageError(
        found,
        why="of two writers the later one wins, and nobody sees which baseline was kept and which was looked at",
        fix="record lossguard's baselines in a session of their own, one session at a time",
        code="LG0813",
    )


def bad_report_path(path: object, found: str) -> UsageError:
    """LG0812: there is no place for the session's report."""
    return UsageError(
        f"--lossguard-json={path}: {found}",
        why="a report that cannot be written at the end would leave hours of work without one",
        fix="give a path in a folder that can be written",
        code="LG0812",
    )
