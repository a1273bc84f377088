"""Leases that survive crashes, and the host's lock for a pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lossguard.devices.leases import LeaseBook
from lossguard.devices.names import Device
from lossguard.devices.process_identity import ProcessIdentity, identity_of, own_identity
from lossguard.errors import MeasurementError

FIRST = Device(name="cpu:0-1", kind="cpu", cores=(0, 1))
OVERLAPPING = Device(name="cpu:1", kind="cpu", cores=(1,))
OTHER = Device(name="cpu:2", kind="cpu", cores=(2,))
HOLDER = """
import sys, time
from pathlib import Path
from lossguard.devices.leases import LeaseBook
from lossguard.devices.names import Device
device = Device(name="cpu:0-1", kind="cpu", cores=(0, 1))
book = LeaseBook(Path(sys.argv[1]))
with book.hold([device], "a crash", 0.0, print), book.exclusive_pair(0.0, print):
    print("held", flush=True)
    time.sleep(60)
"""


def silent(_text: str) -> None:
    """No note."""


def test_a_lease_keeps_others_from_overlapping_devices_only(tmp_path: Path) -> None:
    book = LeaseBook(tmp_path)
    with book.hold([FIRST], "a test", 0.0, silent):
        (lease,) = book.leases()
        assert lease.device == FIRST
        assert lease.processes == (own_identity(),)
        with pytest.raises(MeasurementError, match=r"LG1002") as caught, book.hold([OVERLAPPING], "b", 0.0, silent):
            pass
        assert str(os.getpid()) in str(caught.value)
        with book.hold([OTHER], "c", 0.0, silent):
            assert len(book.leases()) == 2
    assert book.leases() == ()


def test_waiting_ends_when_the_device_is_free(tmp_path: Path) -> None:
    book = LeaseBook(tmp_path)
    notes: list[str] = []
    held = book.hold([FIRST], "a test", 0.0, silent)
    held.__enter__()
    threading.Timer(0.4, held.__exit__, (None, None, None)).start()
    with book.hold([FIRST], "another", 20.0, notes.append):
        assert len(notes) == 1


def test_a_crash_leaves_a_stale_lease_that_the_next_one_recognises(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    book = LeaseBook(tmp_path)
    assert [lease.purpose for lease in book.leases()] == ["a crash"]
    with pytest.raises(MeasurementError, match="LG1002"), book.exclusive_pair(0.0, silent):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert list(tmp_path.glob("*.lease.json"))
    with book.hold([FIRST], "the next", 0.0, silent), book.exclusive_pair(5.0, silent):
        assert [lease.purpose for lease in book.leases()] == ["the next"]


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}, {"pid": 2**22 + 1}])
def test_a_recycled_number_or_another_boot_is_no_holder(tmp_path: Path, change: dict[str, object]) -> None:
    book = LeaseBook(tmp_path)
    identity = ProcessIdentity.from_json({**own_identity().to_json(), **change})
    assert not identity.is_alive
    book.write(FIRST, [identity], "long ago")
    with book.hold([FIRST], "now", 0.0, silent):
        pass


def test_an_arm_that_outlives_its_client_keeps_the_lease(tmp_path: Path) -> None:
    book = LeaseBook(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    gone = ProcessIdentity.from_json({**own_identity().to_json(), "start_ticks": 1})
    found = identity_of(child.pid)
    assert found is not None
    book.write(FIRST, [gone, found], "a client that crashed")
    assert len(book.leases()) == 1
    child.kill()
    while child.poll() is None:
        time.sleep(0.01)
    assert book.leases() == ()


def test_a_zombie_holds_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    found = identity_of(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity_of(child.pid) is None
    assert found is None or not found.is_alive
    child.wait()


def test_a_file_that_is_no_lease_is_removed(tmp_path: Path) -> None:
    (tmp_path / "cpu-9.lease.json").write_text(json.dumps({"device": 3}))
    assert LeaseBook(tmp_path).leases() == ()
    assert list(tmp_path.glob("*.lease.json")) == []
